"""The event loop: it blocks in the worker's device, so `await` works without JavaScript's own loop.

Owns the loop and its policy. A loop watches at most one descriptor, that of the protocol, on which
the results of tools arrive.
"""

import asyncio
from asyncio import events


class HostLoop(asyncio.BaseEventLoop):
    def __init__(self, device):
        super().__init__()
        self._device = device
        self._selector = self
        self._reader = None

    # The parts that BaseEventLoop asks for.

    def select(self, timeout):
        """Wait for bytes or the time; returns the readers to call."""
        if self._ready:
            # An interrupt has left a step since the loop chose the time.
            timeout = 0
        self._device.wait_for_bytes(timeout)
        return [self._reader] if self._reader is not None and timeout != 0 else []

    def _process_events(self, readers):
        for reader in readers:
            self._add_callback(reader)

    def _add_callback(self, handle):
        if not handle._cancelled:
            self._ready.append(handle)

    def _write_to_self(self):
        """No other thread can wake the loop."""

    def add_reader(self, fd, callback, *arguments):
        if fd != self._device.fd:
            raise NotImplementedError("this event loop watches no descriptors")
        self.remove_reader(fd)
        self._reader = events.Handle(callback, arguments, self, None)

    def remove_reader(self, fd):
        if fd != self._device.fd or self._reader is None:
            return False
        self._reader.cancel()
        self._reader = None
        return True

    def run_in_executor(self, _executor, function, *arguments):
        """There are no threads: the function runs at once."""
        future = self.create_future()
        try:
            future.set_result(function(*arguments))
        except Exception as error:
            future.set_exception(error)
        return future


class Policy(events._BaseDefaultEventLoopPolicy):
    def __init__(self, device):
        super().__init__()
        self._device = device

    def new_event_loop(self):
        return HostLoop(self._device)


def install(device):
    events._set_running_loop(None)
    events._set_event_loop_policy(Policy(device))
    asyncio.set_event_loop(None)
    # Pyodide has replaced it.
    asyncio.run = asyncio.runners.run


def leave(loop):
    """No loop runs here. An interrupt between two steps of `run_forever` can leave the marks of a
    running one."""
    events._set_running_loop(None)
    if loop is not None:
        loop._thread_id = None
        loop._stopping = False
