"""Follows a session's events: each once, in order, over any number of connections.

Owns the place that was reached and what is put together of several events; knows no socket.
"""

from __future__ import annotations

import codecs
import json
import time
from typing import Any, Iterator, Mapping, Optional

from . import _events as events
from ._calls import Call, events_stream, lost
from ._sse import EventTooLong, Parser

#: Streams in a row that may end at once and without a new event before that is an error.
FRUITLESS_MAX = 20

#: A stream that lasted so long was not fruitless, events or none, in seconds.
FRUITFUL_AFTER = 1.0

#: Kinds whose bytes may come in several events, all but the last with `more`.
_CONTINUED = ("turn_accepted", "display")


class Follower:
    """The state of one stream of events, of a session or of one turn of it."""

    def __init__(self, session: str, after: int, turn: Optional[int] = None) -> None:
        self.session = session
        #: The last event that was seen.
        self.after = after
        #: No event follows.
        self.over = False
        self._turn = turn
        self._fruitless = 0
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
        """Events that were asked for after a stream was closed, to know whether more can come."""
        for raw in page["events"]:
            yield from self._take(raw)
        if page["ended"]:
            self.over = True
        elif not self.over:
            self.cut("the node closed the stream")

    def cut(self, cause: object) -> None:
        """The stream ended. A node that ends every one at once is not followed for ever."""
        fruitful = time.monotonic() - self._opened > FRUITFUL_AFTER
        self._fruitless = 0 if fruitful else self._fruitless + 1
        if self._fruitless > FRUITLESS_MAX:
            self._fruitless = 0
            raise lost(cause).error

    def _take(self, raw: Mapping[str, Any]) -> Iterator[events.Event]:
        # A node may repeat what it is not sure we got.
        if self.over or raw["seq"] <= self.after:
            return
        self.after = raw["seq"]
        self._fruitless = 0
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
        # A character may be cut between two events.
        key = (raw.get("turn"), raw["stream"])
        decoder = self._decoders.get(key)
        if decoder is None:
            if len(self._decoders) > 64:
                self._decoders.clear()
            decoder = codecs.getincrementaldecoder("utf-8")("replace")
            self._decoders[key] = decoder
        return decoder.decode(body)
