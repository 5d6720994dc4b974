# name: bring the node down with a very deep directory in a workspace that is forked and removed
# line: 66
# play: fork
# runs: in the worker
import os

from attack import STAGE, planted, refused

# Together longer than the path limit, but few enough to remove with one descriptor each.
DEPTH = 100
NAME = "d" * 200


def plant():
    here = os.getcwd()
    for _ in range(DEPTH):
        os.mkdir(NAME)
        os.chdir(NAME)
    os.chdir(here)
    planted(f"{DEPTH} directories in one another")


plant() if STAGE["part"] == "plant" else refused("the node lives")
