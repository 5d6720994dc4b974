# name: reach a service of the host in the workspace in a later session, after the directory above it is renamed
# line: 67
# levels: full
# workspace: nested
# play: again
import os
import socket

from attack import STAGE, canary_in, planted, refused, try_each


def reached(path):
    with socket.socket(socket.AF_UNIX) as one:
        one.settimeout(5)
        one.connect(path)
        return canary_in(one.recv(100)) or "connected"


if STAGE["part"] == "plant":
    try:
        os.rename("sub", "renamed")
    except OSError as error:
        refused(f"{error.strerror} on sub")
    planted("the directory above the socket has another name")
try_each([(path, lambda path=path: reached(path)) for path in ("renamed/agent.sock", "sub/agent.sock")])
