# name: turn a descriptor that only reads into one that writes
# line: 50
import os

from attack import STAGE, append, try_each


def reopened(flags):
    descriptor = os.open(f"{STAGE['home']}/.bashrc", flags)
    return append(f"/proc/self/fd/{descriptor}")


try_each([("O_RDONLY", lambda: reopened(os.O_RDONLY)), ("O_PATH", lambda: reopened(os.O_PATH))])
