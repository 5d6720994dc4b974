# name: write .bashrc through symbolic links
# line: 50
import os

from attack import STAGE, append, own_directory, try_each

links = own_directory("links")
os.symlink(f"{STAGE['home']}/.bashrc", f"{links}/file")
os.symlink(STAGE["home"], f"{links}/home")
os.symlink(f"{STAGE['home']}/.new", f"{links}/dangling")


def create():
    os.close(os.open(f"{links}/dangling", os.O_CREAT | os.O_WRONLY))
    return "made a file through a dangling link"


try_each([
    ("a link to it", lambda: append(f"{links}/file")),
    ("a link to its directory", lambda: append(f"{links}/home/.bashrc")),
    ("a dangling link", create),
])
