# name: replace the windlass program, or get beside it
# line: 50
import os

from attack import STAGE, can_make_in, opened_to_write, try_each

path = STAGE["program"]


def beside():
    # If the program is not visible, its directory is a different one.
    os.stat(path)
    return can_make_in(os.path.dirname(path))


try_each([("beside it", beside), ("itself", lambda: opened_to_write(path)),
          ("a running one", lambda: opened_to_write(f"/proc/{STAGE['keeper_pid']}/exe"))])
