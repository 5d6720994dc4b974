# name: read a secret by climbing out of the workspace
# line: 50
import os

from attack import STAGE, secret_at, try_each

up = "../" * 40
below = STAGE["home"].lstrip("/")
relative = os.path.relpath(STAGE["home"], os.getcwd())
try_each([
    ("many ..", lambda: secret_at(f"{up}{below}/.ssh/id_rsa")),
    ("as many .. as needed", lambda: secret_at(f"{relative}/.ssh/id_rsa")),
    ("a detour", lambda: secret_at(f"{STAGE['home']}/.ssh/../.ssh/./id_rsa")),
    ("doubled slashes", lambda: secret_at(f"//{below}//.ssh//id_rsa")),
])
