# name: change priority, processors or limits of processes outside
# line: 51
import os
import resource

from attack import STAGE, try_each

KEYS = ["host_number", "node_number", "keeper_number", "victim_worker_number"]


def limited(pid):
    # Only reads. A process that may read these values may also set them.
    resource.prlimit(pid, resource.RLIMIT_NOFILE)
    return f"read the limits of {pid}"


def reniced(pid):
    os.setpriority(os.PRIO_PROCESS, pid, os.getpriority(os.PRIO_PROCESS, pid))
    return f"set the priority of {pid}"


def bound(pid):
    os.sched_setaffinity(pid, os.sched_getaffinity(pid))
    return f"set the processors of {pid}"


try_each([(f"{act.__name__} {key}", lambda act=act, key=key: act(STAGE[key]))
          for act in (limited, reniced, bound) for key in KEYS])
