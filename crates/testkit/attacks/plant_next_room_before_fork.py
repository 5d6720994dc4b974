# name: have a fork delete and create in a hidden directory by a link in its family's place
# line: 66
# finding: 1
# play: fork
# runs: in the worker
import os

from attack import STAGE, planted, refused

if STAGE["part"] == "plant":
    try:
        os.symlink(f"{STAGE['home']}/.config", f"{STAGE['family']}/o")
    except OSError as error:
        refused(f"{error.strerror} on {STAGE['family']}/o")
    planted("the next room is a link")
refused("it looks at nothing itself")
