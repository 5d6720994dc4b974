# name: change what trusted names lead to, where they are symlinks to other names in the workspace
# line: 69
# finding: 8
# control: protected
# workspace: links
import os

from attack import STAGE, append, try_each


def behind(path):
    """The same file by the name that the link leads to."""
    name, _, rest = path.partition("/")
    return append(os.path.join(os.readlink(name), rest).rstrip("/"))


try_each([(f"{name} {path}", lambda a=act, p=path: a(p)) for path in STAGE["trusted"]
          for name, act in (("by its name", append), ("by the other name", behind))])
