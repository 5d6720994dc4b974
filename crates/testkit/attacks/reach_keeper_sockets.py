# name: connect to the sockets of keepers and of the egress proxy
# line: 67
# finding: 3
import socket

from attack import STAGE, try_each

KEEPERS = [f"{STAGE['runtime']}/k/{STAGE[key]}.sock" for key in ("session", "victim_session")]


def reached(path, kind):
    with socket.socket(socket.AF_UNIX, kind) as one:
        one.settimeout(3)
        one.connect(path)
        return "connected"


try_each([(f"{path.rsplit('/', 1)[1][:12]} {kind.name}", lambda p=path, k=kind: reached(p, k))
          for path in [*KEEPERS, f"{STAGE['runtime']}/egress.sock"]
          for kind in (socket.SOCK_STREAM, socket.SOCK_SEQPACKET, socket.SOCK_DGRAM)])
