"""Sends requests over sockets, blocking: connections, their pool, and retries.

Knows no endpoint (`_calls`) and starts no node itself (`_address`).
"""

from __future__ import annotations

import os
import socket
import struct
import threading
import time
from collections import deque
from typing import Callable, Iterator, Optional, TypeVar, Union

from . import _calls as calls
from ._address import CONNECT_WAIT, Address
from ._calls import Again, Answer, Call, Failure, Flow, Outage
from ._http import ANSWER_BYTES_MAX, AnswerInTls, AnswerParser, Head, Malformed
from ._tls import TlsSocket
from ._verbose import CallPrinter

#: Number of idle connections that are kept. Another one is closed.
IDLE_MAX = 16

#: How long a repeatable request is retried after its connection failed, in seconds.
RETRY_FOR = 10.0

#: Bytes per read of a socket.
READ_BYTES = 256 * 1024

T = TypeVar("T")


class Connection:
    """One connection. Only its holder uses it."""

    def __init__(self, sock: Union[socket.socket, TlsSocket]) -> None:
        self.sock = sock
        self._parser = AnswerParser()
        self._wait = 0.0
        self._version_checked = False

    @staticmethod
    def open(address: Address) -> Connection:
        """Connects at once or fails; over TCP within a time limit."""
        path = address.socket
        if path is None:
            return Connection(_over_tcp(address))
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            sock.connect(path)
        except BaseException:
            sock.close()
            raise
        return Connection(sock)

    def exchange(self, call: Call, address: Address) -> Head:
        """Sends the request and reads the head of the answer."""
        self._parser = AnswerParser()
        self.wait_at_most(call.wait)
        try:
            self._send(call.head(address.introduction), call)
        except OSError as error:
            # The node may have answered before the request was complete: too long, or in conflict.
            head = self._early_answer(call)
            if head is None:
                raise calls.lost(error, Again.SAFE) from None
            return head
        return self._head(call)

    def chunk(self, call: Call) -> bytes:
        """The next piece of the answer's body; empty at its end."""
        while not self._parser.done:
            found = self._parser.body()
            if found:
                return found
            if not self._parser.done:
                self._read(call)
        return b""

    def collect(self, call: Call) -> bytes:
        """The whole body."""
        parts, length = [], 0
        while part := self.chunk(call):
            parts.append(part)
            length += len(part)
            if length > ANSWER_BYTES_MAX:
                cause = f"the answer is longer than {ANSWER_BYTES_MAX} bytes"
                raise Failure(call.bad(cause), Again.NEVER)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def rest(self) -> bytes:
        """The bytes after the head of an answer that ended HTTP."""
        return self._parser.rest()

    @property
    def reusable(self) -> bool:
        return self._parser.done and self._parser.reusable

    def is_open(self) -> bool:
        """Whether another request can be sent: the node sent nothing unexpected and has not closed.
        """
        try:
            self.sock.recv(1, socket.MSG_DONTWAIT)
        except BlockingIOError:
            return True
        except OSError:
            return False
        return False

    def wait_at_most(self, seconds: float) -> None:
        """Limits the time of one read or write; 0: no limit."""
        if seconds != self._wait:
            whole = int(seconds)
            limit = struct.pack("ll", whole, int((seconds - whole) * 1e6))
            self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, limit)
            self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, limit)
            self._wait = seconds

    def close(self) -> None:
        self.sock.close()

    def _send(self, head: bytes, call: Call) -> None:
        if not callable(call.body):
            self.sock.sendall(head + call.body if call.body else head)
            return
        self.sock.sendall(head)
        for piece in call.body():
            if piece:
                self.sock.sendall(b"%x\r\n" % len(piece) + piece + b"\r\n")
        self.sock.sendall(b"0\r\n\r\n")

    def _early_answer(self, call: Call) -> Optional[Head]:
        try:
            return self._head(call)
        except Failure:
            return None

    def _head(self, call: Call) -> Head:
        while self._parser.head is None:
            self._read(call)
        head = self._parser.head
        if not self._version_checked:
            calls.check_version(head)
            self._version_checked = True
        return head

    def _read(self, call: Call) -> None:
        try:
            self._parser.feed(self.sock.recv(READ_BYTES))
        except BlockingIOError:
            raise call.late() from None
        except (OSError, EOFError) as error:
            raise calls.lost(error) from None
        except AnswerInTls:
            raise calls.answered_in_tls() from None
        except (Malformed, ValueError) as error:
            raise Failure(call.bad(error), Again.NEVER) from None


