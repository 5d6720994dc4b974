"""A tool host: offers functions to the code of sessions and answers its calls, over one WebSocket.

The thread that reads a call also runs it, while another thread waits for the next call. So a call
needs no hand-over between threads, and calls run at the same time. Async functions run as tasks of
an event loop. After a lost connection the host connects and declares its tools again.
"""

from __future__ import annotations

import asyncio
import logging
import queue
import select
import threading
from collections import deque
from dataclasses import dataclass
from typing import Any, Optional

from ._calls import Failure
from ._context import CURRENT, ToolCall
from ._errors import WindlassError, failed
from ._frames import CHUNK_BYTES_MAX, MESSAGE_BYTES_MAX
from ._host_copies import HostCopies
from ._http import path
from ._link import Link
from ._tool import Function, Tool, encode_error, encode_result, tool
from ._transport import Connection, Transport

#: Most threads of one host, started when calls need them. Further calls wait for a thread. One
#: thread always listens, so that cancellations are received.
THREADS_MAX = 64

#: Most calls that wait for a thread. Another call is refused as `overloaded`.
WAITING_MAX = 4096

#: How long the node may take to accept a declaration, in seconds.
DECLARE_WAIT = 30.0

#: The first and the longest pause between two attempts to connect again, in seconds.
PAUSE_FIRST = 0.005
PAUSE_MAX = 1.0

#: Refusals after which a new connection does not help.
_FINAL = frozenset(
    (
        "session_not_found",
        "session_ended",
        "unauthorized",
        "forbidden",
        "version_mismatch",
        "bad_request",
        "not_found",
    )
)

_log = logging.getLogger("windlass")

_Key = tuple[str, int, int]


@dataclass
class _Job:
    """A call that has arrived completely."""

    tool: Tool
    call: ToolCall
    body: bytes
    link: Link


