"""Shows the calls of host tools as they happen, on standard error."""

from __future__ import annotations

import json
import sys
import time
from typing import Optional, TextIO

from ._context import ToolCall

#: Longest shown argument list, result or error, in characters.
SHOWN_MAX = 400


class CallPrinter:
    """Prints a line when a call begins and a line when it ends."""

    def __init__(self, stream: Optional[TextIO] = None) -> None:
        self._stream = stream

    def began(self, call: ToolCall, arguments: bytes) -> float:
        """Returns the time of the call's beginning, for `ended`."""
        self._print(call, f"-> {call.name}({_shown(arguments)})")
        return time.monotonic()

    def ended(self, call: ToolCall, ok: bool, body: memoryview, began: float) -> None:
        took_ms = (time.monotonic() - began) * 1000
        said = _shown(bytes(body)) if ok else _error(bytes(body))
        mark = "<-" if ok else "!!"
        self._print(call, f"{mark} {call.name}: {said} ({took_ms:.0f} ms)")

    def _print(self, call: ToolCall, line: str) -> None:
        stream = self._stream or sys.stderr
        try:
            # One write, so that lines of concurrent calls stay whole.
            stream.write(f"windlass: [{call.session} {call.turn}.{call.call}] {line}\n")
            stream.flush()
        except (OSError, ValueError):
            pass  # A closed standard error must not fail the call.


def _shown(body: bytes) -> str:
    # A character takes at most four bytes.
    text = body[: 4 * SHOWN_MAX].decode("utf-8", "replace")
    text = text.replace("\n", "\\n")
    return text if len(text) <= SHOWN_MAX else text[:SHOWN_MAX] + "..."


def _error(body: bytes) -> str:
    said = json.loads(body)
    kind = said.get("type") or said.get("code") or "error"
    return _shown(f"{kind}: {said['message']}".encode("utf-8", "replace"))