def _over_tcp(address: Address) -> Union[socket.socket, TlsSocket]:
    until = time.monotonic() + CONNECT_WAIT
    sock = socket.create_connection((address.host, address.port), CONNECT_WAIT)
    try:
        sock.settimeout(None)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        if address.tls is None:
            return sock
        secure = TlsSocket(sock, address.tls, address.host)
        secure.handshake(until)
        return secure
    except BaseException:
        sock.close()
        raise


class Stream:
    """An answer's body as a stream, with its connection. Close it after use."""

    def __init__(self, connection: Connection, call: Call, head: Head) -> None:
        self.head = head
        self._connection = connection
        self._call = call
        # A stream waits without a time limit.
        connection.wait_at_most(0)

    def chunk(self) -> bytes:
        """The next bytes; empty at the end. Raises `Failure` when the stream was cut."""
        return self._connection.chunk(self._call)

    def __iter__(self) -> Iterator[bytes]:
        while part := self.chunk():
            yield part

    def close(self) -> None:
        # Wakes a thread that reads; a plain close would leave it waiting.
        try:
            self._connection.sock.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass
        self._connection.close()


class Transport:
    """The connections to one node. Any thread may use it."""

    def __init__(self, address: Address, retry_for: float = RETRY_FOR) -> None:
        self.address = address
        self.retry_for = retry_for
        self._idle: deque[Connection] = deque()
        self._lock = threading.Lock()
        self._process = os.getpid()
        self._closed = False
        #: Notified when a node was reached: tool hosts that lost their connection try again.
        self.reached = threading.Condition()
        #: Shows the calls of host tools, if the client is verbose.
        self.printer: Optional[CallPrinter] = None

    def connect(self) -> None:
        """Connects once, so that an absent node is reported at once."""
        try:
            connection = self.open()
        except Failure as failure:
            raise failure.error from None
        with self._lock:
            self._idle.append(connection)

    def perform(self, flow: Flow[T]) -> T:
        """Sends the requests of a flow and returns its result."""
        try:
            call = next(flow)
            while True:
                try:
                    answer = self.call(call)
                except Exception as error:
                    call = flow.throw(error)
                else:
                    call = flow.send(answer)
        except StopIteration as done:
            value: T = done.value
            return value

    def call(self, call: Call) -> Answer:
        """Sends a request and reads the whole answer."""

        def attempt() -> Answer:
            connection, head = self._exchange(call)
            try:
                body = connection.collect(call)
            except BaseException:
                connection.close()
                raise
            self._put(connection)
            return Answer(head, body, call)

        return self._until_done(call, attempt)

    def stream(self, call: Call) -> Stream:
        """Sends a request and returns the answer's body as a stream."""

        def attempt() -> Stream:
            connection, head = self._exchange(call)
            return Stream(connection, call, head)

        return self._until_done(call, attempt)

    def open(self) -> Connection:
        """Opens a connection. Starts an absent node if that is allowed."""
        try:
            connection = Connection.open(self.address)
        except OSError as cause:
            self.address.reach(cause)
            try:
                connection = Connection.open(self.address)
            except OSError as cause:
                raise self.address.unreachable(cause) from None
        with self.reached:
            self.reached.notify_all()
        return connection

    def close(self) -> None:
        with self._lock:
            self._closed = True
            idle, self._idle = self._idle, deque()
        for connection in idle:
            connection.close()

    def _until_done(self, call: Call, attempt: Callable[[], T]) -> T:
        outage = Outage(self.retry_for)
        while True:
            call.attempts += 1
            try:
                return attempt()
            except Failure as failure:
                # An absent node does not announce its return, so wait for a while.
                time.sleep(outage.pause_after(failure, call.repeat))

    def _exchange(self, call: Call) -> tuple[Connection, Head]:
        """Sends a request and reads the head of a successful answer. Any other answer is a failure.
        """
        connection = self._take()
        try:
            head = connection.exchange(call, self.address)
            if head.is_success or head.status == 101:
                return connection, head
            body = connection.collect(call)
        except BaseException:
            connection.close()
            raise
        self._put(connection)
        raise calls.refused(call, head, body)

    def _take(self) -> Connection:
        """The most recently used idle connection that still works, or a new one."""
        while True:
            with self._lock:
                if self._closed:
                    raise RuntimeError("this Windlass is closed")
                if self._process != os.getpid():
                    # Connections of the parent process: two processes would read each other's
                    # answers.
                    self._idle.clear()
                    self._process = os.getpid()
                if not self._idle:
                    break
                connection = self._idle.pop()
            if connection.is_open():
                return connection
            connection.close()
        return self.open()

    def _put(self, connection: Connection) -> None:
        with self._lock:
            kept = connection.reusable and not self._closed
            if kept:
                self._idle.append(connection)
            extra = self._idle.popleft() if len(self._idle) > IDLE_MAX else None
        if not kept:
            connection.close()
        if extra:
            extra.close()
