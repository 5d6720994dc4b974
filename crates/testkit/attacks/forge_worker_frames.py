# name: speak to the keeper from a subprocess, as if it were the worker
# line: 57
import os
import stat

from attack import processes, try_each


def tried(pid):
    # The worker's socket cannot be opened again by name; only its process can use it.
    for name in os.listdir(f"/proc/{pid}/fd"):
        path = f"/proc/{pid}/fd/{name}"
        if int(name) > 2 and stat.S_ISSOCK(os.stat(path).st_mode):
            os.close(os.open(path, os.O_RDWR))
            return path


own = str(os.getpid())
try_each([(f"/proc/{pid}/fd", lambda pid=pid: tried(pid)) for pid in processes() if pid != own])
