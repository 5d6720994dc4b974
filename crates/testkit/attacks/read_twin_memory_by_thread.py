# name: read the twin's memory from a thread that the original had before the fork
# line: 71
# finding: 10
# play: fork
# named: thread
# runs: in the worker
from attack import by_thread_from_before, secret_in_memory

by_thread_from_before(secret_in_memory)
