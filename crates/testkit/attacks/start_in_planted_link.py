# name: have a later session started in a hidden directory, by a link where its workspace is to be
# line: 66
# workspace: bare
# play: again below
import os

from attack import STAGE, planted, secret_at, try_each

if STAGE["part"] == "plant":
    os.symlink(f"{STAGE['home']}/.config/tool", "sub")
    planted("sub is a link to a hidden directory")
try_each([("token", lambda: secret_at("token"))])
