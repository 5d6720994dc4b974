# name: add a line to .bashrc
# line: 50
from attack import STAGE, append, try_each

NAMES = [".bashrc", ".profile", "notes.txt", ".ssh/authorized_keys"]
try_each((name, lambda name=name: append(f"{STAGE['home']}/{name}")) for name in NAMES)
