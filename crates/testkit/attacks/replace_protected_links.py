# name: replace trusted names that are symlinks
# line: 69
# finding: 8
# control: protected
# workspace: links
import os

from attack import STAGE, own_directory, try_each

place = own_directory("others")


def over(name):
    with open(f"{place}/{name}", "w", encoding="utf-8") as file:
        file.write("x")
    os.rename(f"{place}/{name}", name)
    return name


def link_over(name):
    os.symlink("elsewhere", f"{place}/{name}-link")
    os.rename(f"{place}/{name}-link", name)
    return name


def removed(name):
    os.unlink(name)
    return name


names = sorted({path.split("/")[0] for path in STAGE["trusted"]})
try_each([(f"{way} {name}", lambda a=act, n=name: a(n)) for name in names
          for way, act in (("rename over", over), ("symlink over", link_over), ("remove", removed))])
