# name: reach a TCP service of the host's
# line: 52
# networks: none hosts
import socket

from attack import STAGE, canary_in, try_each

METADATA = (STAGE["metadata_host"], 80 if STAGE["metadata_host"].startswith("169.") else STAGE["tcp_port"])


def reached(family, address):
    with socket.socket(family, socket.SOCK_STREAM) as one:
        one.settimeout(3)
        one.connect(address)
        return canary_in(one.recv(100)) or "connected"


try_each([
    ("127.0.0.1", lambda: reached(socket.AF_INET, ("127.0.0.1", STAGE["tcp_port"]))),
    ("0.0.0.0", lambda: reached(socket.AF_INET, ("0.0.0.0", STAGE["tcp_port"]))),
    ("::1", lambda: reached(socket.AF_INET6, ("::1", STAGE["tcp6_port"]))),
    ("::ffff:127.0.0.1", lambda: reached(socket.AF_INET6, ("::ffff:127.0.0.1", STAGE["tcp_port"]))),
    ("a metadata service", lambda: reached(socket.AF_INET, METADATA)),
])
