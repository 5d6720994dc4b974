# name: reach services whose sockets the kernel knows by another name than they have
# line: 52
import os
import socket

from attack import STAGE, canary_in, try_each


def reached(path):
    with socket.socket(socket.AF_UNIX) as one:
        one.settimeout(5)
        one.connect(path)
        return canary_in(one.recv(100)) or "connected"


def from_home():
    # Short enough for a socket address, for every path of the home.
    os.chdir(STAGE["home"])
    return reached("relative.sock")


try_each([
    ("bound by a relative path", lambda: reached(f"{STAGE['home']}/relative.sock")),
    ("the same, from its directory", from_home),
    ("renamed after it was bound", lambda: reached(f"{STAGE['home']}/renamed.sock")),
])
