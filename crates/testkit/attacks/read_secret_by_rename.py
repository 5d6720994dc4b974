# name: rename a hidden directory, or one above it, to where it is not hidden
# line: 50
import os

from attack import STAGE, own_directory, secret_at, try_each

home = STAGE["home"]
inside = own_directory("taken")


def moved(source, target, then):
    os.rename(source, target)
    return secret_at(then)


try_each([
    ("into the workspace", lambda: moved(f"{home}/.aws", f"{inside}/aws", f"{inside}/aws/credentials")),
    ("beside", lambda: moved(f"{home}/.ssh", f"{home}/shown", f"{home}/shown/id_rsa")),
    ("the directory above", lambda: moved(home, home + "-moved", home + "-moved/.netrc")),
])
