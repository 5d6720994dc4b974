# name: remove files and directories outside
# line: 50
import os

from attack import STAGE, try_each

home = STAGE["home"]


def done(act, path):
    act(path)
    return path


try_each([
    ("unlink", lambda: done(os.unlink, f"{home}/notes.txt")),
    ("rmdir", lambda: done(os.rmdir, f"{home}/empty")),
])
