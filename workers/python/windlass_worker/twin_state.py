"""The state that a fork carries, and what it does not: descriptors, directory, random sources.

Owns the list of what the twin does not have, and the twin's first steps before it reports that it
is ready. Never changes a variable of the session's code.

A fork shares descriptors: both processes would read from one connection and move one file offset.
So the twin opens files again, and those of the workspace in its copy. Descriptors that cannot be
opened again are replaced by a socket whose other end is closed.
"""

import os
import sys
from _socket import socketpair
from _thread import get_ident
from fcntl import F_DUPFD_CLOEXEC, F_GETFL, fcntl
from stat import S_ISCHR, S_ISDIR, S_ISFIFO, S_ISREG, S_ISSOCK

from . import afresh, awaiting
from .plain_json import encoded

NAMED_MAX = 256
# The protocol socket is moved to a high descriptor, since some code expects the numbers from 3 to
# be free.
_HIGH_DESCRIPTORS = (900, 200, 50)
_GPU = ("/dev/nvidia", "/dev/dri/", "/dev/kfd")
# Flags that are kept when a file is opened again. Creating and truncating are not.
_KEPT_FLAGS = os.O_ACCMODE | os.O_APPEND | os.O_NONBLOCK | os.O_DIRECTORY | os.O_SYNC
_OF_WORKER = (0, 1, 2)


class State:
    """The open descriptors, read before the fork: the twin may not be able to read its own."""

    def __init__(self, workspace, copy, own):
        self._workspace = workspace
        self._copy = copy
        # Descriptors that belong to the worker.
        own = {*_OF_WORKER, *own, *_of_loop()}
        self._open = [one for one in _descriptors() if one[0] not in own]
        self._of_loop = [one for one in _descriptors() if one[0] in _of_loop()]

    def not_carried(self):
        """The things that the twin will not have, as JSON."""
        found = [*_threads(), *_processes()]
        for fd, path, kind in self._open:
            if kind != "file":
                found.append((kind, "%d: %s" % (fd, _socket_name(fd, path))))
            elif not path or path.endswith(" (deleted)"):
                found.append(("descriptor", "%d: %s" % (fd, path)))
        found += _shared_memory()
        if len(found) > NAMED_MAX:
            more = len(found) - NAMED_MAX
            found[NAMED_MAX:] = [("more", "%d others" % more)]
        return encoded([{"what": what, "name": _plain(name)} for what, name in found])

    def take_over(self, ends):
        """Replace shared descriptors and state in the twin. Returns the descriptor of its protocol
        socket."""
        protocol, stdout, stderr = ends
        os.dup2(stdout, 1)
        os.dup2(stderr, 2)
        os.close(stdout)
        os.close(stderr)
        protocol = _out_of_the_way(protocol)
        self._part_from_descriptors()
        self._enter()
        afresh.secrets()
        _leave_tracker()
        return protocol

    def _part_from_descriptors(self):
        dead, other = socketpair()
        other.close()
        for fd, path, kind in self._open + self._of_loop:
            if path.startswith("/dev/") and kind == "file":
                continue
            try:
                if kind != "file" or not self._open_again(fd, path):
                    os.dup2(dead.fileno(), fd, os.get_inheritable(fd))
            except OSError:
                # A finalizer closed it meanwhile.
                pass
        dead.close()

    def _open_again(self, fd, path):
        """Open a file or directory again, with its own offset. Returns whether that worked."""
        target = self._moved(path)
        try:
            if target is None:
                target = path if _is_at(fd, path) else "/proc/self/fd/%d" % fd
            new = os.open(target, fcntl(fd, F_GETFL) & _KEPT_FLAGS | os.O_CLOEXEC)
        except (OSError, ValueError):
            return False
        try:
            os.lseek(new, os.lseek(fd, 0, os.SEEK_CUR), os.SEEK_SET)
        except OSError:
            # The offset of a directory means nothing in another one.
            pass
        os.dup2(new, fd, os.get_inheritable(fd))
        os.close(new)
        return True

    def _moved(self, path):
        """The path in the copy, if it is in the workspace."""
        if path == self._workspace:
            return self._copy
        if path.startswith(self._workspace + "/"):
            return self._copy + path[len(self._workspace) :]
        return None

    def _enter(self):
        """Change to the copy's directory."""
        try:
            directory = self._moved(os.getcwd())
        except OSError:
            directory = self._copy
        if directory is not None:
            try:
                os.chdir(directory)
            except OSError:
                os.chdir(self._copy)
        if "PWD" in os.environ:
            os.environ["PWD"] = os.getcwd()
        sys.path[:] = [
            self._found_at(entry) if type(entry) is str else entry for entry in sys.path
        ]

    def _found_at(self, entry):
        """The path of an entry of sys.path. A virtual environment is not copied, and keeps its path."""
        moved = self._moved(entry)
        if moved is None or not os.path.exists(moved) and os.path.exists(entry):
            return entry
        return moved


