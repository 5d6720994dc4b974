"""Follows a session's events: each once, in order, over any number of connections.

Owns the position in the stream, and joins bodies that come in several events. Knows no socket.
"""

from __future__ import annotations

import codecs
import json
import time
from typing import Any, Iterator, Mapping, Optional

from . import _events as events
from ._calls import Call, events_stream, lost
from ._sse import EventTooLong, Parser

#: Number of streams in a row that may end at once without a new event before that is an error.
EMPTY_STREAMS_MAX = 20

#: A stream that lasted longer than this does not count as empty, even without an event, in seconds.
LONG_STREAM = 1.0

#: Kinds whose body may come in several events; all but the last have `more`.
_CONTINUED = ("turn_accepted", "display")


class Follower:
    """The state of one event stream, of a session or of one of its turns."""

    def __init__(self, session: str, after: int, turn: Optional[int] = None) -> None:
        self.session = session
        #: The last event that was seen.
        self.after = after
        #: No event follows.
        self.over = False
        self._turn = turn
        self._empty_streams = 0
        self._opened = 0.0
        self._parser = Parser()
        #: Bodies of which more follows, by kind.
        self._begun: dict[str, list[bytes]] = {}
        self._decoders: dict[tuple[Optional[int], str], codecs.IncrementalDecoder] = {}

    def open(self) -> Call:
        """The request for a stream from here on."""
        self._parser = Parser()
        self._opened = time.monotonic()
        return events_stream(self.session, self.after)

    def feed(self, data: bytes) -> Iterator[events.Event]:
        """The events that these bytes complete."""
        try:
            for whole in self._parser.feed(data):
                yield from self._take(json.loads(whole))
        except (EventTooLong, ValueError, KeyError) as error:
            raise events_stream(self.session, self.after).bad(error) from None

    def page(self, page: Mapping[str, Any]) -> Iterator[events.Event]:
        """Takes a page of events after a stream was closed. The page tells whether more can come.
        """
        for raw in page["events"]:
            yield from self._take(raw)
        if page["ended"]:
            self.over = True
        elif not self.over:
            self.cut("the node closed the stream")

    def cut(self, cause: object) -> None:
        """The stream ended. Raises after too many empty streams, so that a faulty node is not
        followed for ever."""
        was_long = time.monotonic() - self._opened > LONG_STREAM
        self._empty_streams = 0 if was_long else self._empty_streams + 1
        if self._empty_streams > EMPTY_STREAMS_MAX:
            self._empty_streams = 0
            raise lost(cause).error

    def _take(self, raw: Mapping[str, Any]) -> Iterator[events.Event]:
        # A node may repeat events that it is not sure we received.
        if self.over or raw["seq"] <= self.after:
            return
        self.after = raw["seq"]
        self._empty_streams = 0
        kind = raw["kind"]
        body = events.body_of(raw)
        if kind in _CONTINUED:
            self._begun.setdefault(kind, []).append(body)
            if raw.get("more"):
                return
            body = b"".join(self._begun.pop(kind))
        ours = self._turn is None or raw.get("turn") == self._turn
        if kind == "session_ended" or (kind == "turn_ended" and self._turn is not None and ours):
            self.over = True
        if ours or kind == "session_ended":
            yield events.make(raw, body, self._text(raw, body))

    def _text(self, raw: Mapping[str, Any], body: bytes) -> str:
        if raw["kind"] != "output":
            return body.decode("utf-8", "replace")
        # A character may be split between two events.
        key = (raw.get("turn"), raw["stream"])
        decoder = self._decoders.get(key)
        if decoder is None:
            if len(self._decoders) > 64:
                self._decoders.clear()
            decoder = codecs.getincrementaldecoder("utf-8")("replace")
            self._decoders[key] = decoder
        return decoder.decode(body)
