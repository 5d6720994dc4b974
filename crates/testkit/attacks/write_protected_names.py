# name: change each name that shells, agents, editors and git trust, where it exists
# line: 69
# finding: 8
# control: protected
# workspace: all names
import os

from attack import STAGE, append, try_each


def shortened(path):
    os.truncate(path, 1)
    return path


def beside(path):
    directory = os.path.dirname(path)
    if not directory:
        raise FileNotFoundError(2, "no directory")
    with open(f"{directory}/new", "w", encoding="utf-8") as file:
        file.write("x")
    return f"{directory}/new"


try_each([(f"{name} {path}", lambda a=act, p=path: a(p))
          for path in STAGE["trusted"]
          for name, act in (("append to", append), ("truncate", shortened), ("make beside", beside))])
