# name: send to datagram sockets of the host by their paths, from one half of a socket pair of every type
# line: 67
# finding: 2
# judged: outside
import socket

from attack import STAGE, try_each

KINDS = {"datagram": socket.SOCK_DGRAM, "raw": socket.SOCK_RAW, "reliable": socket.SOCK_RDM,
         "sequenced": socket.SOCK_SEQPACKET, "stream": socket.SOCK_STREAM}
# Flags in the type argument, which a filter may forget to mask.
FLAGS = {"": 0, ", close-on-exec": socket.SOCK_CLOEXEC, ", non-blocking": socket.SOCK_NONBLOCK}
TARGETS = {"its log": STAGE["socket_home_datagram"], "its abstract socket": "\0" + STAGE["abstract_datagram"]}


def sent(kind, target):
    for one in socket.socketpair(socket.AF_UNIX, kind):
        with one:
            if one.sendmsg([b"hello"], [], socket.MSG_DONTWAIT, target) and one.sendto(b"hello", target):
                return "sent"


try_each([(f"{kind}{flag} to {target}", lambda k=KINDS[kind] | FLAGS[flag], t=TARGETS[target]: sent(k, t))
          for kind in KINDS for flag in FLAGS for target in TARGETS])
