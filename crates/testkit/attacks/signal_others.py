# name: signal the host's process, the node, the keeper and another session
# line: 51
import os
import signal

from attack import STAGE, try_each

KEYS = ["host_number", "node_number", "keeper_number", "victim_keeper_number", "victim_worker_number"]


def signalled(key):
    # A harmless signal. The host's process records it, the others ignore it.
    os.kill(STAGE[key], signal.SIGURG)
    return f"signalled {STAGE[key]}"


try_each((key, lambda key=key: signalled(key)) for key in KEYS)
