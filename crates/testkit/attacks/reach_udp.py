# name: reach a UDP service of the host's
# line: 52
# networks: none hosts
import socket

from attack import STAGE, canary_in, try_each

UDPLITE = 136


def reached(protocol):
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM, protocol) as one:
        one.settimeout(1)
        one.sendto(b"hello", ("127.0.0.1", STAGE["udp_port"]))
        return canary_in(one.recv(100))


try_each([("udp", lambda: reached(0)), ("udp-lite", lambda: reached(UDPLITE))])
