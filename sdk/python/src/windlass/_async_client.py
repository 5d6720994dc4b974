"""The asynchronous client: `AsyncWindlass`, its sessions and their turns. Works like `_client`."""

from __future__ import annotations

import asyncio
import inspect
import time
from contextlib import suppress
from types import TracebackType
from typing import Any, AsyncIterator, Awaitable, Callable, Literal, Mapping, Optional, Sequence, Union

from . import _address
from . import _api as api
from . import _calls as calls
from . import _events as events
from ._agent_client import AsyncAgent
from ._async_files import AsyncFiles
from ._async_transport import AsyncStream, AsyncTransport
from ._calls import Failure
from ._errors import InputNeeded, Timeout, TurnNotRunning, WindlassError
from ._follow import Follower
from ._host import ToolHost
from ._providers import FileProvider, HostProviders, HttpProvider, LookupProvider, RunProvider
from ._results import OutputRange, TurnResult, input_of
from ._tool import Function, Tool, tool
from ._transport import Transport
from ._request_bodies import (
    PathText,
    PolicyArgument,
    budgets_of,
    context_of,
    session_body,
    turn_body,
)
from ._verbose import CallPrinter

#: How long to wait for the interrupt of a turn whose task was cancelled, in seconds.
INTERRUPT_WAIT = 5.0

#: Answers the code's `input()`. Gets the prompt, and whether the answer is a secret.
AsyncOnInput = Callable[[str, bool], Union[Optional[str], Awaitable[Optional[str]]]]


class AsyncWindlass:
    """A node, for `asyncio`; see `Windlass`. No request is sent before the first `await`."""

    def __init__(
        self,
        *,
        url: Optional[str] = None,
        token: Optional[str] = None,
        ca: Optional[str] = None,
        start: bool = True,
        verbose: bool = False,
    ) -> None:
        self._address = _address.find(url, token, start, ca)
        self._transport = AsyncTransport(self._address)
        #: For tool hosts, which use their own threads.
        self._blocking = Transport(self._address)
        self._blocking.printer = CallPrinter() if verbose else None
        self._transport.on_reached = self._tell_hosts
        self._hosts: list[ToolHost] = []

    async def session(
        self,
        *,
        id: Optional[str] = None,
        workspace: Optional[PathText] = None,
        policy: Optional[PolicyArgument] = None,
        interpreter: Optional[PathText] = None,
        environment: Optional[str] = None,
        allow_packages: bool = False,
        env: Optional[Mapping[str, str]] = None,
        owner: Optional[str] = None,
        worker: Optional[str] = None,
        interrupt_grace: Optional[float] = None,
        output_quota_bytes: Optional[int] = None,
        idle: Optional[float] = None,
        deadline: Optional[float] = None,
        files: Optional[FileProvider] = None,
        http: Optional[HttpProvider] = None,
        lookup: Optional[LookupProvider] = None,
        run: Optional[RunProvider] = None,
    ) -> AsyncSession:
        """A new session; see `Windlass.session`. `async with await w.session() as s:` closes it."""
        providers = HostProviders(files=files, http=http, lookup=lookup, run=run)
        providers.check(worker)
        body = session_body(
            id=id,
            workspace=workspace,
            policy=policy,
            interpreter=interpreter,
            environment=environment,
            allow_packages=allow_packages,
            env=providers.environment(env),
            owner=owner,
            worker=worker,
            interrupt_grace=interrupt_grace,
            output_quota_bytes=output_quota_bytes,
            idle=idle,
            deadline=deadline,
        )
        info = await self._transport.perform(calls.create(body))
        session = AsyncSession(self, info, owned=True)
        offered = providers.tools()
        if offered:
            try:
                await session.tools(*offered)
            except BaseException:
                await session.close()
                raise
        return session

    def agent(self, engine: str, **settings: Any) -> AsyncAgent:
        """An agent; see `Windlass.agent`."""
        return AsyncAgent(self, engine, **settings)

    async def _created(self, flow: calls.Flow[api.Session]) -> AsyncSession:
        return AsyncSession(self, await self._transport.perform(flow), owned=True)

    async def attach(self, id: str) -> AsyncSession:
        """An existing session. Leaving its `async with` block does not end it."""
        return AsyncSession(self, await self._transport.perform(calls.look(id)), owned=False)

    async def sessions(self, *, ended_too: bool = False) -> list[api.Session]:
        """The live sessions, newest first; with `ended_too` all that the node remembers."""
        return await self._transport.perform(calls.sessions(ended_too))

    async def status(self) -> api.NodeStatus:
        """The current state of the node."""
        return await self._transport.perform(calls.node_status())

    async def environments(self, *, wait: float = 0) -> list[api.Environment]:
        """The interpreters for which workers are kept ready. Waits up to `wait` seconds until none of
        them is being prepared."""
        return await self._transport.perform(calls.environments(wait))

    async def workers(self) -> list[api.WorkerInfo]:
        """The kinds of worker that sessions can have, and what is missing for each on the node's
        machine."""
        return await self._transport.perform(calls.workers())

    async def stop_node(self, sessions: api.StopSessions) -> None:
        """Stops the node. `"end"` ends its sessions first; `"keep"` leaves them for the next node."""
        await self._transport.perform(calls.stop_node(sessions))

    async def tools(self, *functions: Function, owner: str) -> ToolHost:
        """Offers functions as tools to all sessions of that owner, present and future. Async functions
        run in this event loop, others in threads."""
        return await self._offer(self._new_host(owner=owner), *functions)

    async def close(self) -> None:
        """Closes the connections to the node. Sessions continue."""
        for host in self._hosts:
            host.close()
        self._transport.close()
        self._blocking.close()

    def _new_host(self, **place: str) -> ToolHost:
        loop = asyncio.get_running_loop()
        host = ToolHost(
            self._blocking, session=place.get("session"), owner=place.get("owner"), loop=loop
        )
        self._hosts.append(host)
        return host

    async def _offer(self, host: ToolHost, *functions: Function) -> ToolHost:
        await asyncio.get_running_loop().run_in_executor(None, host.offer, *functions)
        return host

    def _tell_hosts(self) -> None:
        if self._hosts:
            with self._blocking.reached:
                self._blocking.reached.notify_all()

    async def __aenter__(self) -> AsyncWindlass:
        await self._transport.connect()
        await self.status()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


