# name: write a file larger than the limit
# line: 53
# session: own
# control: file_size
# limits: file_bytes=1048576
import os
import signal

from attack import try_each

signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
LIMIT = 1 << 20


def written():
    descriptor = os.open("large", os.O_CREAT | os.O_WRONLY)
    total = 0
    while total <= LIMIT:
        total += os.write(descriptor, b"x" * 65536)
    return f"{total} bytes"


def at_once():
    os.truncate(os.open("holes", os.O_CREAT | os.O_WRONLY), 4 * LIMIT)
    return "a file of 4 MiB"


def allocated():
    os.posix_fallocate(os.open("allocated", os.O_CREAT | os.O_WRONLY), 0, 4 * LIMIT)
    return "4 MiB"


try_each([("write", written), ("truncate", at_once), ("fallocate", allocated)])
