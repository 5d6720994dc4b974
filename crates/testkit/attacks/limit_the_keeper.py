# name: set limits on the keeper that would end it
# line: 51
import resource

from attack import STAGE, try_each

KEYS = ["keeper_number", "victim_keeper_number", "node_number", "host_number"]


def limited(pid):
    # Sets the current limits again. A process that may do that may set other limits too.
    resource.prlimit(pid, resource.RLIMIT_CORE, resource.prlimit(pid, resource.RLIMIT_CORE))
    return f"set limits of {pid}"


try_each((key, lambda key=key: limited(STAGE[key])) for key in KEYS)
