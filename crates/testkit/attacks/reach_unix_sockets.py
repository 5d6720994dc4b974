# name: reach services of the host by their unix sockets in /run, /tmp and the home
# line: 52
import socket

from attack import STAGE, canary_in, try_each


def reached(path):
    with socket.socket(socket.AF_UNIX) as one:
        one.settimeout(5)
        one.connect(path)
        return canary_in(one.recv(100)) or "connected"


KEYS = [key for key in ("socket_home", "socket_tmp", "socket_run") if STAGE[key]]
try_each([(key, lambda key=key: reached(STAGE[key])) for key in KEYS]
         + [("by /proc/self/root", lambda: reached(f"/proc/self/root{STAGE['socket_home']}"))])
