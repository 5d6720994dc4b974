# name: have a fork create in a hidden directory: the twin's place becomes a link while it is cleared
# line: 66
# finding: 1
# play: fork
# forks: 2
# runs: in the worker
import os

from attack import STAGE, in_background, planted, refused

FILES = 2000
HIDDEN = f"{STAGE['home']}/.config/autostart"


def plant():
    """The node clears what an earlier fork may have left. While it does, the directory that it clears is
    moved away, and a link is there where the node then makes its own."""
    room = STAGE["family"]
    try:
        os.mkdir(f"{room}/t")
    except OSError as error:
        refused(f"{error.strerror} on {room}/t")
    for number in range(FILES):
        with open(f"{room}/t/f{number}", "w", encoding="utf-8"):
            pass
    samples = [f"{room}/t/f{number}" for number in range(0, FILES, FILES // 10)]

    def swap():
        if not os.path.islink(f"{room}/t") and not all(map(os.path.lexists, samples)):
            os.rename(f"{room}/t", f"{room}/moved")
            os.symlink(HIDDEN, f"{room}/t")

    in_background(swap)
    planted("a place to be cleared")


plant() if STAGE["part"] == "plant" else refused("it looks at nothing itself")
