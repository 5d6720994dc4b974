"""The client's end of a WebSocket, blocking: binary messages out and in. Owns the framing; knows no
message.

One thread reads at a time; any thread writes.
"""

from __future__ import annotations

import base64
import hashlib
import os
import socket
import threading
from struct import Struct
from typing import Optional, Union

from ._frames import FRAME_BYTES_MAX
from ._http import Head
from ._tls import TlsSocket

#: The longest message: one protocol frame with its first length word.
MESSAGE_BYTES_MAX = FRAME_BYTES_MAX + 4

#: Space for a message and the bytes before it.
BUFFER_BYTES = 2 * MESSAGE_BYTES_MAX

#: Up to this size, a copy costs less than a second buffer for the kernel.
COPY_BYTES_MAX = 16 * 1024

_GUID = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
_CONTINUED, _BINARY, _CLOSE, _PING, _PONG = 0x0, 0x2, 0x8, 0x9, 0xA
_WHOLE_BINARY = 0x80 | _BINARY
_SHORT, _LONG, _WHOLE = Struct(">H"), Struct(">Q"), Struct(">BBQ")
_MEDIUM = Struct(">BBH")
_NO_KEY = bytes(4)


class Closed(ConnectionError):
    """The other side has closed the connection or broken the protocol."""


def upgrade_key() -> str:
    return base64.b64encode(os.urandom(16)).decode()


def upgrade_headers(key: str) -> tuple[tuple[str, str], ...]:
    return (
        ("connection", "Upgrade"),
        ("upgrade", "websocket"),
        ("sec-websocket-version", "13"),
        ("sec-websocket-key", key),
    )


def is_upgraded(head: Head, key: str) -> bool:
    wanted = base64.b64encode(hashlib.sha1(key.encode() + _GUID).digest()).decode()
    return head.status == 101 and head.headers.get("sec-websocket-accept") == wanted