class ToolHost:
    """Tools for one session, or for all sessions of an owner. Closing it withdraws them."""

    def __init__(
        self,
        transport: Transport,
        *,
        session: Optional[str] = None,
        owner: Optional[str] = None,
        loop: Optional[asyncio.AbstractEventLoop] = None,
        threads_max: int = THREADS_MAX,
    ) -> None:
        self._transport = transport
        self._path = path("tools", "host", session=session, owner=owner)
        self._loop = loop
        self._threads_max = threads_max
        self._tools: dict[str, Tool] = {}
        self._link: Optional[Link] = None
        self._closed = False
        #: Why the host ended by itself, if it did.
        self.error: Optional[WindlassError] = None
        #: Held by the thread that reads.
        self._reading = threading.Lock()
        #: Guards the number of threads, the number of threads that wait at a link, and the waiting
        #: calls.
        self._state = threading.Lock()
        self._threads = 0
        self._waiting: deque[_Job] = deque()
        #: Unanswered calls, bodies of which more follows, and running tasks.
        self._open: dict[_Key, ToolCall] = {}
        self._begun: dict[_Key, list[bytes]] = {}
        self._tasks: dict[_Key, asyncio.Task[None]] = {}
        #: One declaration at a time, and its answer.
        self._declaring = threading.Lock()
        self._answers: queue.SimpleQueue[Optional[WindlassError]] = queue.SimpleQueue()
        self._awaited = False

    @property
    def closed(self) -> bool:
        return self._closed

    @property
    def names(self) -> list[str]:
        """The names of the offered tools."""
        return sorted(self._tools)

    def offer(self, *functions: Function) -> None:
        """Offers more functions; returns once code can call them."""
        offered = [tool(function) for function in functions]
        with self._declaring:
            if self._closed:
                raise self.error or RuntimeError("this tool host is closed")
            before = dict(self._tools)
            self._tools.update((one.name, one) for one in offered)
            try:
                self._declare_and_wait()
            except BaseException:
                self._tools = before
                raise

    def close(self) -> None:
        """Withdraws the tools. Open calls fail at once in the code."""
        self._end(None)
        with self._transport.reached:
            self._transport.reached.notify_all()

    def __enter__(self) -> ToolHost:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # Connecting and declaring

    def _declare_and_wait(self) -> None:
        while not self._answers.empty():
            self._answers.get()
        self._awaited = True
        try:
            if self._link is None:
                try:
                    link = Link(self._transport, self._path, self._transport.open())
                except Failure as failure:
                    raise failure.error from None
                self._declare(link)
                self._link = link
                self._add_thread()
            else:
                try:
                    self._declare(self._link)
                except OSError:
                    pass  # Lost: the reading thread connects again and declares all tools.
            refusal = self._answers.get(timeout=DECLARE_WAIT)
        except queue.Empty:
            raise failed(
                "timeout", f"the node did not accept the tools within {DECLARE_WAIT:.0f} s"
            ) from None
        finally:
            self._awaited = False
        if refusal is not None:
            raise refusal

    def _declare(self, link: Link) -> None:
        said = {"tools": [one.declaration() for one in self._tools.values()]}
        link.send('{"kind":"tools"', memoryview(encode_result(said)))

    def _reconnect(self, lost: Link) -> None:
        """Tries until a node is back. Does not start one, since no caller asked for it."""
        pause = PAUSE_FIRST
        while not self._closed:
            try:
                link = Link(
                    self._transport, self._path, Connection.open(self._transport.address)
                )
                self._declare(link)
                break
            except Failure as failure:
                if failure.error.code in _FINAL:
                    self._end(failure.error)
            except OSError:
                pass
            # Another request that reaches the node notifies this condition; otherwise wait for the
            # pause.
            with self._transport.reached:
                if not self._closed:
                    self._transport.reached.wait(pause)
            pause = min(pause * 2, PAUSE_MAX)
        else:
            return
        with self._state:
            self._link = link
            over = self._closed
        # The other threads still wait at the old connection.
        lost.end()
        lost.socket.dispose()
        if over:
            link.end()

    def _end(self, error: Optional[WindlassError]) -> None:
        with self._state:
            if self._closed:
                return
            self._closed, self.error = True, error
            link = self._link
        self._cancel_all("connection_lost")
        if self._awaited:
            self._answers.put(error or failed("connection_lost", "the tool host was closed"))
        if link is not None:
            link.end()

    # Reading, by one thread at a time

    def _add_thread(self) -> None:
        with self._state:
            self._threads += 1
            number = self._threads
        name = f"windlass-tools-{number}"
        threading.Thread(target=self._serve, name=name, daemon=True).start()

    def _serve(self) -> None:
        link: Optional[Link] = None
        waiter: Optional[select.epoll] = None
        while not self._closed:
            if link is None or waiter is None or link is not self._link:
                if waiter is not None:
                    waiter.close()
                link = self._link
                assert link is not None
                waiter = link.waiter()
            job = self._next_job(link, waiter)
            if job is not None:
                self._run(job)
                # Otherwise the job and its arguments would stay in memory until the next call.
                del job
        if waiter is not None:
            waiter.close()
        with self._reading, self._state:
            self._threads -= 1
            if not self._threads and self._link is not None:
                self._link.socket.dispose()

    def _next_job(self, link: Link, waiter: select.epoll) -> Optional[_Job]:
        """Waits for a call to run; None if the caller must look again."""
        state = self._state
        with state:
            # One thread must listen at the link.
            if self._waiting and link.followers:
                return self._waiting.popleft()
            link.followers += 1
        by_socket = False
        try:
            by_socket = link.wait(waiter)
        finally:
            with state:
                link.followers -= 1
        with self._reading:
            if self._closed or self._link is not link:
                return None
            if by_socket:
                link.socket.unread = True
            try:
                return self._read_job(link)
            except (OSError, ValueError, KeyError) as error:
                _log.debug("the tool host's connection ended: %s", error)
                self._cancel_all("connection_lost")
                self._reconnect(link)
                return None

    def _read_job(self, link: Link) -> Optional[_Job]:
        """Reads the available messages, up to a call that this thread must run."""
        while (frame := link.receive()) is not None:
            header, body = frame
            if header["kind"] != "tool_call":
                self._take_reply(header)
                continue
            job = self._take_call(header, body, link)
            if job is None:
                continue
            with self._state:
                lonely = link.followers == 0
                full = self._threads >= self._threads_max
                put_off = lonely and full and len(self._waiting) < WAITING_MAX
                if put_off:
                    self._waiting.append(job)
            if lonely and full:
                if not put_off:
                    self._refuse(job, "overloaded", "the tool host has too many calls open")
                continue
            if lonely:
                self._add_thread()
            link.leave()
            return job
        return None

    def _take_reply(self, header: dict[str, Any]) -> None:
        kind = header["kind"]
        if kind == "tool_cancel":
            self._cancel((header["session"], header["turn"], header["call"]), header["reason"])
        elif kind == "tools_accepted":
            if self._awaited:
                self._answers.put(None)
        elif kind == "refused":
            if self._awaited:
                self._answers.put(failed(header["code"], header["message"]))
            else:
                _log.warning("the node refused: %s", header["message"])

    def _take_call(self, header: dict[str, Any], body: bytes, link: Link) -> Optional[_Job]:
        session, turn, number = header["session"], header["turn"], header["call"]
        key = (session, turn, number)
        if header.get("more") or key in self._begun:
            self._begun.setdefault(key, []).append(body)
            if header.get("more"):
                return None
            body = b"".join(self._begun.pop(key))
        name = header["name"]
        call = ToolCall(session, turn, number, name, header.get("deadline_ms"))
        known = self._tools.get(name)
        if known is None:
            unknown = Tool(name, "", {}, _unknown_tool, is_async=False)
            message = f"there is no tool {name} here"
            self._refuse(_Job(unknown, call, body, link), "tool_not_found", message)
            return None
        self._open[key] = call
        job = _Job(known, call, body, link)
        if known.is_async:
            self._start_task(job)
            return None
        return job

    def _cancel(self, key: _Key, reason: str) -> None:
        self._begun.pop(key, None)
        call = self._open.pop(key, None)
        if call is None:
            return
        call.cancel_reason, call.cancelled = reason, True
        if self._tools_loop_runs():
            assert self._loop is not None
            self._loop.call_soon_threadsafe(self._cancel_task, key)

    def _cancel_all(self, reason: str) -> None:
        self._begun.clear()
        for key in list(self._open):
            self._cancel(key, reason)

    # Running and answering

    def _run(self, job: _Job) -> None:
        call = job.call
        printer = self._transport.printer
        began = printer.began(call, job.body) if printer is not None else 0.0
        token = CURRENT.set(call)
        try:
            body, ok = memoryview(self._result(job)), True
        except BaseException as error:
            body, ok = memoryview(encode_error(error)), False
        finally:
            CURRENT.reset(token)
        if printer is not None:
            printer.ended(call, ok, body, began)
        self._answer(job, ok, body)

    def _result(self, job: _Job) -> bytes:
        if not job.tool.takes_files:
            return encode_result(job.tool.call(job.body))
        with HostCopies(self._transport, job.call) as copies:
            # The result is complete before a file is written back: it can be lazy, or not JSON.
            result = _within_limit(encode_result(copies.bind(job.tool, job.body)()))
            copies.write_back()
            return result

    def _answer(self, job: _Job, ok: bool, body: memoryview) -> None:
        call = job.call
        # A cancelled call needs no answer.
        if self._open.pop(call.key, None) is None:
            return
        if len(body) > MESSAGE_BYTES_MAX:
            message = f"the result has {len(body)} bytes; the limit is {MESSAGE_BYTES_MAX}"
            self._refuse(job, "message_too_large", message)
            return
        head = (
            f'{{"kind":"tool_result","session":"{call.session}","turn":{call.turn},'
            f'"call":{call.call},"ok":{"true" if ok else "false"}'
        )
        try:
            job.link.send(head, body)
        except OSError:
            pass  # The connection is lost, so no code waits any more.

    def _refuse(self, job: _Job, code: str, message: str) -> None:
        self._open[job.call.key] = job.call
        self._answer(job, False, memoryview(encode_result({"code": code, "message": message})))

    # Async functions

    def _tools_loop_runs(self) -> bool:
        return bool(self._tasks) and self._loop is not None and not self._loop.is_closed()

    def _start_task(self, job: _Job) -> None:
        if self._loop is None:
            self._loop = _background_loop()
        try:
            self._loop.call_soon_threadsafe(self._spawn, job)
        except RuntimeError:
            self._refuse(job, "tool_host_gone", "the tool's event loop has ended")

    def _spawn(self, job: _Job) -> None:
        call = job.call
        if call.cancelled:
            return
        key = call.key
        assert self._loop is not None
        task = self._loop.create_task(self._run_async(job))
        self._tasks[key] = task
        task.add_done_callback(lambda _: self._tasks.pop(key, None))

    def _cancel_task(self, key: _Key) -> None:
        task = self._tasks.get(key)
        if task is not None:
            task.cancel()

    async def _run_async(self, job: _Job) -> None:
        CURRENT.set(job.call)
        printer = self._transport.printer
        began = printer.began(job.call, job.body) if printer is not None else 0.0
        try:
            body, ok = memoryview(await self._result_of_async(job)), True
        except BaseException as error:
            body, ok = memoryview(encode_error(error)), False
        if printer is not None:
            printer.ended(job.call, ok, body, began)
        if len(body) <= CHUNK_BYTES_MAX:
            self._answer(job, ok, body)
        else:
            # Sending a large answer may block; the event loop must not.
            await asyncio.get_running_loop().run_in_executor(None, self._answer, job, ok, body)

    async def _result_of_async(self, job: _Job) -> bytes:
        if not job.tool.takes_files:
            return encode_result(await job.tool.call(job.body))
        copies = HostCopies(self._transport, job.call)
        try:
            function = await asyncio.to_thread(copies.bind, job.tool, job.body)
            result = _within_limit(encode_result(await function()))
            await asyncio.to_thread(copies.write_back)
            return result
        finally:
            # A cancelled task does not wait, and the thread still removes the copies.
            await asyncio.shield(asyncio.to_thread(copies.close))


def _within_limit(result: bytes) -> bytes:
    """Refuses a result that cannot be sent before files are written back."""
    if len(result) > MESSAGE_BYTES_MAX:
        message = f"the result has {len(result)} bytes; the limit is {MESSAGE_BYTES_MAX}"
        raise failed("message_too_large", message)
    return result


def _unknown_tool() -> None:
    """Placeholder function of an unknown tool."""


_background: Optional[asyncio.AbstractEventLoop] = None
_background_lock = threading.Lock()


def _background_loop() -> asyncio.AbstractEventLoop:
    """An event loop on a separate thread, for async functions of the synchronous client."""
    global _background
    with _background_lock:
        if _background is None or _background.is_closed():
            _background = asyncio.new_event_loop()
            run = _background.run_forever
            threading.Thread(target=run, name="windlass-tools-loop", daemon=True).start()
        return _background
