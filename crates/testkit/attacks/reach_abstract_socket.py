# name: reach an abstract unix socket of the host's
# line: 52
import socket

from attack import STAGE, canary_in, try_each


def reached():
    with socket.socket(socket.AF_UNIX) as one:
        one.settimeout(5)
        one.connect("\0" + STAGE["abstract"])
        return canary_in(one.recv(100))


def sent():
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as one:
        return one.sendto(b"hello", "\0" + STAGE["abstract_datagram"])


def sent_by_pair():
    with socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)[0] as one:
        return one.sendto(b"hello", "\0" + STAGE["abstract_datagram"])


try_each([("connect", reached), ("sendto", sent), ("sendto on half of a pair", sent_by_pair)])
