# name: reach a service of the host that listens in the workspace
# line: 52
import socket

from attack import canary_in, try_each


def reached(path):
    with socket.socket(socket.AF_UNIX) as one:
        one.settimeout(5)
        one.connect(path)
        return canary_in(one.recv(100)) or "connected"


try_each([(name, lambda name=name: reached(name)) for name in ("early.sock",)])
