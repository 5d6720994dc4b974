# name: put another .git in the place of the workspace's
# line: 50
# levels: full
import os
import shutil

from attack import own_directory, try_each

place = own_directory("other")


def away():
    os.rename(".git", f"{place}/git")
    return "moved .git away"


def over():
    os.mkdir(f"{place}/new")
    os.rename(f"{place}/new", ".git")
    return "moved another over it"


def removed():
    shutil.rmtree(".git")
    return "removed it"


def climbed():
    workspace = os.getcwd()
    os.rename(workspace, workspace + "-moved")
    return "moved the whole workspace"


try_each([("rename away", away), ("rename over", over), ("remove", removed), ("rename the workspace", climbed)])
