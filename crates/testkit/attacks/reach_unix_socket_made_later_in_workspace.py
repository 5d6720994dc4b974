# name: reach a service of the host that began to listen in the workspace after the session did
# line: 52
# control: sockets
import socket

from attack import canary_in, try_each


def reached(path):
    with socket.socket(socket.AF_UNIX) as one:
        one.settimeout(5)
        one.connect(path)
        return canary_in(one.recv(100)) or "connected"


try_each([(name, lambda name=name: reached(name)) for name in ("late.sock",)])
