# name: make each name that agents, editors and git trust in a project, where it is missing
# line: 69
# finding: 8
# control: protected
# workspace: bare
import os
import stat

from attack import STAGE, own_directory, try_each

place = own_directory("made")
with open(f"{place}/file", "w", encoding="utf-8") as made:
    made.write("x")


def written(name):
    with open(name, "x", encoding="utf-8") as file:
        file.write("x")


def moved(name):
    os.mkdir(f"{place}/{name}")
    os.rename(f"{place}/{name}", name)


WAYS = {
    "create": written,
    "mkdir": os.mkdir,
    "symlink": lambda name: os.symlink("file", name),
    "hard link": lambda name: os.link(f"{place}/file", name),
    "mknod": lambda name: os.mknod(name, stat.S_IFREG | 0o600),
    "rename": moved,
}


def tried(way, name):
    WAYS[way](name)
    return name if os.path.lexists(name) else None


names = sorted({path.split("/")[0] for path in STAGE["trusted_in_projects"]})
try_each([(f"{way} {name}", lambda w=way, n=name: tried(w, n)) for name in names for way in WAYS])
