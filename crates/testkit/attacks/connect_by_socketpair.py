# name: turn a socket pair into a connection to the host
# line: 52
import socket

from attack import STAGE, canary_in, try_each


def turned(kind, address):
    left, right = socket.socketpair(socket.AF_UNIX, kind)
    right.close()
    left.settimeout(3)
    left.connect(address)
    left.send(b"hello")
    return canary_in(left.recv(100)) if kind == socket.SOCK_STREAM else "sent"


try_each([
    ("stream", lambda: turned(socket.SOCK_STREAM, STAGE["socket_home"])),
    ("datagram", lambda: turned(socket.SOCK_DGRAM, STAGE["socket_home_datagram"])),
    ("raw, which is datagram", lambda: turned(socket.SOCK_RAW, STAGE["socket_home_datagram"])),
    ("abstract", lambda: turned(socket.SOCK_DGRAM, "\0" + STAGE["abstract_datagram"])),
])
