# name: reach an abstract socket of another session
# line: 51
import socket

from attack import STAGE, canary_in, try_each


def reached():
    with socket.socket(socket.AF_UNIX) as one:
        one.settimeout(5)
        one.connect("\0" + STAGE["victim_word"])
        return canary_in(one.recv(100))


try_each([("connect", reached)])
