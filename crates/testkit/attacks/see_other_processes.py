# name: find processes of the host and of other sessions in /proc
# line: 51
from attack import STAGE, processes, read, try_each

MARKS = [STAGE["base"].encode(), STAGE["home"].encode(), b"windlass"]


def found(pid):
    line = read(f"/proc/{pid}/cmdline")
    if line and any(mark in line for mark in MARKS):
        inside = STAGE["workspace"].encode()
        return None if inside in line else line.replace(b"\0", b" ").decode(errors="replace")[:200]


def by_number():
    seen = [key for key in ("host_pid", "node_pid", "keeper_pid", "victim_worker_pid")
            if read(f"/proc/{STAGE[key]}/stat").split(b" ", 1)[0] == str(STAGE[key]).encode()]
    return seen


def is_own(pid):
    try:
        return STAGE["state"].encode() in read(f"/proc/{pid}/cmdline")
    except OSError:
        return False


# Processes of the session have the directory of the worker's program in their arguments. Process 1 of the
# session looks like the keeper, but is not the keeper if the keeper has another number.
own = [pid for pid in processes() if is_own(pid)]
own += [] if STAGE["keeper_number"] == 1 else ["1"]
try_each([(f"/proc/{pid}", lambda pid=pid: found(pid)) for pid in processes() if pid not in own]
         + [("by number", by_number)])
