"""Sends requests over sockets, for `asyncio`. Works like `_transport`, which explains the reasons.
A request whose task is cancelled closes its connection."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import AsyncIterator, Awaitable, Callable, Optional, TypeVar

from . import _calls as calls
from ._address import CONNECT_WAIT, Address
from ._calls import Again, Answer, Call, Failure, Flow, Outage
from ._http import ANSWER_BYTES_MAX, AnswerInTls, AnswerParser, Head, Malformed
from ._transport import IDLE_MAX, READ_BYTES, RETRY_FOR

T = TypeVar("T")


class AsyncConnection:
    """One connection. Only its holder uses it."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._parser = AnswerParser()
        self._version_checked = False

    @staticmethod
    async def open(address: Address) -> AsyncConnection:
        path = address.socket
        if path is not None:
            return AsyncConnection(*await asyncio.open_unix_connection(path, limit=READ_BYTES))
        connecting = asyncio.open_connection(
            address.host, address.port, limit=READ_BYTES, ssl=address.tls
        )
        try:
            return AsyncConnection(*await asyncio.wait_for(connecting, CONNECT_WAIT))
        except asyncio.TimeoutError:
            raise TimeoutError("the node does not accept the connection") from None

    async def exchange(self, call: Call, address: Address) -> Head:
        """Sends the request and reads the head of the answer."""
        self._parser = AnswerParser()
        try:
            await self._send(call.head(address.introduction), call)
        except OSError as error:
            # The node may have answered before the request was complete: too long, or in conflict.
            try:
                return await self._head(call)
            except Failure:
                raise calls.lost(error, Again.SAFE) from None
        return await self._head(call)

    async def chunk(self, call: Call) -> bytes:
        """The next piece of the answer's body; empty at its end."""
        while not self._parser.done:
            found = self._parser.body()
            if found:
                return found
            if not self._parser.done:
                await self._read(call)
        return b""

    async def collect(self, call: Call) -> bytes:
        """The whole body."""
        parts, length = [], 0
        while part := await self.chunk(call):
            parts.append(part)
            length += len(part)
            if length > ANSWER_BYTES_MAX:
                cause = f"the answer is longer than {ANSWER_BYTES_MAX} bytes"
                raise Failure(call.bad(cause), Again.NEVER)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    @property
    def reusable(self) -> bool:
        return self._parser.done and self._parser.reusable

    def is_open(self) -> bool:
        return not self._reader.at_eof() and not self._writer.is_closing()

    def close(self) -> None:
        try:
            self._writer.transport.abort()
        except RuntimeError:
            pass  # The event loop has ended, and the connection with it.

    async def _send(self, head: bytes, call: Call) -> None:
        if not callable(call.body):
            self._writer.write(head + call.body if call.body else head)
            await self._writer.drain()
            return
        self._writer.write(head)
        for piece in call.body():
            if piece:
                self._writer.write(b"%x\r\n" % len(piece) + piece + b"\r\n")
                await self._writer.drain()
        self._writer.write(b"0\r\n\r\n")
        await self._writer.drain()

    async def _head(self, call: Call) -> Head:
        while self._parser.head is None:
            await self._read(call)
        head = self._parser.head
        if not self._version_checked:
            calls.check_version(head)
            self._version_checked = True
        return head

    async def _read(self, call: Call) -> None:
        try:
            self._parser.feed(await self._reader.read(READ_BYTES))
        except (OSError, EOFError) as error:
            raise calls.lost(error) from None
        except AnswerInTls:
            raise calls.answered_in_tls() from None
        except (Malformed, ValueError) as error:
            raise Failure(call.bad(error), Again.NEVER) from None


class AsyncStream:
    """An answer's body as a stream, with its connection. Close it after use."""

    def __init__(self, connection: AsyncConnection, call: Call, head: Head) -> None:
        self.head = head
        self._connection = connection
        self._call = call

    async def chunk(self) -> bytes:
        """The next bytes; empty at the end. Raises `Failure` when the stream was cut."""
        return await self._connection.chunk(self._call)

    async def __aiter__(self) -> AsyncIterator[bytes]:
        while part := await self.chunk():
            yield part

    def close(self) -> None:
        self._connection.close()


