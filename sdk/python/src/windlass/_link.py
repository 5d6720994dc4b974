"""One connection of a tool host to its node: the upgrade, how threads wait at it, and its frames.

Every idle thread waits at the socket, and the kernel wakes exactly one of them for each event. So a
call needs no message between threads, and while one thread runs a call another receives the next.
"""

from __future__ import annotations

import os
import select
from typing import Any, Optional

from . import _calls as calls
from ._calls import Failure
from ._frames import CHUNK_BYTES_MAX, LENGTHS
from ._tool import decode
from ._transport import Connection, Transport
from ._websocket import Closed, WebSocket, is_upgraded, upgrade_headers, upgrade_key

_ONE = select.EPOLLIN | select.EPOLLEXCLUSIVE


class Link:
    """A connection. One thread reads at a time; the host decides which."""

    def __init__(self, transport: Transport, path: str, connection: Connection) -> None:
        self.socket = _upgraded(transport, path, connection)
        #: Number of threads that wait here; guarded by the host.
        self.followers = 0
        #: Counts messages that one read returned together; each wakes one thread.
        self._more = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK | os.EFD_SEMAPHORE)
        #: Set when the connection has ended: wakes all threads.
        self._over = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)

    def waiter(self) -> select.epoll:
        """The epoll object by which one thread waits at this connection."""
        waiter = select.epoll()
        waiter.register(self.socket.fileno(), _ONE)
        waiter.register(self._more, _ONE)
        waiter.register(self._over, select.EPOLLIN)
        return waiter

    def wait(self, waiter: select.epoll) -> bool:
        """Waits until there may be something to read or the connection has ended. Returns True if
        the socket has bytes: no other thread was woken for them."""
        by_socket = False
        for descriptor, _ in waiter.poll():
            if descriptor == self._more:
                try:
                    os.eventfd_read(self._more)
                except BlockingIOError:
                    pass  # Another thread was faster.
            elif descriptor != self._over:
                by_socket = True
        return by_socket

    def receive(self) -> Optional[tuple[dict[str, Any], bytes]]:
        """The next frame's header and body; None if none has arrived."""
        frame = self.socket.receive()
        if frame is None:
            return None
        rest, length = LENGTHS.unpack_from(frame)
        if rest + 4 != len(frame) or length + 4 > rest:
            raise Closed("a message is not one frame")
        return decode(str(frame[8 : 8 + length], "utf-8")), bytes(frame[8 + length :])

    def leave(self) -> None:
        """The reader stops reading. Wakes another thread for messages that are already read or
        still to read."""
        if self.socket.has_more:
            os.eventfd_write(self._more, 1)

    def send(self, head: str, body: memoryview) -> None:
        """Sends a message in as many frames as needed. `head` is its header without the closing
        brace."""
        at = 0
        while True:
            piece = body[at : at + CHUNK_BYTES_MAX]
            at += len(piece)
            last = at >= len(body)
            said = (head + "}" if last else head + ',"more":true}').encode()
            self.socket.send(LENGTHS.pack(4 + len(said) + len(piece), len(said)) + said, piece)
            if last:
                return

    def end(self) -> None:
        """Ends the connection and wakes the threads that wait at it."""
        self.socket.close()
        os.eventfd_write(self._over, 1)

    def __del__(self) -> None:
        for name in ("_more", "_over"):
            if hasattr(self, name):
                os.close(getattr(self, name))


def _upgraded(transport: Transport, path: str, connection: Connection) -> WebSocket:
    key = upgrade_key()
    call = calls.Call("GET", path, headers=upgrade_headers(key))
    try:
        head = connection.exchange(call, transport.address)
        if head.status != 101:
            raise calls.refused(call, head, connection.collect(call))
        if not is_upgraded(head, key):
            raise Failure(call.bad("the answer does not upgrade to a WebSocket"), calls.Again.NEVER)
        connection.wait_at_most(0)
    except BaseException:
        connection.close()
        raise
    over_tcp = transport.address.socket is None
    return WebSocket(connection.sock, connection.rest(), mask=over_tcp)
