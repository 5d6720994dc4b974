# name: read a hidden directory of the workspace in a later session, after the directory above it is renamed
# line: 66
# levels: full
# workspace: nested
# play: again
import os

from attack import STAGE, planted, refused, secret_at, try_each

if STAGE["part"] == "plant":
    try:
        os.rename("conf", "renamed")
    except OSError as error:
        refused(f"{error.strerror} on conf")
    planted("the directory above the hidden one has another name")
try_each([(path, lambda path=path: secret_at(path)) for path in ("renamed/keys/id", "conf/keys/id")])