class AsyncTransport:
    """The connections to one node, for the tasks of one event loop."""

    def __init__(self, address: Address, retry_for: float = RETRY_FOR) -> None:
        self.address = address
        self.retry_for = retry_for
        self._idle: deque[AsyncConnection] = deque()
        self._loop: Optional[asyncio.AbstractEventLoop] = None
        self._closed = False
        #: Called when a node was reached.
        self.on_reached: Callable[[], None] = _nothing

    async def connect(self) -> None:
        """Connects once, so that an absent node is reported at once."""
        try:
            self._idle.append(await self._take())
        except Failure as failure:
            raise failure.error from None

    async def perform(self, flow: Flow[T]) -> T:
        """Sends the requests of a flow and returns its result."""
        try:
            call = next(flow)
            while True:
                try:
                    answer = await self.call(call)
                except Exception as error:
                    call = flow.throw(error)
                else:
                    call = flow.send(answer)
        except StopIteration as done:
            value: T = done.value
            return value

    async def call(self, call: Call) -> Answer:
        """Sends a request and reads the whole answer."""

        async def attempt() -> Answer:
            connection, head = await self._exchange(call)
            try:
                body = await connection.collect(call)
            except BaseException:
                connection.close()
                raise
            self._put(connection)
            return Answer(head, body, call)

        return await self._until_done(call, attempt)

    async def stream(self, call: Call) -> AsyncStream:
        """Sends a request and returns the answer's body as a stream."""

        async def attempt() -> AsyncStream:
            connection, head = await self._exchange(call)
            return AsyncStream(connection, call, head)

        return await self._until_done(call, attempt)

    def close(self) -> None:
        self._closed = True
        idle, self._idle = self._idle, deque()
        for connection in idle:
            connection.close()

    async def _until_done(self, call: Call, attempt: Callable[[], Awaitable[T]]) -> T:
        outage = Outage(self.retry_for)
        while True:
            call.attempts += 1
            try:
                return await asyncio.wait_for(attempt(), call.wait)
            except Failure as failure:
                pause = outage.pause_after(failure, call.repeat)
            except asyncio.TimeoutError:
                raise call.late().error from None
            # An absent node does not announce its return, so wait for a while.
            await asyncio.sleep(pause)

    async def _exchange(self, call: Call) -> tuple[AsyncConnection, Head]:
        """Sends a request and reads the head of a successful answer. Any other answer is a failure.
        """
        connection = await self._take()
        try:
            head = await connection.exchange(call, self.address)
            if head.is_success:
                return connection, head
            body = await connection.collect(call)
        except BaseException:
            connection.close()
            raise
        self._put(connection)
        raise calls.refused(call, head, body)

    async def _take(self) -> AsyncConnection:
        """The most recently used idle connection that still works, or a new one."""
        if self._closed:
            raise RuntimeError("this AsyncWindlass is closed")
        loop = asyncio.get_running_loop()
        if self._loop is not loop:
            # Connections belong to the event loop that made them.
            self._idle.clear()
            self._loop = loop
        while self._idle:
            connection = self._idle.pop()
            if connection.is_open():
                return connection
            connection.close()
        return await self._open()

    async def _open(self) -> AsyncConnection:
        try:
            connection = await AsyncConnection.open(self.address)
        except OSError as cause:
            loop = asyncio.get_running_loop()
            await loop.run_in_executor(None, self.address.reach, cause)
            try:
                connection = await AsyncConnection.open(self.address)
            except OSError as cause:
                raise self.address.unreachable(cause) from None
        self.on_reached()
        return connection

    def _put(self, connection: AsyncConnection) -> None:
        if not connection.reusable or self._closed:
            connection.close()
            return
        self._idle.append(connection)
        if len(self._idle) > IDLE_MAX:
            self._idle.popleft().close()


def _nothing() -> None:
    """The default callback: does nothing."""
