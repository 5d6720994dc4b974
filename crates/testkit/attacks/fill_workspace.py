# name: fill the workspace past the disk limit
# line: 53
# session: own
# control: disk
# limits: disk_bytes=8388608
import os

from attack import refused, through

LIMIT, EACH, FILES = 8 << 20, 1 << 20, 200
os.mkdir("filler")
written = 0
try:
    for number in range(FILES):
        # The limit is looked at now and then: it may be passed, not for long.
        with open(f"filler/{number % 64}", "wb") as file:
            written += file.write(b"x" * EACH)
            file.flush()
            os.fsync(file.fileno())
except OSError as error:
    refused(f"{os.strerror(error.errno)} after {written >> 20} MiB")
through(f"{min(written, 64 * EACH) >> 20} MiB in the workspace, over {LIMIT >> 20}")
