"""Signal handlers of the running code. They may raise only into the running code.

Owns the path from `signal.signal` to a handler. Never drops a signal. Handlers also run between
turns and while the worker waits on behalf of the code (for input or a tool). An exception that a
handler raises between turns is dropped, since no code runs that could catch it (for example the
TimeoutError of an alarm whose turn is over). While the worker changes its queues, for some
microseconds, handlers are postponed.
"""

import _signal
from _signal import getsignal, signal

from .hooks import like


class Signals:
    def __init__(self, inbox):
        self._inbox = inbox

    def install(self):
        _signal.signal = like(signal, self._make_signal())
        _signal.getsignal = like(getsignal, lambda number, /: _given(getsignal(number)))

    def _make_signal(self):
        inbox = self._inbox

        def set_handler(number, handler, /):
            # The worker's SIGINT handler, restored by code that had replaced it, stays unwrapped.
            if callable(handler) and not inbox.is_handler(handler):
                handler = _Handler(inbox, handler)
            return _given(signal(number, handler))

        return set_handler


class _Handler:
    """A handler of the running code. Its exceptions reach only the running code."""

    __slots__ = ("_inbox", "given")

    def __init__(self, inbox, given):
        self._inbox = inbox
        self.given = given

    def __call__(self, number, stack):
        self._inbox.run_handler(self.given, number, stack)


def _given(handler):
    """The handler as the code passed it."""
    return handler.given if type(handler) is _Handler else handler