class AsyncSession:
    """A session: one persistent interpreter, driven by turns."""

    def __init__(self, client: AsyncWindlass, info: api.Session, *, owned: bool) -> None:
        self._client = client
        self._transport = client._transport
        self._owned = owned
        self._host: Optional[ToolHost] = None
        #: Tools from decorators, which cannot wait: offered before the next turn.
        self._undeclared: list[Tool] = []
        self._seen: int = info["seq"]
        self.id: str = info["id"]
        #: The directory that the code works in.
        self.workspace: str = info["workspace"]
        #: What a twin does not have from its original; empty for a session that is not a twin.
        self.not_carried: list[api.NotCarried] = []
        #: Threads and processes of the original from before the fork that could reach the twin.
        self.can_reach: list[api.CanReach] = []
        #: Directories that a fork's copy of the workspace does not have.
        self.left_out: list[api.LeftOutDirectory] = []
        #: Files in and out of the workspace.
        self.files = AsyncFiles(self._transport, self.id)

    async def run(
        self,
        code: str,
        *,
        on_input: Optional[AsyncOnInput] = None,
        deadline: Optional[float] = None,
        output_bytes_max: Optional[int] = None,
        stdout_bytes_max: Optional[int] = None,
        stderr_bytes_max: Optional[int] = None,
        file: Optional[PathText] = None,
        args: Optional[Sequence[str]] = None,
        cwd: Optional[PathText] = None,
        env: Optional[Mapping[str, str]] = None,
        program: bool = False,
    ) -> TurnResult:
        """Runs code and waits until it has ended; see `Session.run`. Cancelling the task interrupts the
        turn."""
        await self._declare()
        budgets = budgets_of(output_bytes_max, stdout_bytes_max, stderr_bytes_max)
        context = context_of(file, args, cwd, env, program)
        body = turn_body(code, deadline, budgets, context, wait=calls.POLL_WAIT)
        answer = on_input if on_input is not None else _no_input
        try:
            first = await self._transport.perform(calls.submit(self.id, body))
            turn = AsyncTurn(self._transport, self.id, first, self._seen)
            ended = await turn._settle(first, answer, None, budgets)
        except WindlassError:
            raise
        except BaseException:
            await _interrupt_quietly(self._transport, self.id, str(body["id"]))
            raise
        result, seen = await self._transport.perform(calls.finished(ended, turn._after))
        self._seen = max(self._seen, seen)
        return result

    async def submit(self, code: str, *, deadline: Optional[float] = None) -> AsyncTurn:
        """Starts a turn and returns at once."""
        await self._declare()
        after = (await self._transport.perform(calls.look(self.id)))["seq"]
        body = turn_body(code, deadline, {}, wait=0)
        turn = await self._transport.perform(calls.submit(self.id, body))
        return AsyncTurn(self._transport, self.id, turn, after)

    async def stream(
        self,
        code: str,
        *,
        deadline: Optional[float] = None,
        on_input: Optional[AsyncOnInput] = None,
    ) -> AsyncIterator[events.Event]:
        """Runs code and yields its events as they happen; see `Session.stream`."""
        turn = await self.submit(code, deadline=deadline)
        over = False
        try:
            async with turn.events() as stream:
                async for event in stream:
                    over = isinstance(event, (events.TurnEnded, events.SessionEnded))
                    yield event
                    if on_input is not None and isinstance(event, events.StdinWait):
                        await turn.input(await _asked(on_input, event.prompt, event.secret))
        finally:
            if not over:
                await _interrupt_quietly(self._transport, self.id, turn.id)

    async def turn(self, id: str) -> AsyncTurn:
        """A turn of this session by its id."""
        turn = await self._transport.perform(calls.turn(self.id, id, 0))
        return AsyncTurn(self._transport, self.id, turn, 0)

    async def interrupt(self) -> None:
        """Stops the running turn; the state stays. Without a running turn it does nothing."""
        with suppress(TurnNotRunning):
            await self._transport.perform(calls.interrupt(self.id))

    async def fork(self, *, id: Optional[str] = None, copy_all: bool = False) -> AsyncSession:
        """Forks this session; see `Session.fork`."""
        forked = await self._transport.perform(calls.fork(self.id, id, copy_all))
        twin = AsyncSession(self._client, forked["session"], owned=True)
        twin.not_carried = forked["not_carried"]
        twin.can_reach = forked.get("can_reach", [])
        twin.left_out = forked.get("left_out", [])
        return twin

    async def reset(self) -> api.Session:
        """Gives the session a fresh worker: variables are gone, files stay."""
        return await self._transport.perform(calls.reset(self.id))

    async def info(self) -> api.Session:
        """The current state of the session."""
        return await self._transport.perform(calls.look(self.id))

    def events(self, *, after: int = 0) -> AsyncEventStream:
        """The session's events after the event `after`, as they happen, until it ends."""
        return AsyncEventStream(self._transport, Follower(self.id, after))

    async def output(
        self,
        *,
        turn: Optional[str] = None,
        start: Optional[int] = None,
        stop: Optional[int] = None,
        tail: Optional[int] = None,
    ) -> OutputRange:
        """Raw output of the session or of one turn: a range or the tail."""
        return await self._transport.perform(calls.output(self.id, turn, start, stop, tail))

    async def search_output(
        self, query: str, *, turn: Optional[str] = None, limit: Optional[int] = None
    ) -> api.SearchResult:
        """Lines of the output that hold a text."""
        return await self._transport.perform(calls.search(self.id, query, turn, limit))

    async def egress(self) -> api.EgressLog:
        """The hosts that the code tried to reach, and what was decided."""
        return await self._transport.perform(calls.egress(self.id))

    async def tools(self, *functions: Function) -> ToolHost:
        """Offers functions to the session's code, as `tools.NAME(...)`. Async functions run in this
        event loop, others in threads."""
        if self._host is None:
            self._host = self._client._new_host(session=self.id)
        return await self._client._offer(self._host, *functions)

    def tool(self, function: Any = None, **options: Any) -> Any:
        """`@session.tool` or `@session.tool(name=..., ...)`: offers one function before the next
        turn, and returns it unchanged."""
        if function is not None:
            self._undeclared.append(tool(function, **options))
            return function
        return lambda function: self.tool(function, **options)

    async def close(self, *, grace: Optional[float] = None) -> api.Session:
        """Ends the session and everything it started."""
        if self._host is not None:
            self._host.close()
        grace_ms = None if grace is None else int(grace * 1000)
        return await self._transport.perform(calls.close(self.id, grace_ms))

    async def _declare(self) -> None:
        if self._undeclared:
            waiting, self._undeclared = self._undeclared, []
            await self.tools(*waiting)

    async def __aenter__(self) -> AsyncSession:
        return self

    async def __aexit__(
        self,
        kind: Optional[type[BaseException]],
        error: Optional[BaseException],
        traceback: Optional[TracebackType],
    ) -> None:
        if not self._owned:
            if self._host is not None:
                self._host.close()
            return
        try:
            await self.close()
        except WindlassError as failure:
            gone = ("unreachable", "connection_lost", "shutting_down", "session_ended")
            if failure.code not in gone and error is None:
                raise

    def __repr__(self) -> str:
        return f"<windlass session {self.id}>"


