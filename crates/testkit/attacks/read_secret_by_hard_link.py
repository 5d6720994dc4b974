# name: read a secret through a hard link made in the workspace
# line: 50
import os

from attack import STAGE, own_directory, secret_at, try_each

links = own_directory("links")


def linked(name, **options):
    os.link(f"{STAGE['home']}/.ssh/id_rsa", f"{links}/{name}", **options)
    return secret_at(f"{links}/{name}")


def linked_descriptor():
    descriptor = os.open(f"{STAGE['home']}/.ssh/id_rsa", os.O_PATH)
    os.link(f"/proc/self/fd/{descriptor}", f"{links}/descriptor", follow_symlinks=True)
    return secret_at(f"{links}/descriptor")


try_each([("link", lambda: linked("plain")), ("link of a descriptor", linked_descriptor)])
