"""One connection of a tool host to its node: how it is made, how threads wait at it, and its frames.

Every idle thread waits at the socket, and the kernel wakes exactly one of them for what comes: a call
costs no word between threads, and while one thread runs a call another one hears the next.
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
    """A connection. One thread reads at a time; who is to is the host's to say."""

    def __init__(self, transport: Transport, path: str, connection: Connection) -> None:
        self.socket = _upgraded(transport, path, connection)
        #: Threads that wait here; guarded by the host.
        self.followers = 0
        #: Counts messages that were read along with others: each wakes one thread.
        self._more = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK | os.EFD_SEMAPHORE)
        #: Set once the connection is over: wakes all.
        self._over = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)

    def waiter(self) -> select.epoll:
        """What a thread waits at this connection with; its own."""
        waiter = select.epoll()
        waiter.register(self.socket.fileno(), _ONE)
        waiter.register(self._more, _ONE)
        waiter.register(self._over, select.EPOLLIN)
        return waiter

    def wait(self, waiter: select.epoll) -> bool:
        """Until there may be something to read, or the connection is over. Says whether it is the
        socket that has it: nobody else is told of those bytes."""
        by_socket = False
        for descriptor, _ in waiter.poll():
            if descriptor == self._more:
                try:
                    os.eventfd_read(self._more)
                except BlockingIOError:
                    pass  # Another one was quicker.
            elif descriptor != self._over:
                by_socket = True
        return by_socket

    def receive(self) -> Optional[tuple[dict[str, Any], bytes]]:
        """The next frame's header and body; None when none has come."""
        frame = self.socket.receive()
        if frame is None:
            return None
        rest, length = LENGTHS.unpack_from(frame)
        if rest + 4 != len(frame) or length + 4 > rest:
            raise Closed("a message is not one frame")
        return decode(str(frame[8 : 8 + length], "utf-8")), bytes(frame[8 + length :])

    def leave(self) -> None:
        """The reader goes: another one is woken for what was read along, or was to be read."""
        if self.socket.has_more:
            os.eventfd_write(self._more, 1)

    def send(self, head: str, body: memoryview) -> None:
        """A message in as many frames as it needs; `head` is its header without the closing brace."""
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
        """Ends the connection and wakes whoever waits at it."""
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
            raise Failure(call.bad("it is no WebSocket"), calls.Again.NEVER)
        connection.wait_at_most(0)
    except BaseException:
        connection.close()
        raise
    over_tcp = transport.address.socket is None
    return WebSocket(connection.sock, connection.rest(), mask=over_tcp)
