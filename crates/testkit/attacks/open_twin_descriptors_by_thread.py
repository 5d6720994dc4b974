# name: open the twin's descriptors from a thread that the original had before the fork
# line: 71
# finding: 10
# play: fork
# named: thread
# runs: in the worker
import os

from attack import by_thread_from_before


def act(pid):
    for name in os.listdir(f"/proc/{pid}/fd"):
        os.stat(f"/proc/{pid}/fd/{name}")
        return f"descriptor {name} of {pid}"


by_thread_from_before(act)
