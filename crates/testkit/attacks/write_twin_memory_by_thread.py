# name: open the twin's memory for writing from a thread that the original had before the fork
# line: 71
# finding: 10
# play: fork
# named: thread
# runs: in the worker
from attack import by_thread_from_before, opened_to_write

by_thread_from_before(lambda pid: opened_to_write(f"/proc/{pid}/mem"))
