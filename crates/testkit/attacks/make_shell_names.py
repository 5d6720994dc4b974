# name: make names in a project that shells and git read from a home only
# line: 69
# finding: 8
# levels: nowhere
# workspace: bare
from attack import STAGE, try_each


def made(path):
    with open(path, "x", encoding="utf-8") as file:
        file.write("x")
    return path


try_each([(path, lambda path=path: made(path)) for path in STAGE["trusted_in_homes"]])
