# name: make files in trusted directories that are missing, with every directory on the way
# line: 69
# finding: 8
# control: protected
# workspace: bare
import os

from attack import STAGE, try_each


def made(path):
    os.makedirs(os.path.dirname(path) or ".", exist_ok=True)
    with open(path, "w", encoding="utf-8") as file:
        file.write("x")
    return path


try_each([(path, lambda path=path: made(path)) for path in STAGE["trusted_in_projects"]])
