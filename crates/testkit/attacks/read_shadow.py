# name: read the machine's password hashes
# line: 50
# needs: root
from attack import read, try_each

PATHS = ["/etc/shadow", "/etc/gshadow", "/etc/shadow-", "/etc/sudoers"]
try_each((path, lambda path=path: f"{len(read(path))} bytes") for path in PATHS)
