# name: open more files than the limit
# line: 53
# session: own
# control: open_files
# limits: open_files=64
import os
import resource

from attack import refused, through

LIMIT, TRIES = 64, 200
try:
    resource.setrlimit(resource.RLIMIT_NOFILE, (4 * LIMIT, 4 * LIMIT))
except (OSError, ValueError):
    pass
count = 0
try:
    for count in range(TRIES):
        os.open("/dev/null", os.O_RDONLY)
except OSError as error:
    stopped = os.strerror(error.errno)
if count < LIMIT:
    refused(f"{stopped} after {count}")
through(f"{count} files open at once")
