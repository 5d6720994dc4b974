# name: turn a descriptor that only names a secret into one that reads it
# line: 50
import os

from attack import STAGE, secret_at, try_each


def reopened():
    descriptor = os.open(f"{STAGE['home']}/.ssh/id_rsa", os.O_PATH)
    return secret_at(f"/proc/self/fd/{descriptor}")


def below_directory():
    descriptor = os.open(f"{STAGE['home']}/.ssh", os.O_PATH | os.O_DIRECTORY)
    return secret_at("id_rsa", dir_fd=descriptor)


def below_home():
    descriptor = os.open(STAGE["home"], os.O_PATH | os.O_DIRECTORY)
    return secret_at(".ssh/id_rsa", dir_fd=descriptor)


try_each([("the file", reopened), ("its directory", below_directory), ("the home", below_home)])
