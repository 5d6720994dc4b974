"""The synchronous client: `Windlass`, its sessions and their turns. The requests are in `_calls`."""

from __future__ import annotations

import time
from types import TracebackType
from typing import Any, Callable, Iterator, Literal, Mapping, Optional, Union

from . import _address
from . import _api as api
from . import _calls as calls
from . import _events as events
from ._calls import Failure
from ._errors import InputNeeded, Timeout, WindlassError
from ._files import Files
from ._follow import Follower
from ._host import ToolHost
from ._results import OutputRange, TurnResult, input_of
from ._tool import Function, tool
from ._transport import Stream, Transport
from ._wishes import PathText, PolicyWish, session_wish, turn_wish

#: Answers what code asks for: the prompt, and whether the answer is a secret.
OnInput = Callable[[str, bool], Optional[str]]


class Windlass:
    """A node: this user's own, started if there is none, or one behind a URL.

    With `url` (or WINDLASS_URL) and `token` (or WINDLASS_TOKEN) it is the node behind that TCP door,
    which is never started from here. `start=False` starts none at all.
    """

    def __init__(
        self, *, url: Optional[str] = None, token: Optional[str] = None, start: bool = True
    ) -> None:
        self._transport = Transport(_address.find(url, token, start))
        self._hosts: list[ToolHost] = []
        # Fails here, and not at the first use, when there is no node of this version.
        self._transport.connect()
        self._transport.perform(calls.node_status())

    def session(
        self,
        *,
        id: Optional[str] = None,
        workspace: Optional[PathText] = None,
        policy: Optional[PolicyWish] = None,
        interpreter: Optional[PathText] = None,
        env: Optional[Mapping[str, str]] = None,
        owner: Optional[str] = None,
        worker: Optional[str] = None,
        interrupt_grace: Optional[float] = None,
        output_quota_bytes: Optional[int] = None,
        idle: Optional[float] = None,
        deadline: Optional[float] = None,
    ) -> Session:
        """A new session. `policy` is a preset's name (`"read-only"`, `"workspace"`, `"open"`) or a
        request in full; `owner` says whose tool hosts serve it. It ends after `idle` seconds without a
        client and a turn (0: never), and its turns have `deadline` seconds where they do not say; the
        node has defaults for both."""
        wish = session_wish(
            id=id,
            workspace=workspace,
            policy=policy,
            interpreter=interpreter,
            env=env,
            owner=owner,
            worker=worker,
            interrupt_grace=interrupt_grace,
            output_quota_bytes=output_quota_bytes,
            idle=idle,
            deadline=deadline,
        )
        info = self._transport.perform(calls.create(wish))
        return Session(self._transport, info, owned=True)

    def attach(self, id: str) -> Session:
        """A session that is there. Leaving its `with` block does not end it."""
        return Session(self._transport, self._transport.perform(calls.look(id)), owned=False)

    def sessions(self, *, ended_too: bool = False) -> list[api.Session]:
        """The live sessions, newest first, or all that the node remembers."""
        return self._transport.perform(calls.sessions(ended_too))

    def status(self) -> api.NodeStatus:
        """The node as it is now."""
        return self._transport.perform(calls.node_status())

    def tools(self, *functions: Function, owner: str) -> ToolHost:
        """Offers functions as tools to all sessions of that owner, present and future."""
        host = ToolHost(self._transport, owner=owner)
        self._hosts.append(host)
        host.offer(*functions)
        return host

    def close(self) -> None:
        """Lets go of the node. Sessions go on."""
        for host in self._hosts:
            host.close()
        self._transport.close()

    def __enter__(self) -> Windlass:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Session:
    """A session: one persistent interpreter, driven by turns."""

    def __init__(self, transport: Transport, info: api.Session, *, owned: bool) -> None:
        self._transport = transport
        self._owned = owned
        self._host: Optional[ToolHost] = None
        #: An event that every later turn comes after.
        self._seen: int = info["seq"]
        self.id: str = info["id"]
        #: The directory that the code works in.
        self.workspace: str = info["workspace"]
        #: What a fork has left with the original; empty for a session that is none.
        self.not_carried: list[api.NotCarried] = []
        #: Threads and processes of the original from before the fork that could reach the twin.
        self.can_reach: list[api.CanReach] = []
        #: Directories that a fork's copy of the workspace does not have.
        self.left_out: list[api.LeftOutDirectory] = []
        #: Its files, in and out.
        self.files = Files(transport, self.id)

    def run(
        self,
        code: str,
        *,
        on_input: Optional[OnInput] = None,
        deadline: Optional[float] = None,
        output_bytes_max: Optional[int] = None,
    ) -> TurnResult:
        """Runs code and waits until it has ended, however it does.

        `on_input(prompt, secret)` answers the code's `input()`; without it the code finds the end of
        its input. `deadline` is in seconds, for the work. A wait that is broken off (Ctrl-C)
        interrupts the turn.
        """
        wish = turn_wish(code, deadline, output_bytes_max, wait=calls.POLL_WAIT)
        answer = on_input if on_input is not None else _no_input
        try:
            first = self._transport.perform(calls.submit(self.id, wish))
            turn = Turn(self._transport, self.id, first, self._seen)
            ended = turn._settle(first, answer, None, output_bytes_max)
        except WindlassError:
            raise
        except BaseException:
            _interrupt_quietly(self._transport, self.id, str(wish["id"]))
            raise
        result, seen = self._transport.perform(calls.finished(ended, turn._after))
        self._seen = max(self._seen, seen)
        return result

    def submit(self, code: str, *, deadline: Optional[float] = None) -> Turn:
        """Starts a turn and returns at once."""
        after = self._transport.perform(calls.look(self.id))["seq"]
        wish = turn_wish(code, deadline, None, wait=0)
        return Turn(
            self._transport, self.id, self._transport.perform(calls.submit(self.id, wish)), after
        )

    def stream(
        self, code: str, *, deadline: Optional[float] = None, on_input: Optional[OnInput] = None
    ) -> Iterator[events.Event]:
        """Runs code and gives its events as they happen, up to its `TurnEnded`. Restarts of the node
        in between lose and double nothing. Leaving the loop early interrupts the turn."""
        turn = self.submit(code, deadline=deadline)
        over = False
        try:
            with turn.events() as stream:
                for event in stream:
                    over = isinstance(event, (events.TurnEnded, events.SessionEnded))
                    yield event
                    if on_input is not None and isinstance(event, events.StdinWait):
                        turn.input(on_input(event.prompt, event.secret))
        finally:
            if not over:
                _interrupt_quietly(self._transport, self.id, turn.id)

    def turn(self, id: str) -> Turn:
        """A turn of this session by its id."""
        return Turn(self._transport, self.id, self._transport.perform(calls.turn(self.id, id, 0)), 0)

    def interrupt(self) -> None:
        """Stops the running turn; the state stays."""
        self._transport.perform(calls.interrupt(self.id))

    def fork(self, *, id: Optional[str] = None, copy_all: bool = False) -> Session:
        """A twin of this session, which must be idle: a session with the same variables, in a copy
        of the workspace. What it does not have (threads, sockets, ...) is in its `not_carried`.
        Virtual environments, installed packages and caches are in its `left_out`; `copy_all` copies
        them. The copy goes when the twin is closed."""
        forked = self._transport.perform(calls.fork(self.id, id, copy_all))
        twin = Session(self._transport, forked["session"], owned=True)
        twin.not_carried = forked["not_carried"]
        twin.can_reach = forked.get("can_reach", [])
        twin.left_out = forked.get("left_out", [])
        return twin

    def reset(self) -> api.Session:
        """Gives the session a fresh worker: variables are gone, files stay."""
        return self._transport.perform(calls.reset(self.id))

    def info(self) -> api.Session:
        """The session as it is now."""
        return self._transport.perform(calls.look(self.id))

    def events(self, *, after: int = 0) -> EventStream:
        """The session's events after one, as they happen, until it ends."""
        return EventStream(self._transport, Follower(self.id, after))

    def output(
        self,
        *,
        turn: Optional[str] = None,
        start: Optional[int] = None,
        stop: Optional[int] = None,
        tail: Optional[int] = None,
    ) -> OutputRange:
        """Raw output: a range of it or its tail, of the session or of one turn."""
        return self._transport.perform(calls.output(self.id, turn, start, stop, tail))

    def search_output(
        self, query: str, *, turn: Optional[str] = None, limit: Optional[int] = None
    ) -> api.SearchResult:
        """Lines of the output that hold a text."""
        return self._transport.perform(calls.search(self.id, query, turn, limit))

    def egress(self) -> api.EgressLog:
        """Which hosts the code reached for, and what was decided."""
        return self._transport.perform(calls.egress(self.id))

    def tools(self, *functions: Function) -> ToolHost:
        """Offers functions to the session's code, as `tools.NAME(...)`."""
        if self._host is None:
            self._host = ToolHost(self._transport, session=self.id)
        self._host.offer(*functions)
        return self._host

    def tool(self, function: Any = None, **options: Any) -> Any:
        """`@session.tool` or `@session.tool(name=..., description=..., deadline=...)`: offers one
        function, and gives it back as it is."""
        if function is not None:
            self.tools(function)
            return function

        def offer(function: Any) -> Any:
            self.tools(tool(function, **options))
            return function

        return offer

    def close(self, *, grace: Optional[float] = None) -> api.Session:
        """Ends the session and everything it started."""
        if self._host is not None:
            self._host.close()
        grace_ms = None if grace is None else int(grace * 1000)
        return self._transport.perform(calls.close(self.id, grace_ms))

    def __enter__(self) -> Session:
        return self

    def __exit__(
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
            self.close()
        except WindlassError as failure:
            # A node that is gone or stopping has ended its sessions, or their keepers end them.
            gone = ("unreachable", "connection_lost", "shutting_down", "session_ended")
            if failure.code not in gone and error is None:
                raise

    def __repr__(self) -> str:
        return f"<windlass session {self.id}>"


class Turn:
    """A turn that was submitted."""

    def __init__(self, transport: Transport, session: str, turn: api.Turn, after: int) -> None:
        self._transport = transport
        self._after = after
        self.session = session
        self.id: str = turn["id"]
        self.number: int = turn["number"]

    def wait(
        self, timeout: Optional[float] = None, *, on_input: Optional[OnInput] = None
    ) -> TurnResult:
        """The turn once it has ended. Raises `Timeout` when that takes longer than `timeout` seconds
        (the turn goes on), and `InputNeeded` when it asks and there is no `on_input`."""
        until = None if timeout is None else time.monotonic() + timeout
        ended = self._settle(self._look(0), on_input, until, None)
        return self._transport.perform(calls.finished(ended, self._after))[0]

    def look(self) -> api.Turn:
        """The turn as it is now."""
        return self._look(0)

    def interrupt(self) -> None:
        """Stops it, if it runs or waits."""
        self._transport.perform(calls.interrupt(self.session, self.id))

    def input(self, text: Union[str, bytes, None]) -> None:
        """Gives it a line of input; raw bytes as they are; None is the end of input."""
        self._transport.perform(calls.give_input(self.session, self.id, input_of(text)))

    def events(self) -> EventStream:
        """Its events from the first on, up to its `TurnEnded`."""
        return EventStream(self._transport, Follower(self.session, self._after, self.number))

    def _look(self, wait: float, output_bytes_max: Optional[int] = None) -> api.Turn:
        return self._transport.perform(calls.turn(self.session, self.id, wait, output_bytes_max))

    def _settle(
        self,
        turn: api.Turn,
        on_input: Optional[OnInput],
        until: Optional[float],
        output_bytes_max: Optional[int],
    ) -> api.Turn:
        while turn["state"] != "ended":
            asked = turn.get("stdin_wait") if turn["state"] == "awaiting_input" else None
            if asked:
                if on_input is None:
                    raise InputNeeded(asked["prompt"], asked["secret"])
                self.input(on_input(asked["prompt"], asked["secret"]))
            wait = calls.POLL_WAIT
            if until is not None:
                wait = min(wait, until - time.monotonic())
                if wait <= 0:
                    message = f"turn {self.id} has not ended yet"
                    raise Timeout("timeout", message, "wait again, or interrupt it")
            turn = self._look(max(wait, 0.001), output_bytes_max)
        return turn

    def __repr__(self) -> str:
        return f"<windlass turn {self.id} of session {self.session}>"


class EventStream:
    """Events as they happen. An iterator, and a context manager that ends the following."""

    def __init__(self, transport: Transport, follower: Follower) -> None:
        self._transport = transport
        self._follower = follower
        self._stream: Optional[Stream] = None
        self._ready: list[events.Event] = []

    @property
    def after(self) -> int:
        """The last event that was seen; a new stream after it goes on from there."""
        return self._ready[0].seq - 1 if self._ready else self._follower.after

    def __iter__(self) -> EventStream:
        return self

    def __next__(self) -> events.Event:
        while not self._ready:
            if self._follower.over:
                self.close()
                raise StopIteration
            self._more()
        return self._ready.pop(0)

    def _more(self) -> None:
        if self._stream is None:
            self._stream = self._transport.stream(self._follower.open())
        try:
            data = self._stream.chunk()
        except Failure as failure:
            self.close()
            self._follower.cut(failure.error.message)
            return
        if data:
            self._ready.extend(self._follower.feed(data))
            return
        # The node closed it: it stops, or nothing can follow. Asking tells which.
        self.close()
        page = calls.events_page(self._follower.session, self._follower.after)
        self._ready.extend(self._follower.page(self._transport.perform(page)))

    def close(self) -> None:
        stream, self._stream = self._stream, None
        if stream is not None:
            stream.close()

    def __enter__(self) -> EventStream:
        return self

    def __exit__(self, *_: object) -> Literal[False]:
        self.close()
        return False

    def __del__(self) -> None:
        self.close()


def _interrupt_quietly(transport: Transport, session: str, turn: str) -> None:
    try:
        transport.perform(calls.interrupt(session, turn))
    except WindlassError:
        pass  # It has ended, or its node is away: there is nobody to tell.


def _no_input(prompt: str, secret: bool) -> Optional[str]:
    return None


