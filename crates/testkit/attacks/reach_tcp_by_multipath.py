# name: reach a TCP service by multipath TCP
# line: 52
import socket

from attack import STAGE, canary_in, try_each

IPPROTO_MPTCP, IPPROTO_SCTP = 262, 132


def reached(protocol):
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM, protocol) as one:
        one.settimeout(3)
        one.connect(("127.0.0.1", STAGE["tcp_port"]))
        return canary_in(one.recv(100))


try_each([("mptcp", lambda: reached(IPPROTO_MPTCP)), ("sctp", lambda: reached(IPPROTO_SCTP))])
