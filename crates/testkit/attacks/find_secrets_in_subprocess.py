# name: find the node's secret in a subprocess's environment, or its parent's
# line: 55
import os

from attack import canary_in, read, try_each

try_each([
    ("os.environ", lambda: canary_in("\n".join(os.environ.values()).encode())),
    ("its parent", lambda: canary_in(read(f"/proc/{os.getppid()}/environ"))),
    ("process 1", lambda: canary_in(read("/proc/1/environ"))),
    ("arguments of 1", lambda: canary_in(read("/proc/1/cmdline"))),
])
