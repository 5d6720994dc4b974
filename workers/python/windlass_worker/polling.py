"""Waits for the socket in a thread, so that other threads can end the wait.

Owns a pipe for waking the thread. Imported when a thread first waits for a tool.
"""

from fcntl import F_DUPFD_CLOEXEC, fcntl
from posix import close, pipe, read, set_blocking, write
from select import POLLIN, poll

# A high number, if possible, since some code expects the numbers from 3 to be free.
_HIGH_DESCRIPTOR = 200


class Poll:
    """For one thread at a time."""

    def __init__(self, fd):
        self._end, self._start = map(_moved, pipe())
        set_blocking(self._end, False)
        set_blocking(self._start, False)
        self._poll = poll()
        self._poll.register(fd, POLLIN)
        self._poll.register(self._end, POLLIN)

    def wait(self):
        """Wait until bytes arrive or `wake` is called (or was called since the last wait)."""
        for fd, _ in self._poll.poll():
            if fd == self._end:
                try:
                    read(fd, 4096)
                except BlockingIOError:
                    pass

    def wake(self):
        try:
            write(self._start, b"w")
        except BlockingIOError:
            # The pipe is full, so the thread wakes anyway.
            pass


def _moved(fd):
    try:
        moved = fcntl(fd, F_DUPFD_CLOEXEC, _HIGH_DESCRIPTOR)
    except OSError:
        return fd
    close(fd)
    return moved
