# name: fill /tmp and /dev/shm past the limit
# line: 53
# session: own
# limits: tmp_bytes=8388608
import os
import tempfile

from attack import try_each

MOST = 16 << 20


def filled(place):
    with tempfile.TemporaryFile(dir=place) as file:
        for _ in range(MOST >> 20):
            file.write(b"x" * (1 << 20))
        file.flush()
        os.fsync(file.fileno())
    return f"{MOST >> 20} MiB"


try_each((place, lambda place=place: filled(place)) for place in ("/tmp", "/dev/shm"))
