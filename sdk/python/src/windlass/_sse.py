"""Server-sent events: bytes in, the data of whole events out. Owns the format; knows no connection."""

from __future__ import annotations

from typing import Iterator

#: The longest unfinished event. No node sends a longer one.
EVENT_BYTES_MAX = 8 * 1024 * 1024


class EventTooLong(Exception):
    """An event is longer than any node sends."""


class Parser:
    """Parses a stream that arrives in any pieces."""

    def __init__(self) -> None:
        self._pending = bytearray()
        #: Bytes at its start that hold no line end.
        self._searched = 0
        self._data: list[bytes] = []

    def feed(self, data: bytes) -> Iterator[bytes]:
        """The data of every event that is whole now."""
        self._pending += data
        while (end := self._pending.find(b"\n", self._searched)) >= 0:
            line = bytes(self._pending[:end]).rstrip(b"\r")
            del self._pending[: end + 1]
            self._searched = 0
            if line.startswith(b"data:"):
                self._data.append(line[6:] if line[5:6] == b" " else line[5:])
            elif not line and self._data:
                whole, self._data = b"\n".join(self._data), []
                yield whole
            # Comments keep the connection alive; ids are in the data as well.
        self._searched = len(self._pending)
        if self._searched > EVENT_BYTES_MAX:
            raise EventTooLong(f"an event is longer than {EVENT_BYTES_MAX} bytes")
