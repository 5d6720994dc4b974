# name: plant a git hook in the workspace
# line: 50
# levels: full
import os

from attack import append, try_each


def plant():
    with open(".git/hooks/post-checkout", "w", encoding="utf-8") as file:
        file.write("#!/bin/sh\nevil\n")
    return "post-checkout"


def alias():
    os.rename(".git/hooks", ".git/hooks.old")
    return "renamed the hooks"


try_each([("a new hook", plant), ("an old one", lambda: append(".git/hooks/pre-commit")),
          ("the config", lambda: append(".git/config")), ("rename", alias)])