def _plain(name):
    return name.encode("utf-8", "backslashreplace").decode("utf-8")


def _is_at(fd, path):
    """Whether the open file is still the one at the path."""
    try:
        return os.path.samestat(os.fstat(fd), os.stat(path))
    except OSError:
        return False


def _out_of_the_way(fd):
    for lowest in _HIGH_DESCRIPTORS:
        try:
            moved = fcntl(fd, F_DUPFD_CLOEXEC, lowest)
        except OSError:
            continue
        os.close(fd)
        return moved
    return fd


def _threads():
    threading = sys.modules.get("threading")
    if threading is None:
        return
    for thread in threading.enumerate():
        if thread.ident not in (get_ident(), None):
            yield "thread", thread.name


def _processes():
    """Processes that the code has started and that run."""
    try:
        for task in os.listdir("/proc/self/task"):
            with open("/proc/self/task/%s/children" % task, "rb", 0) as file:
                for pid in file.read(4096).split():
                    yield "process", "%d: %s" % (int(pid), _program(int(pid)))
    except OSError:
        pass


def _program(pid):
    try:
        with open("/proc/%d/comm" % pid, "rb", 0) as file:
            return file.read(64).decode("utf-8", "replace").strip()
    except OSError:
        return "?"


def _descriptors():
    """(number, path, kind) of each open descriptor."""
    try:
        numbers = [int(name) for name in os.listdir("/proc/self/fd")]
    except OSError:
        # A twin without its own view of the file system may not read its own `/proc`.
        numbers = range(os.sysconf("SC_OPEN_MAX"))
    for fd in numbers:
        try:
            mode = os.fstat(fd).st_mode
        except OSError:
            # The descriptor of the listing itself, or a number that is not open.
            continue
        try:
            path = os.readlink("/proc/self/fd/%d" % fd)
        except OSError:
            path = ""
        yield fd, path, _kind(mode, path)


def _kind(mode, path):
    if S_ISREG(mode) or S_ISDIR(mode):
        return "file"
    if S_ISSOCK(mode):
        return "socket"
    if S_ISFIFO(mode):
        return "pipe"
    if S_ISCHR(mode):
        # Harmless devices have no state to share.
        return "gpu" if path.startswith(_GPU) else "file"
    return "descriptor"


def _socket_name(fd, path):
    """A socket's peer or own address, if known."""
    if not path.startswith("socket:"):
        return path
    from _socket import socket

    try:
        copy = socket(fileno=os.dup(fd))
        try:
            address = copy.getpeername() or copy.getsockname()
        finally:
            copy.close()
    except OSError:
        return path
    return "%s %s" % (path, address) if address else path


def _of_loop():
    """The descriptors of the session's event loop. A twin has no loop until it awaits."""
    loop = awaiting.current()
    found = []
    for name in ("_selector", "_ssock", "_csock"):
        try:
            found.append(getattr(loop, name).fileno())
        except (AttributeError, ValueError):
            pass
    return found


def _shared_memory():
    """Writable memory that a fork does not copy."""
    try:
        with open("/proc/self/maps", "rb") as file:
            lines = file.read().splitlines()
    except OSError:
        return
    seen = set()
    for line in lines:
        parts = line.split(None, 5)
        if parts[1][1:2] == b"w" and parts[1][3:4] == b"s" and len(parts) == 6:
            seen.add(parts[5].decode("utf-8", "replace"))
    for name in sorted(seen):
        yield "shared_memory", name


def _leave_tracker():
    """Forget the pipe to `multiprocessing`'s tracker, which belongs to the original."""
    tracker = sys.modules.get("multiprocessing.resource_tracker")
    if tracker is not None:
        tracker._resource_tracker._fd = tracker._resource_tracker._pid = None
