# name: reach a service of the host that began to listen in the home after the session did
# line: 52
import socket

from attack import STAGE, canary_in, try_each


def reached(path):
    with socket.socket(socket.AF_UNIX) as one:
        one.settimeout(5)
        one.connect(path)
        return canary_in(one.recv(100)) or "connected"


try_each([(place, lambda place=place: reached(f"{STAGE[place]}/late.sock")) for place in ("home",)])
