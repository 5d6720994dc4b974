# name: change mode, times and attributes of files outside
# line: 50
# levels: full
import os

from attack import STAGE, try_each

path = f"{STAGE['home']}/notes.txt"


def done(act, *arguments):
    act(path, *arguments)
    return path


try_each([
    ("chmod", lambda: done(os.chmod, 0o777)),
    ("utime", lambda: done(os.utime, (1, 1))),
    ("setxattr", lambda: done(os.setxattr, "user.windlass", b"x")),
    ("chown", lambda: done(os.chown, os.getuid(), os.getgid())),
])
