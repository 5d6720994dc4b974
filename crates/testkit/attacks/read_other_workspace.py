# name: read a file in another session's workspace
# line: 51
from attack import STAGE, secret_at, try_each

try_each([
    ("its workspace", lambda: secret_at(f"{STAGE['victim_workspace']}/secret.txt")),
    ("by the root of its worker", lambda: secret_at(f"/proc/{STAGE['victim_worker_pid']}/root{STAGE['victim_workspace']}/secret.txt")),
    ("by its working directory", lambda: secret_at(f"/proc/{STAGE['victim_worker_pid']}/cwd/secret.txt")),
])
