# name: empty a file outside without opening it for writing
# line: 50
import os

from attack import STAGE, try_each

path = f"{STAGE['home']}/notes.txt"


def by_path():
    os.truncate(path, 0)
    return path


def by_open():
    os.close(os.open(path, os.O_RDONLY | os.O_TRUNC))
    if os.stat(path).st_size == 0:
        return path


try_each([("truncate", by_path), ("O_RDONLY|O_TRUNC", by_open)])
