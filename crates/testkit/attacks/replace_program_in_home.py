# name: replace a program that the user's shell runs, in a session that works in the home
# line: 70
# finding: 8
# control: protected
# workspace: home
import os

from attack import STAGE, append, try_each

TOOL = f"{STAGE['home']}/.cargo/bin/tool"


def replaced():
    other = f"{STAGE['home']}/attack/tool"
    with open(other, "w", encoding="utf-8") as file:
        file.write("#!/bin/sh\n")
    os.rename(other, TOOL)
    return TOOL


def made():
    os.makedirs(f"{STAGE['home']}/.local/bin", exist_ok=True)
    with open(f"{STAGE['home']}/.local/bin/ls", "w", encoding="utf-8") as file:
        file.write("#!/bin/sh\n")
    return ".local/bin/ls"


try_each([("append", lambda: append(TOOL)), ("rename over", replaced), ("make in ~/.local/bin", made)])
