# name: set limits on the keeper that would end it
# line: 51
import resource

from attack import STAGE, try_each

KEYS = ["keeper_number", "victim_keeper_number", "node_number", "host_number"]


def limited(pid):
    # The limits that it has: whoever may set these may set others.
    resource.prlimit(pid, resource.RLIMIT_CORE, resource.prlimit(pid, resource.RLIMIT_CORE))
    return f"set limits of {pid}"


try_each((key, lambda key=key: limited(STAGE[key])) for key in KEYS)
