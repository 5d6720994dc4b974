# name: reach a TCP service without connect(), by fast open
# line: 52
# networks: none hosts
import socket

from attack import STAGE, canary_in, try_each


def reached():
    with socket.socket() as one:
        one.settimeout(3)
        one.sendto(b"hello", socket.MSG_FASTOPEN, ("127.0.0.1", STAGE["tcp_port"]))
        return canary_in(one.recv(100))


try_each([("sendto", reached)])
