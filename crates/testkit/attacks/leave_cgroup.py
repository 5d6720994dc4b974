# name: leave the session's cgroup, or change its limits
# line: 53
import os

from attack import below, opened_to_write, try_each

ROOT = "/sys/fs/cgroup"
NAMES = ("cgroup.procs", "tasks", "memory.max", "memory.limit_in_bytes", "pids.max", "cgroup.subtree_control")


def files():
    try:
        return [path for path in below(ROOT) if os.path.basename(path) in NAMES][:200]
    except OSError:
        return [f"{ROOT}/cgroup.procs", f"{ROOT}/unified/cgroup.procs", f"{ROOT}/pids/cgroup.procs"]


try_each((path, lambda path=path: opened_to_write(path)) for path in files())