class AsyncTurn:
    """A turn that was submitted."""

    def __init__(
        self, transport: AsyncTransport, session: str, turn: api.Turn, after: int
    ) -> None:
        self._transport = transport
        self._after = after
        self.session = session
        self.id: str = turn["id"]
        self.number: int = turn["number"]

    async def wait(
        self, timeout: Optional[float] = None, *, on_input: Optional[AsyncOnInput] = None
    ) -> TurnResult:
        """Waits until the turn has ended; see `Turn.wait`."""
        until = None if timeout is None else time.monotonic() + timeout
        ended = await self._settle(await self._look(0), on_input, until, {})
        return (await self._transport.perform(calls.finished(ended, self._after)))[0]

    async def look(self) -> api.Turn:
        """The current state of the turn."""
        return await self._look(0)

    async def interrupt(self) -> None:
        """Stops the turn, if it runs or waits."""
        await self._transport.perform(calls.interrupt(self.session, self.id))

    async def input(self, text: Union[str, bytes, None]) -> None:
        """Sends the turn a line of input. Bytes are sent unchanged; None is the end of input."""
        await self._transport.perform(calls.give_input(self.session, self.id, input_of(text)))

    def events(self) -> AsyncEventStream:
        """The turn's events, from the first to its `TurnEnded`."""
        return AsyncEventStream(self._transport, Follower(self.session, self._after, self.number))

    async def _look(self, wait: float, budgets: Mapping[str, int] = calls.NO_BUDGETS) -> api.Turn:
        asked = calls.turn(self.session, self.id, wait, budgets)
        return await self._transport.perform(asked)

    async def _settle(
        self,
        turn: api.Turn,
        on_input: Optional[AsyncOnInput],
        until: Optional[float],
        budgets: Mapping[str, int],
    ) -> api.Turn:
        while turn["state"] != "ended":
            asked = turn.get("stdin_wait") if turn["state"] == "awaiting_input" else None
            if asked:
                if on_input is None:
                    raise InputNeeded(asked["prompt"], asked["secret"])
                await self.input(await _asked(on_input, asked["prompt"], asked["secret"]))
            wait = calls.POLL_WAIT
            if until is not None:
                wait = min(wait, until - time.monotonic())
                if wait <= 0:
                    message = f"turn {self.id} has not ended yet"
                    raise Timeout("timeout", message, "wait again, or interrupt it")
            turn = await self._look(max(wait, 0.001), budgets)
        return turn

    def __repr__(self) -> str:
        return f"<windlass turn {self.id} of session {self.session}>"


