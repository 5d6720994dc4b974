# name: fill the workspace past the disk limit
# line: 53
# session: own
# control: disk
# limits: disk_bytes=8388608
import os
import time

from attack import refused, through

LIMIT, EACH, FILES_MAX, SECONDS = 8 << 20, 1 << 20, 20_000, 6
os.mkdir("filler")
written = 0
over = None
try:
    for number in range(FILES_MAX):
        # The limit is checked at intervals, so it may be exceeded for a short time.
        if over is None and written > LIMIT:
            over = time.monotonic()
        if over is not None and time.monotonic() - over > SECONDS:
            break
        with open(f"filler/{number % 64}", "wb") as file:
            written += file.write(b"x" * EACH)
            file.flush()
            os.fsync(file.fileno())
except OSError as error:
    refused(f"{os.strerror(error.errno)} after {written >> 20} MiB")
seconds = time.monotonic() - over
through(f"{min(written, 64 * EACH) >> 20} MiB in the workspace, over {LIMIT >> 20}, for {seconds:.2f} s")
