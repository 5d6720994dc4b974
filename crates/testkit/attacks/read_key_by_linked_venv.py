# name: have a later session shown a hidden key by a .venv that links straight to it
# line: 66
# finding: 4
# workspace: bare
# play: again
import os

from attack import STAGE, planted, secret_at, try_each

KEY = f"{STAGE['home']}/.ssh/id_rsa"
if STAGE["part"] == "plant":
    os.makedirs(".venv/bin")
    os.symlink(KEY, ".venv/bin/python")
    planted(".venv/bin/python is a link to the key")
try_each([("the key", lambda: secret_at(KEY))])
