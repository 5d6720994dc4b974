# name: reach a file in the host's /tmp
# line: 50
import os

from attack import STAGE, append, try_each

path = f"{STAGE['base']}/shared.txt"


def plant():
    os.close(os.open(f"{STAGE['base']}/planted", os.O_CREAT | os.O_WRONLY))
    return "planted a file"


try_each([("write", lambda: append(path)), ("create", plant)])
