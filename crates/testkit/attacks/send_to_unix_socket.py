# name: send to a datagram socket of the host's, with sockets that need no socket()
# line: 52
import socket

from attack import STAGE, try_each


def sent():
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as one:
        return one.sendto(b"hello", STAGE["socket_home_datagram"])


def sent_by_pair():
    with socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)[0] as one:
        return one.sendto(b"hello", STAGE["socket_home_datagram"])


try_each([("sendto", sent), ("sendto on half of a pair", sent_by_pair)])
