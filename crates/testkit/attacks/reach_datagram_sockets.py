# name: send to datagram sockets of the host, by path and by abstract name, connected and not
# line: 67
# finding: 3
import socket

from attack import STAGE, try_each

TARGETS = {"its log": STAGE["socket_home_datagram"], "its abstract socket": "\0" + STAGE["abstract_datagram"]}


def sent(target):
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as one:
        return one.sendto(b"hello", target)


def connected(target):
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as one:
        one.connect(target)
        return one.send(b"hello")


try_each([(f"{act.__name__} to {name}", lambda a=act, t=target: a(t))
          for act in (sent, connected) for name, target in TARGETS.items()])
