# name: start more processes than the limit
# line: 53
# session: own
# control: process_count
# limits: processes=40
import os
import signal

from attack import refused, through

# Some limits are checked at intervals, so they may be exceeded a little.
LIMIT, TRIES = 40, 160
children = []
stopped = None
for _ in range(TRIES):
    try:
        child = os.fork()
    except OSError as error:
        stopped = os.strerror(error.errno)
        break
    if child == 0:
        signal.pause()
        os._exit(0)
    children.append(child)
for child in children:
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
if len(children) <= 2 * LIMIT:
    refused(f"{stopped} after {len(children)} processes")
through(f"{len(children)} processes at once")
