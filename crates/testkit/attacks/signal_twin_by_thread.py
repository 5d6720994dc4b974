# name: signal the twin from a thread that the original had before the fork
# line: 71
# finding: 10
# play: fork
# named: thread
# runs: in the worker
import os

from attack import by_thread_from_before


def act(pid):
    if pid > 1:
        os.kill(pid, 0)
        return f"{pid} can be signalled"


by_thread_from_before(act)
