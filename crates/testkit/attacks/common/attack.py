"""What every attack in Python shares: the stage that it plays on, and how it says how it went."""

import errno
import json
import os
import re

HERE = os.path.dirname(os.path.abspath(__file__))
with open(os.path.join(HERE, "stage.json"), encoding="utf-8") as file:
    STAGE = json.load(file)

# Every secret looks so. No program holds one, only the pattern.
CANARY = re.compile(rb"windlass-canary-[0-9a-f]{16}")

# What one read takes.
BYTES_MAX = 4 * 1024 * 1024


def refused(by):
    print("refused:", by, flush=True)
    raise SystemExit(0)


def through(what):
    print("through:", what, flush=True)
    raise SystemExit(0)


def error_name(error):
    if isinstance(error, OSError) and error.errno:
        return errno.errorcode.get(error.errno, str(error.errno))
    return type(error).__name__


def try_each(tries):
    """Runs every try, a name and a function. The first that returns anything is through; the errors
    of the others are what refused them."""
    by = {}
    for name, act in tries:
        try:
            got = act()
        except (OSError, ValueError) as error:
            by.setdefault(error_name(error), []).append(name)
        else:
            if got:
                through(f"{name}: {got}")
            by.setdefault("nothing there", []).append(name)
    if not by:
        refused("nothing to try")
    some = (f"{error} on {', '.join(names[:3])}{' ...' if names[3:] else ''}" for error, names in by.items())
    refused("; ".join(some))


def canary_in(data):
    """The secret in the bytes, as text, or None."""
    found = CANARY.search(data)
    return found and found.group().decode()


def read(path, **options):
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK, **options)
    try:
        return os.read(descriptor, BYTES_MAX)
    finally:
        os.close(descriptor)


def secret_at(path, **options):
    return canary_in(read(path, **options))


def append(path, text="# windlass-attack\n"):
    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND)
    try:
        os.write(descriptor, text.encode())
    finally:
        os.close(descriptor)
    return f"wrote {path}"


def opened_to_write(path):
    """Opens for writing, and writes nothing: harmless wherever it succeeds."""
    os.close(os.open(path, os.O_WRONLY | os.O_APPEND | os.O_NONBLOCK | os.O_NOCTTY))
    return f"opened {path} for writing"


def can_make_in(directory):
    """Makes a file without a name in the directory: it is gone when it is closed."""
    os.close(os.open(directory, os.O_TMPFILE | os.O_RDWR, 0o600))
    return f"made a file in {directory}"


def processes():
    """The processes that can be listed; where none can, those that are known by number."""
    try:
        return [name for name in os.listdir("/proc") if name.isdigit()]
    except OSError:
        known = {value for key, value in STAGE.items() if key.endswith(("_pid", "_number"))}
        return [str(pid) for pid in sorted(known | set(range(1, 33)))]


def below(directory):
    """Every file below, as far as it can be listed; an error at the top is the caller's."""
    os.listdir(directory)
    return [os.path.join(place, name) for place, _, names in os.walk(directory) for name in names]


def own_directory(name):
    """A fresh directory in the workspace."""
    import tempfile

    return tempfile.mkdtemp(prefix=name + "-", dir=os.getcwd())
