# name: read a token, a lock or a socket's name in the runtime directory
# line: 58
import os

from attack import STAGE, below, secret_at, try_each


def searched():
    for path in below(STAGE["runtime"]):
        if path.endswith((".token", "token")) and (found := secret_at(path)):
            return found


try_each([("names", lambda: ", ".join(os.listdir(STAGE["runtime"]))), ("a token", searched)])
