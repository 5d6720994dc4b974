# name: read a secret whose file was replaced after the session began
# line: 50
from attack import STAGE, secret_at, try_each

NAMES = [".netrc", ".bash_history"]
try_each((name, lambda name=name: secret_at(f"{STAGE['home']}/{name}")) for name in NAMES)
