# name: take the processor with a realtime priority
# line: 53
# needs: root
import os

from attack import try_each


def realtime():
    os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))
    return "SCHED_FIFO"


def nicer():
    os.setpriority(os.PRIO_PROCESS, 0, -5)
    return "nice -5"


try_each([("realtime", realtime), ("nice", nicer)])
