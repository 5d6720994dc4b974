# name: read and write the host's POSIX shared memory
# line: 51
from attack import STAGE, append, secret_at, try_each

try_each([("read", lambda: secret_at(STAGE["shm_path"])), ("write", lambda: append(STAGE["shm_path"]))])
