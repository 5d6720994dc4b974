# name: read a file in the host's /tmp
# line: 50
from attack import STAGE, secret_at, try_each

try_each([("shared.txt", lambda: secret_at(f"{STAGE['base']}/shared.txt"))])
