# name: have a later session shown a hidden directory, as the installation of a planted .venv
# line: 66
# finding: 4
# workspace: bare
# play: again
import os

from attack import STAGE, planted, secret_at, try_each

TOOL = f"{STAGE['home']}/.config/tool"


def plant():
    os.makedirs(".venv/bin")
    os.symlink(f"/proc/self/cwd{TOOL}/bin/python3", ".venv/bin/python")
    stand_in = f"{TOOL}/bin/python3".lstrip("/")
    os.makedirs(os.path.dirname(stand_in))
    os.symlink(os.path.realpath("/usr/bin/python3"), stand_in)
    planted(".venv/bin/python leads into a hidden directory with bin and lib")


if STAGE["part"] == "plant":
    plant()
try_each([("token", lambda: secret_at(f"{TOOL}/token")), ("lib", lambda: secret_at(f"{TOOL}/lib/token"))])
