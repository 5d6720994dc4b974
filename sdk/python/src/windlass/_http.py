"""HTTP/1.1 as bytes: requests out, answers in. Owns the format; knows no socket and no endpoint."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Iterable, Mapping, Optional
from urllib.parse import quote

#: The longest head of an answer.
HEAD_BYTES_MAX = 64 * 1024

#: How a refusal begins in TLS: a record with an alert, of any version.
TLS_ALERT = b"\x15\x03"

#: The largest answer that is read whole. Any display or output range fits.
ANSWER_BYTES_MAX = 64 * 1024 * 1024


class Malformed(Exception):
    """The answer is not HTTP."""


class AnswerInTls(Malformed):
    """The answer is a refusal in TLS: the other side speaks HTTPS."""


@dataclass
class Head:
    """An answer's first line and headers, names in lower case."""

    status: int
    headers: Mapping[str, str]

    @property
    def is_success(self) -> bool:
        return 200 <= self.status < 300


@dataclass
class AnswerParser:
    """Takes bytes as they arrive; returns the head, then the body's bytes."""

    head: Optional[Head] = None
    #: The body is complete.
    done: bool = False
    #: The connection can serve another request afterwards.
    reusable: bool = True
    _pending: bytearray = field(default_factory=bytearray)
    #: Bytes left in the body or its current chunk; None if the body ends with the connection.
    _left: Optional[int] = 0
    _chunked: bool = False
    _in_chunk: bool = False

    def feed(self, data: bytes) -> None:
        """Takes more bytes. An empty value means that the connection has ended."""
        if data:
            self._pending += data
            if self.head is None and self._pending.startswith(TLS_ALERT):
                raise AnswerInTls("the answer is in TLS")
        elif self.head is not None and self._left is None and not self._chunked:
            self.done = True
        else:
            raise EOFError("the connection ended in the middle of an answer")
        if self.head is None:
            self._read_head()

    def body(self) -> bytes:
        """The bytes of the body since the last call."""
        if self.head is None or self.done:
            return b""
        if self._chunked:
            return b"".join(self._chunks())
        if self._left is None:
            return self._take(len(self._pending))
        found = self._take(min(self._left, len(self._pending)))
        self._left -= len(found)
        self.done = self._left == 0
        return found

    def rest(self) -> bytes:
        """The bytes after the head of an upgraded connection."""
        return self._take(len(self._pending))

    def _read_head(self) -> None:
        end = self._pending.find(b"\r\n\r\n")
        if end < 0:
            if len(self._pending) > HEAD_BYTES_MAX:
                raise Malformed("the head of the answer is too long")
            return
        lines = self._take(end + 4)[:-4].decode("latin-1").split("\r\n")
        version, _, rest = lines[0].partition(" ")
        if not version.startswith("HTTP/1.") or not rest[:3].isdigit():
            raise Malformed("the answer is not HTTP")
        pairs = (line.partition(":") for line in lines[1:])
        headers = {name.strip().lower(): value.strip() for name, _, value in pairs}
        status = int(rest[:3])
        if 100 <= status < 200 and status != 101:
            return self._read_head()
        self.head = Head(status, headers)
        self.reusable = version == "HTTP/1.1" and headers.get("connection", "").lower() != "close"
        self._expect(status, headers)
        return None

    def _expect(self, status: int, headers: Mapping[str, str]) -> None:
        if status in (101, 204, 304):
            self.done = True
        elif headers.get("transfer-encoding", "").lower() == "chunked":
            self._chunked = True
        elif "content-length" in headers:
            self._left = int(headers["content-length"])
            self.done = self._left == 0
        else:
            self._left, self.reusable = None, False

    def _chunks(self) -> Iterable[bytes]:
        while not self.done:
            if self._in_chunk:
                assert self._left is not None
                found = self._take(min(self._left, len(self._pending)))
                self._left -= len(found)
                if found:
                    yield found
                if self._left or len(self._pending) < 2:
                    return
                self._take(2)
                self._in_chunk = False
            end = self._pending.find(b"\r\n")
            if end < 0:
                return
            size = int(bytes(self._pending[:end]).split(b";")[0], 16)
            if size:
                self._take(end + 2)
                self._left, self._in_chunk = size, True
            else:
                # A node sends no trailers: the empty line ends the body.
                if len(self._pending) < end + 4:
                    return
                self._take(end + 4)
                self.done = True

    def _take(self, count: int) -> bytes:
        found = bytes(memoryview(self._pending)[:count])
        del self._pending[:count]
        return found


def request_head(method: str, path: str, headers: Iterable[tuple[str, str]]) -> bytes:
    lines = [f"{method} {path} HTTP/1.1"]
    for name, value in headers:
        if "\r" in value or "\n" in value:
            raise ValueError(f"the header {name} has a line end in its value")
        lines.append(f"{name}: {value}")
    return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1")


def path(*parts: str, **query: object) -> str:
    """`/v1/PARTS?QUERY`, escaped. Parameters that are None are left out."""
    whole = "/v1/" + "/".join(quote(part, safe="") for part in parts)
    asked = "&".join(
        f"{name.rstrip('_')}={quote(_said(value), safe='')}"
        for name, value in query.items()
        if value is not None
    )
    return f"{whole}?{asked}" if asked else whole


def _said(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
