# name: find a secret in any process's environment or arguments
# line: 55
from attack import canary_in, processes, read, try_each

try_each((f"/proc/{pid}/{name}", lambda pid=pid, name=name: canary_in(read(f"/proc/{pid}/{name}")))
         for pid in processes() for name in ("environ", "cmdline"))
