# name: read secrets by their own paths
# line: 50
from attack import STAGE, secret_at, try_each

NAMES = [".ssh/id_rsa", ".aws/credentials", ".config/gh/hosts.yml", ".claude/credentials.json", ".claude.json"]
try_each((name, lambda name=name: secret_at(f"{STAGE['home']}/{name}")) for name in NAMES)