class AsyncEventStream:
    """Events as they happen. An async iterator, and a context manager that closes the stream."""

    def __init__(self, transport: AsyncTransport, follower: Follower) -> None:
        self._transport = transport
        self._follower = follower
        self._stream: Optional[AsyncStream] = None
        self._ready: list[events.Event] = []

    @property
    def after(self) -> int:
        """The last event that was returned. A new stream after it continues from there."""
        return self._ready[0].seq - 1 if self._ready else self._follower.after

    def __aiter__(self) -> AsyncEventStream:
        return self

    async def __anext__(self) -> events.Event:
        while not self._ready:
            if self._follower.over:
                self.close()
                raise StopAsyncIteration
            await self._more()
        return self._ready.pop(0)

    async def _more(self) -> None:
        if self._stream is None:
            self._stream = await self._transport.stream(self._follower.open())
        try:
            data = await self._stream.chunk()
        except Failure as failure:
            self.close()
            self._follower.cut(failure.error.message)
            return
        if data:
            self._ready.extend(self._follower.feed(data))
            return
        # The node closed the stream: it is stopping, or the session has ended. A page of events
        # tells which.
        self.close()
        page = calls.events_page(self._follower.session, self._follower.after)
        self._ready.extend(self._follower.page(await self._transport.perform(page)))

    def close(self) -> None:
        stream, self._stream = self._stream, None
        if stream is not None:
            stream.close()

    async def __aenter__(self) -> AsyncEventStream:
        return self

    async def __aexit__(self, *_: object) -> Literal[False]:
        self.close()
        return False


async def _asked(on_input: AsyncOnInput, prompt: str, secret: bool) -> Optional[str]:
    answer = on_input(prompt, secret)
    return await answer if inspect.isawaitable(answer) else answer


async def _interrupt_quietly(transport: AsyncTransport, session: str, turn: str) -> None:
    """Interrupts a turn, also from a task that is being cancelled: the request runs in a separate
    task."""
    asking = asyncio.ensure_future(transport.perform(calls.interrupt(session, turn)))
    try:
        await asyncio.wait_for(asyncio.shield(asking), INTERRUPT_WAIT)
    except (WindlassError, asyncio.TimeoutError):
        pass  # The turn has ended, or the node is not reachable.


def _no_input(prompt: str, secret: bool) -> Optional[str]:
    return None


