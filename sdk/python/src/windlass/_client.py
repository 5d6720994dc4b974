"""The synchronous client: `Windlass`, its sessions and their turns. The requests are in `_calls`."""

from __future__ import annotations

import time
from contextlib import suppress
from types import TracebackType
from typing import Any, Callable, Iterator, Literal, Mapping, Optional, Sequence, Union

from . import _address
from . import _api as api
from . import _calls as calls
from . import _events as events
from ._agent_client import Agent
from ._calls import Failure
from ._errors import InputNeeded, Timeout, TurnNotRunning, WindlassError
from ._files import Files
from ._follow import Follower
from ._host import ToolHost
from ._providers import FileProvider, HostProviders, HttpProvider, LookupProvider, RunProvider
from ._results import OutputRange, TurnResult, input_of
from ._tool import Function, tool
from ._transport import Stream, Transport
from ._request_bodies import (
    PathText,
    PolicyArgument,
    budgets_of,
    context_of,
    session_body,
    turn_body,
)
from ._verbose import CallPrinter

#: Answers the code's `input()`. Gets the prompt, and whether the answer is a secret.
OnInput = Callable[[str, bool], Optional[str]]


class Windlass:
    """A node: the user's own, started if none runs, or one behind a URL.

    With `url` (or WINDLASS_URL) and `token` (or WINDLASS_TOKEN) it is the node behind that TCP
    door, which is never started from here. Of a node at an `https` URL the certificate is verified:
    against the authorities of this machine, or with `ca` (or WINDLASS_CA) only against those of that
    PEM file. `start=False` never starts a node. `verbose=True` shows
    the calls of host tools on standard error as they happen: arguments, results and errors.
    """

    def __init__(
        self,
        *,
        url: Optional[str] = None,
        token: Optional[str] = None,
        ca: Optional[str] = None,
        start: bool = True,
        verbose: bool = False,
    ) -> None:
        self._transport = Transport(_address.find(url, token, start, ca))
        self._transport.printer = CallPrinter() if verbose else None
        self._hosts: list[ToolHost] = []
        # Fail here, and not at the first use, if no node of this version answers.
        self._transport.connect()
        self._transport.perform(calls.node_status())

    def session(
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
    ) -> Session:
        """Creates a session. `policy` is a preset's name (`"read-only"`, `"workspace"`, `"open"`)
        or a full request. `environment` names a package environment (`windlass env create`), instead of an
        interpreter. With `allow_packages` the code may install packages with pip, into an environment that
        ends with the session. Tool hosts of `owner` serve the session. It ends after `idle` seconds
        without a client and a turn (0: never). `deadline` is the default for its turns, in seconds.
        The node has defaults for both.

        With `worker="pyodide"` the code can use of this program only what is given here: `files`
        serves its directory (`DirectoryFiles`, `MemoryFiles` or an object of your own), `http`,
        `lookup` and `run` its requests, name lookups and programs. Anything else is refused."""
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
        info = self._transport.perform(calls.create(body))
        session = Session(self._transport, info, owned=True)
        offered = providers.tools()
        if offered:
            try:
                session.tools(*offered)
            except BaseException:
                session.close()
                raise
        return session

    def agent(self, engine: str, **settings: Any) -> Agent:
        """An agent: `codex`, `claude`, `opencode`, `gemini` or `acp:COMMAND`. Settings: `resume`, `model`,
        `permissions` (`allow`, `ask`, `refuse`), `permission_deadline`, `stall`, `arguments`, `program`,
        and those of `session`: `workspace`, `policy`, `env`, `id`, `owner`, `idle`. With `branch` it works
        in a copy of the workspace (`"all"`: with environments, packages and caches)."""
        return Agent(self, engine, **settings)

    def _created(self, flow: calls.Flow[api.Session]) -> Session:
        return Session(self._transport, self._transport.perform(flow), owned=True)

    def attach(self, id: str) -> Session:
        """An existing session. Leaving its `with` block does not end it."""
        return Session(self._transport, self._transport.perform(calls.look(id)), owned=False)

    def sessions(self, *, ended_too: bool = False) -> list[api.Session]:
        """The live sessions, newest first; with `ended_too` all that the node remembers."""
        return self._transport.perform(calls.sessions(ended_too))

    def status(self) -> api.NodeStatus:
        """The current state of the node."""
        return self._transport.perform(calls.node_status())

    def environments(self, *, wait: float = 0) -> list[api.Environment]:
        """The interpreters for which workers are kept ready. Waits up to `wait` seconds until none of
        them is being prepared."""
        return self._transport.perform(calls.environments(wait))

    def workers(self) -> list[api.WorkerInfo]:
        """The kinds of worker that sessions can have, and what is missing for each on the node's
        machine."""
        return self._transport.perform(calls.workers())

    def stop_node(self, sessions: api.StopSessions) -> None:
        """Stops the node. `"end"` ends its sessions first; `"keep"` leaves them for the next node."""
        self._transport.perform(calls.stop_node(sessions))

    def tools(self, *functions: Function, owner: str) -> ToolHost:
        """Offers functions as tools to all sessions of that owner, present and future."""
        host = ToolHost(self._transport, owner=owner)
        self._hosts.append(host)
        host.offer(*functions)
        return host

    def close(self) -> None:
        """Closes the connections to the node. Sessions continue."""
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
        #: An event that is before every later turn.
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
        self.files = Files(transport, self.id)

    def run(
        self,
        code: str,
        *,
        on_input: Optional[OnInput] = None,
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
        """Runs code and waits until it has ended, with any outcome.

        `on_input(prompt, secret)` answers the code's `input()`; without it the code finds the end
        of its input. `deadline` is in seconds, for the run time. Breaking the wait off (Ctrl-C)
        interrupts the turn.

        `stdout_bytes_max` and `stderr_bytes_max` ask for the two streams apart, within so many
        bytes. `cwd` and `env` hold for this turn only, `file` names the code in tracebacks, and
        `args` are its arguments. With `program` the code runs as its interpreter runs a file.
        """
        budgets = budgets_of(output_bytes_max, stdout_bytes_max, stderr_bytes_max)
        context = context_of(file, args, cwd, env, program)
        body = turn_body(code, deadline, budgets, context, wait=calls.POLL_WAIT)
        answer = on_input if on_input is not None else _no_input
        try:
            first = self._transport.perform(calls.submit(self.id, body))
            turn = Turn(self._transport, self.id, first, self._seen)
            ended = turn._settle(first, answer, None, budgets)
        except WindlassError:
            raise
        except BaseException:
            _interrupt_quietly(self._transport, self.id, str(body["id"]))
            raise
        result, seen = self._transport.perform(calls.finished(ended, turn._after))
        self._seen = max(self._seen, seen)
        return result

    def submit(self, code: str, *, deadline: Optional[float] = None) -> Turn:
        """Starts a turn and returns at once."""
        after = self._transport.perform(calls.look(self.id))["seq"]
        body = turn_body(code, deadline, {}, wait=0)
        return Turn(
            self._transport, self.id, self._transport.perform(calls.submit(self.id, body)), after
        )

    def stream(
        self, code: str, *, deadline: Optional[float] = None, on_input: Optional[OnInput] = None
    ) -> Iterator[events.Event]:
        """Runs code and yields its events as they happen, up to its `TurnEnded`. A restart of the
        node in between neither loses nor repeats an event. Leaving the loop early interrupts the
        turn."""
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
        """Stops the running turn; the state stays. Without a running turn it does nothing."""
        with suppress(TurnNotRunning):
            self._transport.perform(calls.interrupt(self.id))

    def fork(self, *, id: Optional[str] = None, copy_all: bool = False) -> Session:
        """Forks this session, which must be idle. The twin has the same variables, in a copy of the
        workspace. `not_carried` of the twin lists what it does not have (threads, sockets, ...).
        `left_out` lists virtual environments, installed packages and caches, which are copied only
        with `copy_all`. Closing the twin removes the copy."""
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
        """The current state of the session."""
        return self._transport.perform(calls.look(self.id))

    def events(self, *, after: int = 0) -> EventStream:
        """The session's events after the event `after`, as they happen, until it ends."""
        return EventStream(self._transport, Follower(self.id, after))

    def output(
        self,
        *,
        turn: Optional[str] = None,
        start: Optional[int] = None,
        stop: Optional[int] = None,
        tail: Optional[int] = None,
    ) -> OutputRange:
        """Raw output of the session or of one turn: a range or the tail."""
        return self._transport.perform(calls.output(self.id, turn, start, stop, tail))

    def search_output(
        self, query: str, *, turn: Optional[str] = None, limit: Optional[int] = None
    ) -> api.SearchResult:
        """Lines of the output that hold a text."""
        return self._transport.perform(calls.search(self.id, query, turn, limit))

    def egress(self) -> api.EgressLog:
        """The hosts that the code tried to reach, and what was decided."""
        return self._transport.perform(calls.egress(self.id))

    def tools(self, *functions: Function) -> ToolHost:
        """Offers functions to the session's code, as `tools.NAME(...)`."""
        if self._host is None:
            self._host = ToolHost(self._transport, session=self.id)
        self._host.offer(*functions)
        return self._host

    def tool(self, function: Any = None, **options: Any) -> Any:
        """`@session.tool` or `@session.tool(name=..., description=..., deadline=...)`: offers one
        function, and returns it unchanged."""
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
        """Waits until the turn has ended. Raises `Timeout` after `timeout` seconds (the turn
        continues), and `InputNeeded` if the turn asks for input and there is no `on_input`."""
        until = None if timeout is None else time.monotonic() + timeout
        ended = self._settle(self._look(0), on_input, until, {})
        return self._transport.perform(calls.finished(ended, self._after))[0]

    def look(self) -> api.Turn:
        """The current state of the turn."""
        return self._look(0)

    def interrupt(self) -> None:
        """Stops the turn, if it runs or waits."""
        self._transport.perform(calls.interrupt(self.session, self.id))

    def input(self, text: Union[str, bytes, None]) -> None:
        """Sends the turn a line of input. Bytes are sent unchanged; None is the end of input."""
        self._transport.perform(calls.give_input(self.session, self.id, input_of(text)))

    def events(self) -> EventStream:
        """The turn's events, from the first to its `TurnEnded`."""
        return EventStream(self._transport, Follower(self.session, self._after, self.number))

    def _look(self, wait: float, budgets: Mapping[str, int] = calls.NO_BUDGETS) -> api.Turn:
        return self._transport.perform(calls.turn(self.session, self.id, wait, budgets))

    def _settle(
        self,
        turn: api.Turn,
        on_input: Optional[OnInput],
        until: Optional[float],
        budgets: Mapping[str, int],
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
            turn = self._look(max(wait, 0.001), budgets)
        return turn

    def __repr__(self) -> str:
        return f"<windlass turn {self.id} of session {self.session}>"


class EventStream:
    """Events as they happen. An iterator, and a context manager that closes the stream."""

    def __init__(self, transport: Transport, follower: Follower) -> None:
        self._transport = transport
        self._follower = follower
        self._stream: Optional[Stream] = None
        self._ready: list[events.Event] = []

    @property
    def after(self) -> int:
        """The last event that was returned. A new stream after it continues from there."""
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
        # The node closed the stream: it is stopping, or the session has ended. A page of events
        # tells which.
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
        pass  # The turn has ended, or the node is not reachable.


def _no_input(prompt: str, secret: bool) -> Optional[str]:
    return None


