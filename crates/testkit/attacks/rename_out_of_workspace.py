# name: rename a file of the workspace over one of the home
# line: 50
import os

from attack import STAGE, own_directory, try_each

place = own_directory("mine")


def moved(target):
    with open(f"{place}/file", "w", encoding="utf-8") as file:
        file.write("alias ls=evil\n")
    os.rename(f"{place}/file", target)
    return target


try_each((name, lambda name=name: moved(f"{STAGE['home']}/{name}")) for name in (".bashrc", ".zshrc"))
