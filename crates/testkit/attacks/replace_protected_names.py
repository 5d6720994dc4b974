# name: replace each name that shells, agents, editors and git trust, where it exists
# line: 69
# finding: 8
# control: protected
# workspace: all names
import os
import shutil

from attack import STAGE, own_directory, try_each

place = own_directory("others")


def over(name):
    other = f"{place}/{name}"
    if os.path.isdir(name):
        os.makedirs(other)
    else:
        with open(other, "w", encoding="utf-8") as file:
            file.write("x")
    os.rename(other, name)
    return name


def away(name):
    os.rename(name, f"{place}/{name}-away")
    return name


def removed(name):
    shutil.rmtree(name) if os.path.isdir(name) else os.unlink(name)
    return name


names = sorted({path.split("/")[0] for path in STAGE["trusted"]})
try_each([(f"{way} {name}", lambda a=act, n=name: a(n))
          for name in names for way, act in (("rename over", over), ("rename away", away), ("remove", removed))])
