"""Describes the error that ended a turn: the traceback, and the error's name and message.

Owns the form of a traceback: as the interactive interpreter prints it, without frames of the
worker. Calls the `sys.excepthook` of a program. An error that cannot be described (its `__str__`
raises, or no memory is left) is reported all the same. Imported with the first error of a session.
"""

import os
import sys
from traceback import TracebackException

from .cell import FILE_NAMES

NAME_CHARS_MAX = 200

_WORKER = os.path.dirname(os.path.abspath(__file__)) + os.sep


def remember(error):
    """Store the error where `pdb.pm()` finds it."""
    # The frames of a MemoryError keep the missing memory in use.
    if not isinstance(error, MemoryError):
        sys.last_type, sys.last_value, sys.last_traceback = type(error), error, error.__traceback__
        sys.last_exc = error


def traceback_text(error):
    trace = TracebackException(type(error), error, error.__traceback__)
    _strip(trace, set())
    if not trace.stack and isinstance(error, SyntaxError) and trace.filename in FILE_NAMES:
        # The interpreter names the file only once.
        return "".join(trace.format_exception_only())
    return "".join(trace.format())


def show_by_hook(error):
    """Call the `sys.excepthook` that a program has set. Returns whether the hook has shown the
    error. Raises the SystemExit of the hook."""
    hook = getattr(sys, "excepthook", None)
    if hook is sys.__excepthook__:
        return False
    if not hasattr(sys, "excepthook"):
        sys.stderr.write("sys.excepthook is missing\n")
        return False
    trace = error.__traceback__
    while trace is not None and _is_workers(trace.tb_frame.f_code.co_filename):
        trace = trace.tb_next
    error.__traceback__ = trace
    try:
        hook(type(error), error, trace)
    except SystemExit:
        raise
    except BaseException as failure:
        text = _failure_text(failure)
        sys.stderr.write("Error in sys.excepthook:\n%s\nOriginal exception was:\n" % text)
        return False
    return True


def _failure_text(failure):
    if failure.__traceback__.tb_next is None:
        # The hook was not called, so no frame is the program's.
        return "".join(TracebackException(type(failure), failure, None).format_exception_only())
    return traceback_text(failure)


def name_of(error):
    return type(error).__name__[:NAME_CHARS_MAX]


def message_of(error):
    try:
        return str(error)
    except BaseException:
        return "<the error's message cannot be shown>"


def _is_cell(name):
    return name.startswith("<cell ") or name in FILE_NAMES


def _is_workers(name):
    return name.startswith(_WORKER)


def _strip(trace, seen):
    """Remove the worker's frames, and those of the event loop that lead to the cell."""
    if trace is None or id(trace) in seen:
        return
    seen.add(id(trace))
    stack = trace.stack
    first = next((at for at, line in enumerate(stack) if _is_cell(line.filename)), None)
    if first is not None and _is_workers(stack[0].filename):
        del stack[:first]
    stack[:] = [line for line in stack if not _is_workers(line.filename)]
    _strip(trace.__cause__, seen)
    _strip(trace.__context__, seen)
    for inner in getattr(trace, "exceptions", None) or ():
        _strip(inner, seen)
