# name: take a file of the home away by renaming it into the workspace
# line: 50
import os

from attack import STAGE, own_directory, try_each

place = own_directory("mine")


def moved(name):
    os.rename(f"{STAGE['home']}/{name}", f"{place}/{name}")
    return name


try_each((name, lambda name=name: moved(name)) for name in (".bashrc", "notes.txt"))
