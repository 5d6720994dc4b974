# name: write to a terminal of the host's
# line: 51
# judged: outside
import os

from attack import STAGE, try_each


def written():
    descriptor = os.open(STAGE["tty"], os.O_WRONLY | os.O_NOCTTY)
    os.write(descriptor, b"\033]0;evil\007")
    return STAGE["tty"]


try_each([("write", written)])
