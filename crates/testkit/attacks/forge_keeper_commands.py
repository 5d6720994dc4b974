# name: speak to keepers as if it were the node
# line: 51
import os
import socket

from attack import STAGE, try_each


def sockets():
    import stat

    found = []
    for place, _, names in os.walk(STAGE["runtime"]):
        paths = (os.path.join(place, name) for name in names)
        found += [path for path in paths if stat.S_ISSOCK(os.lstat(path).st_mode)]
    return found


def connected(path):
    with socket.socket(socket.AF_UNIX) as one:
        one.settimeout(5)
        one.connect(path)
        return f"connected to {os.path.basename(path)}"


found = sockets()
try_each([(os.path.basename(path), lambda path=path: connected(path)) for path in found]
         or [("the runtime directory", lambda: os.listdir(STAGE["runtime"]))])
