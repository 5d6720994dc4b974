"""The running code's own signal handlers: they may raise into the running code, and nowhere else.

Owns the way from `signal.signal` to a handler. Never drops a signal: between turns, and while the
worker waits for the code, a handler runs as ever; only what it raises between turns (the
TimeoutError of an alarm whose turn is over) has no code left that could want it. While the worker
is at work on its queues, for some microseconds, it is put off.
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
            # The interrupt's own handler, put back by code that had replaced it, stays as it is.
            if callable(handler) and not inbox.is_handler(handler):
                handler = _Handler(inbox, handler)
            return _given(signal(number, handler))

        return set_handler


class _Handler:
    """A handler of the code's, with its exceptions kept where they belong."""

    __slots__ = ("_inbox", "given")

    def __init__(self, inbox, given):
        self._inbox = inbox
        self.given = given

    def __call__(self, number, stack):
        self._inbox.run_handler(self.given, number, stack)


def _given(handler):
    """The handler as the code gave it."""
    return handler.given if type(handler) is _Handler else handler
