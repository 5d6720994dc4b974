"""Errors of files that say more than their number.

A system call in Pyodide fails with a number only, and the interpreter adds a fixed text. The worker
keeps the text of its last failure in a device. The classes here take that text when the interpreter
makes the exception: it finds the class of an OSError in a table by number, and they stand there
instead of the built-in ones.
"""

import errno
import gc
import os

_FAILURE = "/dev/windlass-failure"
_TEXT_BYTES_MAX = 8192


def install():
    table = _table()
    if table is None:
        # An unknown version of the interpreter: errors have their fixed texts.
        return
    fd = os.open(_FAILURE, os.O_RDONLY)
    read = os.read

    def failure():
        return read(fd, _TEXT_BYTES_MAX).decode("utf-8", "replace")

    for number, base in (
        (errno.ETIMEDOUT, TimeoutError), (errno.EPERM, PermissionError), (errno.EIO, OSError),
    ):
        table[number] = _named(number, base, failure)


def _table():
    """The interpreter's table from error numbers to classes."""
    for candidate in gc.get_referrers(TimeoutError):
        if type(candidate) is dict and candidate.get(errno.ENOENT) is FileNotFoundError:
            return candidate
    return None


def _named(number, base, failure):
    fixed = os.strerror(number)

    def __init__(self, *arguments):
        if len(arguments) > 1 and arguments[1] == fixed:
            arguments = (arguments[0], failure() or fixed, *arguments[2:])
        base.__init__(self, *arguments)

    made = type(base.__name__, (base,), {"__init__": __init__, "__module__": "builtins"})
    made.__qualname__ = base.__name__
    return made
