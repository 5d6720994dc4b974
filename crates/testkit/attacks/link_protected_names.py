# name: change trusted files through a second name
# line: 69
# finding: 8
# control: protected
# workspace: all names
import os

from attack import STAGE, append, own_directory, try_each

place = own_directory("second")


def linked(path):
    second = f"{place}/{path.replace('/', '-')}"
    os.link(path, second)
    return append(second)


def by_descriptor(path):
    descriptor = os.open(path, os.O_RDONLY)
    try:
        return append(f"/proc/self/fd/{descriptor}")
    finally:
        os.close(descriptor)


try_each([(f"{name} {path}", lambda a=act, p=path: a(p)) for path in STAGE["trusted"]
          for name, act in (("hard link", linked), ("descriptor", by_descriptor))])
