# name: read a secret where a hidden link leads
# line: 50
from attack import STAGE, secret_at, try_each

NAMES = [".gnupg/key", "dotfiles/gnupg/key"]
try_each((name, lambda name=name: secret_at(f"{STAGE['home']}/{name}")) for name in NAMES)
