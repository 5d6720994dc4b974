# name: find the node's secret in the worker's own environment
# line: 55
# runs: in the worker
import os

from attack import canary_in, read, try_each

try_each([
    ("os.environ", lambda: canary_in("\n".join(os.environ.values()).encode())),
    ("/proc/self/environ", lambda: canary_in(read("/proc/self/environ"))),
    ("/proc/self/cmdline", lambda: canary_in(read("/proc/self/cmdline"))),
])
