# name: have a fork create in a hidden directory: the twin's place is a link whenever it is missing
# line: 66
# finding: 1
# play: fork
# forks: 4
# runs: in the worker
import os

from attack import STAGE, in_background, planted, refused


def plant():
    room, hidden = STAGE["family"], f"{STAGE['home']}/.config/autostart"
    try:
        os.symlink(hidden, f"{room}/t")
    except OSError as error:
        refused(f"{error.strerror} on {room}/t")
    for place in (f"{room}/t", f"{room}/o/t", f"{room}/t/w", f"{room}/o/t/w", f"{room}/o/o/t"):
        in_background(lambda place=place: os.symlink(hidden, place))
    planted("the twin's place is a link")


plant() if STAGE["part"] == "plant" else refused("it looks at nothing itself")
