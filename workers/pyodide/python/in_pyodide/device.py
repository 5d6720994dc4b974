"""The worker's two devices: the protocol as bytes, and waits that an interrupt ends.

Owns the descriptors. The functions here are bound C functions: no bytecode runs between a read and
the use of its result, so no interrupt can lose received bytes.
"""

import os
from functools import partial
from itertools import count
from struct import Struct

_PROTOCOL = "/dev/windlass"
_WAIT = "/dev/windlass-wait"

_two_doubles = Struct("<dd").pack
_number = count(1).__next__
_write = os.write


class Device:
    def __init__(self):
        self.fd = os.open(_PROTOCOL, os.O_RDWR)
        ready = os.open(_PROTOCOL, os.O_RDWR | os.O_NONBLOCK)
        self.read = partial(os.read, self.fd)
        # Raises BlockingIOError if there are no bytes.
        self.read_ready = partial(os.read, ready)
        self.write = partial(os.write, self.fd)
        self._wait_fd = os.open(_WAIT, os.O_WRONLY)

    def sleep(self, seconds):
        """Sleep; a signal handler may raise."""
        if seconds > 0:
            _write(self._wait_fd, _two_doubles(seconds * 1000, _number()))

    def wait_for_bytes(self, seconds):
        """Wait until bytes have arrived or the time is over; None waits without end."""
        ms = float("inf") if seconds is None else max(seconds, 0) * 1000
        if ms:
            _write(self._wait_fd, _two_doubles(-ms, _number()))
