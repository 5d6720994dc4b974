# name: plant a file in another session's workspace, and change one
# line: 51
import os

from attack import STAGE, append, try_each


def plant():
    descriptor = os.open(f"{STAGE['victim_workspace']}/planted.py", os.O_CREAT | os.O_WRONLY)
    os.close(descriptor)
    return "planted.py"


try_each([("append", lambda: append(f"{STAGE['victim_workspace']}/secret.txt")), ("create", plant)])
