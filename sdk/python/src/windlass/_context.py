"""The current tool call of the running code, if there is one."""

from __future__ import annotations

import time
from contextvars import ContextVar
from typing import Optional


class ToolCall:
    """A call of a host tool, as its function can see it."""

    __slots__ = ("call", "cancel_reason", "cancelled", "deadline", "name", "session", "turn")

    def __init__(
        self, session: str, turn: int, call: int, name: str, deadline_ms: Optional[int]
    ) -> None:
        self.session = session
        self.turn = turn
        self.call = call
        self.name = name
        #: When the code stops waiting, by `time.monotonic()`.
        self.deadline = None if deadline_ms is None else time.monotonic() + deadline_ms / 1000
        #: True when no code waits for the answer any more. A long function should check it from
        #: time to time.
        self.cancelled = False
        #: `interrupted`, `deadline`, `given_up`, `turn_over` or `connection_lost`, once the call is
        #: cancelled.
        self.cancel_reason: Optional[str] = None

    @property
    def remaining(self) -> Optional[float]:
        """Seconds until the deadline; never below 0."""
        return None if self.deadline is None else max(0.0, self.deadline - time.monotonic())

    @property
    def key(self) -> tuple[str, int, int]:
        """The key of the call."""
        return (self.session, self.turn, self.call)

    @property
    def within(self) -> str:
        """The value for the header `windlass-within`."""
        return f"{self.session}/{self.turn}/{self.call}"

    def __repr__(self) -> str:
        return f"<tool call {self.name} of {self.within}>"


CURRENT: ContextVar[Optional[ToolCall]] = ContextVar("windlass_tool_call", default=None)


def current_call() -> ToolCall:
    """The call that this code answers. Only inside a tool's function."""
    call = CURRENT.get()
    if call is None:
        raise RuntimeError("there is no current call outside a tool's function")
    return call
