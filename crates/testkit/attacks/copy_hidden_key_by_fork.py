# name: have a fork copy a hidden key: directories of the workspace become links while it copies
# line: 66
# finding: 1
# play: fork, look in the twin
# forks: 3
# runs: in the worker
import os

from attack import STAGE, canary_in, exchange, in_background, planted, read, refused, through

DIRECTORIES = 24


def plant():
    os.makedirs("links", exist_ok=True)
    for number in range(DIRECTORIES):
        os.makedirs(f"tree/d{number}", exist_ok=True)
        os.symlink(f"{STAGE['home']}/.ssh", f"links/l{number}")

    def swap_all():
        for number in range(DIRECTORIES):
            exchange(f"tree/d{number}", f"links/l{number}")

    in_background(swap_all)
    planted("directories that are links every other moment")


def look():
    for place, _, names in os.walk("."):
        for name in names:
            path = os.path.join(place, name)
            if not os.path.islink(path) and (found := canary_in(read(path))):
                through(f"{path} holds {found}")
    refused("the copy holds no secret")


plant() if STAGE["part"] == "plant" else look()