class WebSocket:
    """An upgraded connection. `rest` holds the bytes after the answer's head."""

    def __init__(self, sock: Union[socket.socket, TlsSocket], rest: bytes, *, mask: bool) -> None:
        self._sock = sock
        self._buffer = bytearray(BUFFER_BYTES)
        self._view = memoryview(self._buffer)
        self._view[: len(rest)] = rest
        self._start, self._end = 0, len(rest)
        #: A thread was woken because the socket has bytes, and has not read them yet.
        self.unread = False
        self._sending = threading.Lock()
        # Masking protects proxies. Without a proxy, a key of zeros costs nothing.
        self._mask = mask

    def fileno(self) -> int:
        return self._sock.fileno()

    @property
    def has_more(self) -> bool:
        """Whether there are bytes of a next message, read or not, for which no other thread was
        woken."""
        return self._start < self._end or self.unread

    def receive(self) -> Optional[memoryview]:
        """The next message, valid until the next call; None if none has arrived. Waits for the rest
        of a partial message."""
        start = self._start
        if start == self._end:
            self._start = self._end = start = 0
            self.unread = False
            try:
                got = self._sock.recv_into(self._view, 0, socket.MSG_DONTWAIT)
            except BlockingIOError:
                return None
            if not got:
                raise Closed("the connection has ended")
            self._end = got
            self.unread = got == BUFFER_BYTES
        # Most messages are small and arrive complete.
        buffer = self._buffer
        if buffer[start] == _WHOLE_BINARY:
            length, begin = buffer[start + 1], start + 2
            if length == 126:
                length, begin = buffer[start + 2] << 8 | buffer[start + 3], start + 4
            end = begin + length
            if length != 127 and end <= self._end:
                self._start = end
                return self._view[begin:end]
        return self._assemble()

    def _assemble(self) -> Optional[memoryview]:
        whole = bytearray()
        while True:
            final, opcode, payload = self._frame()
            if opcode == _PING:
                self._send(_PONG, bytes(payload))
            elif opcode == _CLOSE:
                self._answer_close(bytes(payload))
            elif opcode not in (_BINARY, _CONTINUED, _PONG):
                raise Closed(f"a message of the kind {opcode} came")
            elif opcode != _PONG and final and not whole:
                return payload
            elif opcode != _PONG:
                whole += payload
                if len(whole) > MESSAGE_BYTES_MAX:
                    raise Closed("a message is too long")
                if final:
                    return memoryview(whole)
            if opcode in (_PING, _PONG) and not whole and self._start == self._end:
                return None

    def send(self, head: bytes, body: Union[bytes, memoryview] = b"") -> None:
        """Sends one message, made of two parts."""
        self._send(_BINARY, head, body)

    def close(self) -> None:
        """Closes the connection; the reading thread finds the end."""
        try:
            if self._sending.acquire(blocking=False):
                try:
                    self._sock.send(b"\x88\x80" + _NO_KEY, socket.MSG_DONTWAIT)
                finally:
                    self._sending.release()
        except OSError:
            pass
        self.abort()

    def abort(self) -> None:
        """Closes the connection without a close frame."""
        try:
            self._sock.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass
        # The reading thread closes the descriptor when it has seen the end: a descriptor in use
        # must not be reused.

    def dispose(self) -> None:
        """Closes the descriptor; only while no thread reads."""
        with self._sending:
            self._sock.close()

    def _frame(self) -> tuple[bool, int, memoryview]:
        if self._start == self._end:
            self._start = self._end = 0
        self._need(2)
        first, second = self._buffer[self._start], self._buffer[self._start + 1]
        length, head = second & 0x7F, 2
        if length == 126:
            head = 4
            self._need(head)
            (length,) = _SHORT.unpack_from(self._buffer, self._start + 2)
        elif length == 127:
            head = 10
            self._need(head)
            (length,) = _LONG.unpack_from(self._buffer, self._start + 2)
        if second & 0x80 or first & 0x70 or length > MESSAGE_BYTES_MAX:
            raise Closed("the node sent an invalid WebSocket frame")
        self._need(head + length)
        begin = self._start + head
        self._start = begin + length
        return bool(first & 0x80), first & 0x0F, self._view[begin : begin + length]

    def _need(self, count: int) -> None:
        """Reads until `count` bytes are available."""
        while self._end - self._start < count:
            if self._start + count > BUFFER_BYTES:
                length = self._end - self._start
                self._view[:length] = bytes(self._view[self._start : self._end])
                self._start, self._end = 0, length
            got = self._sock.recv_into(self._view[self._end :])
            if not got:
                raise Closed("the connection has ended")
            self._end += got
            self.unread = self._end == BUFFER_BYTES

    def _answer_close(self, payload: bytes) -> None:
        try:
            self._send(_CLOSE, payload[:2])
        except OSError:
            pass
        why = payload[2:].decode("utf-8", "replace")
        raise Closed(f"the node has closed the connection{': ' + why if why else ''}")

    def _send(self, opcode: int, head: bytes, body: Union[bytes, memoryview] = b"") -> None:
        length = len(head) + len(body)
        opening = _opening(opcode, length)
        if self._mask:
            key = os.urandom(4)
            with self._sending:
                self._sock.sendall(opening + key + _masked(head + bytes(body), key))
        elif len(body) <= COPY_BYTES_MAX:
            with self._sending:
                self._sock.sendall(b"".join((opening, _NO_KEY, head, body)))
        else:
            with self._sending:
                self._send_parts(opening + _NO_KEY + head, body)

    def _send_parts(self, head: bytes, body: Union[bytes, memoryview]) -> None:
        sent = self._sock.sendmsg((head, body))
        if sent < len(head):
            self._sock.sendall(memoryview(head)[sent:])
            sent = len(head)
        left = memoryview(body)[sent - len(head) :]
        if left:
            self._sock.sendall(left)


def _opening(opcode: int, length: int) -> bytes:
    first = 0x80 | opcode
    if length < 126:
        return bytes((first, 0x80 | length))
    if length < 65_536:
        return _MEDIUM.pack(first, 0x80 | 126, length)
    return _WHOLE.pack(first, 0x80 | 127, length)


def _masked(data: bytes, key: bytes) -> bytes:
    """Masks all bytes at once, as two large numbers."""
    length = len(data)
    keys = (key * (length // 4 + 1))[:length]
    mixed = int.from_bytes(data, "little") ^ int.from_bytes(keys, "little")
    return mixed.to_bytes(length, "little")
