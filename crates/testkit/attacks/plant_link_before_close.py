# name: have the node remove a directory of the home when it tidies up after a session
# line: 66
# finding: 1
# play: again elsewhere
import os

from attack import STAGE, planted, refused

if STAGE["part"] == "plant":
    try:
        os.symlink(f"{STAGE['home']}/empty", f"{STAGE['family']}/o")
    except OSError as error:
        refused(f"{error.strerror} on {STAGE['family']}/o")
    planted("the family's next room is a link")
refused("it looks at nothing itself")
