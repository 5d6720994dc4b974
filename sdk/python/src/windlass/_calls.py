"""Requests to the node: one function for each endpoint, and the rules for sending a failed request
again. Knows no socket: the synchronous and the asynchronous client both perform these requests."""

from __future__ import annotations

import enum
import json
import secrets
import time
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Callable, Generator, Iterable, Mapping, Optional, TypeVar, Union, cast

from . import _api as api
from ._context import CURRENT
from ._errors import SessionExists, WindlassError, failed, from_answer
from ._events import body_of
from ._http import Head, path, request_head
from ._results import DisplayResult, OutputRange, TurnResult, result_of

#: The version of the API that this package speaks.
API = "1.0"
API_HEADER = "windlass-api"

#: The name of this package as a client. The node shows it with the sessions that the package creates.
CLIENT = "windlass-python"
CLIENT_HEADER = "windlass-client"

#: How long an answer may take, on top of the wait that the request itself allows, in seconds.
ANSWER_WAIT = 30.0

#: How long one request waits for a turn, in seconds.
POLL_WAIT = 30.0

#: The first and the longest pause between two attempts, in seconds.
PAUSE_FIRST = 0.005
PAUSE_MAX = 0.2

#: An attempt that lasted longer than this had reached a node: its failure starts a new outage, in
#: seconds.
OUTAGE_OVER = 1.0

#: Byte budgets of a reply, by their names in requests: none.
NO_BUDGETS: Mapping[str, int] = MappingProxyType({})

T = TypeVar("T")

#: The body of a request: bytes, or a function that yields them in pieces, called again for each
#: attempt.
Body = Union[bytes, Callable[[], Iterable[bytes]]]


class Repeat(enum.Enum):
    """Whether a request may be sent again after a connection failed."""

    #: The node carries the request out once, however often it arrives.
    FREELY = enum.auto()
    #: Send it again only if it never left.
    IF_NOT_SENT = enum.auto()


class Again(enum.Enum):
    """Whether another attempt is safe after a failed one."""

    #: The node did nothing.
    SAFE = enum.auto()
    #: The node may have acted.
    IF_REPEATABLE = enum.auto()
    NEVER = enum.auto()


class Failure(Exception):
    """A failed attempt: the error for the caller, and whether the node may have acted."""

    def __init__(self, error: WindlassError, again: Again) -> None:
        super().__init__(error.message)
        self.error = error
        self.again = again


@dataclass
class Call:
    """A request, ready to be sent any number of times."""

    method: str
    path: str
    body: Body = b""
    repeat: Repeat = Repeat.FREELY
    #: How long the answer may take.
    wait: float = ANSWER_WAIT
    headers: tuple[tuple[str, str], ...] = ()
    content_type: str = "application/json"
    #: Number of attempts so far.
    attempts: int = 0

    def head(self, introduction: Iterable[tuple[str, str]]) -> bytes:
        """The head of the request; `introduction` holds the headers that name the node and
        authorize the request."""
        headers = [*introduction, (API_HEADER, API), (CLIENT_HEADER, CLIENT), *self.headers]
        within = CURRENT.get()
        if within is not None:
            headers.append(("windlass-within", within.within))
        if callable(self.body):
            headers += [("content-type", self.content_type), ("transfer-encoding", "chunked")]
        elif self.body:
            headers.append(("content-type", self.content_type))
        if not callable(self.body) and (self.body or self.method in ("POST", "PUT")):
            headers.append(("content-length", str(len(self.body))))
        return request_head(self.method, self.path, headers)

    @property
    def name(self) -> str:
        """For messages: without the query, which may hold search text."""
        return f"{self.method} {self.path.partition('?')[0]}"

    def late(self) -> Failure:
        message = f"the node did not answer {self.name} within {self.wait:.0f} s"
        remedy = "see whether the node is healthy with: windlass status"
        return Failure(failed("timeout", message, remedy), Again.NEVER)

    def bad(self, cause: object) -> WindlassError:
        return failed(
            "bad_answer",
            f"the node's answer to {self.name} cannot be understood: {cause}",
            "check that a windlass node, and not another program, listens there",
        )


def lost(cause: object, again: Again = Again.IF_REPEATABLE) -> Failure:
    """The connection failed during or after the sending of the request."""
    error = failed(
        "connection_lost",
        f"the connection to the node ended before its answer came: {cause}",
        "check the session before you repeat the request: the node may have carried it out",
    )
    return Failure(error, again)


def answered_in_tls() -> Failure:
    error = failed(
        "wrong_scheme",
        "the node speaks HTTPS, and the URL begins with http://",
        "begin the URL with https://",
    )
    return Failure(error, Again.NEVER)


def check_version(head: Head) -> None:
    said = head.headers.get(API_HEADER, "an unnamed version")
    if said.partition(".")[0] != API.partition(".")[0]:
        error = failed(
            "version_mismatch",
            f"this package speaks API {API}, the node speaks {said}",
            "install the same release on both sides, then restart the node with: "
            "windlass down --keep-sessions && windlass up",
        )
        raise Failure(error, Again.NEVER)


def refused(call: Call, head: Head, body: bytes) -> Failure:
    """The failure in an unsuccessful answer."""
    error = from_answer(head.status, body)
    if error is None:
        return Failure(call.bad(f"status {head.status} without a JSON error body"), Again.NEVER)
    # A node that is stopping did nothing with the request, and its successor may start soon.
    return Failure(error, Again.SAFE if error.code == "shutting_down" else Again.NEVER)


@dataclass
class Outage:
    """A run of failed attempts of one call."""

    retry_for: float
    _attempt_began: float = field(default_factory=time.monotonic)
    _failing_since: Optional[float] = None
    _pause: float = PAUSE_FIRST

    def pause_after(self, failure: Failure, repeat: Repeat) -> float:
        """How long to wait before the next attempt; raises if there is no further attempt."""
        now = time.monotonic()
        if now - self._attempt_began > OUTAGE_OVER:
            self._failing_since, self._pause = None, PAUSE_FIRST
        may_repeat = failure.again is Again.SAFE or (
            failure.again is Again.IF_REPEATABLE and repeat is Repeat.FREELY
        )
        if self._failing_since is None:
            self._failing_since = now
        if not may_repeat or now - self._failing_since + self._pause > self.retry_for:
            raise failure.error from None
        pause, self._pause = self._pause, min(self._pause * 2, PAUSE_MAX)
        self._attempt_began = now + pause
        return pause


@dataclass
class Answer:
    """A successful answer with its whole body."""

    head: Head
    body: bytes
    call: Call

    def json(self) -> Any:
        try:
            return json.loads(self.body)
        except ValueError as error:
            raise self.call.bad(error) from None


#: A generator that yields requests and returns their result.
Flow = Generator[Call, Answer, T]


def fresh_turn_id() -> str:
    """A new turn id. A turn with an id can be submitted again safely."""
    return "t" + secrets.token_hex(12)


def post(path: str, body: object, repeat: Repeat, wait: float = 0.0) -> Call:
    said = b"" if body is None else json.dumps(body, separators=(",", ":")).encode()
    return Call("POST", path, said, repeat, ANSWER_WAIT + wait)


# Sessions


def create(wanted: api.CreateSession) -> Flow[api.Session]:
    """Creates a session. With an id that this package chose, sending the request twice is safe."""
    own_name = not wanted.get("id")
    if own_name:
        wanted["id"] = "s" + secrets.token_hex(6)
    repeat = Repeat.FREELY if own_name else Repeat.IF_NOT_SENT
    call = post(path("sessions"), wanted, repeat)
    try:
        answer = yield call
    except SessionExists:
        if own_name and call.attempts > 1:
            return (yield from look(str(wanted["id"])))
        raise
    return cast(api.Session, answer.json()["session"])


def look(session: str) -> Flow[api.Session]:
    return cast(api.Session, (yield Call("GET", path("sessions", session))).json())


def sessions(ended_too: bool) -> Flow[list[api.Session]]:
    answer = yield Call("GET", path("sessions", all=True if ended_too else None))
    return cast("list[api.Session]", answer.json()["sessions"])


def close(session: str, grace_ms: Optional[int]) -> Flow[api.Session]:
    call = Call("DELETE", path("sessions", session, grace_ms=grace_ms))
    call.wait += (grace_ms or 0) / 1000
    return cast(api.Session, (yield call).json())


#: How long a fork may take: a large workspace is copied first.
FORK_WAIT = 120.0


def fork(session: str, id: Optional[str], copy_all: bool) -> Flow[api.ForkedSession]:
    wanted = {} if id is None else {"id": id}
    if copy_all:
        wanted["copy"] = "all"
    place = path("sessions", session, "fork")
    answer = yield post(place, wanted, Repeat.IF_NOT_SENT, FORK_WAIT)
    return cast("api.ForkedSession", answer.json())


def reset(session: str) -> Flow[api.Session]:
    answer = yield post(path("sessions", session, "reset"), None, Repeat.IF_NOT_SENT)
    return cast(api.Session, answer.json())


def interrupt(session: str, turn: Optional[str] = None) -> Flow[api.Turn]:
    """Interrupts a turn. A named turn may be interrupted twice. Without a name the request must not
    be repeated: it could hit the next turn."""
    if turn is None:
        where, repeat = path("sessions", session, "interrupt"), Repeat.IF_NOT_SENT
    else:
        where, repeat = path("sessions", session, "turns", turn, "interrupt"), Repeat.FREELY
    return cast(api.Turn, (yield post(where, None, repeat)).json())


# Turns


def submit(session: str, turn: api.SubmitTurn) -> Flow[api.Turn]:
    wait = turn.get("wait_ms", 0) / 1000
    call = post(path("sessions", session, "turns"), turn, Repeat.FREELY, wait)
    return cast(api.Turn, (yield call).json())


def turn(
    session: str, turn: str, wait: float, budgets: Mapping[str, int] = NO_BUDGETS
) -> Flow[api.Turn]:
    """`budgets` has `output_bytes_max` and its like, as in `SubmitTurn`."""
    wait_ms = int(wait * 1000) or None
    where = path("sessions", session, "turns", turn, wait_ms=wait_ms, **budgets)
    return cast(api.Turn, (yield Call("GET", where, wait=ANSWER_WAIT + wait)).json())


def give_input(session: str, turn: str, given: api.TurnInput) -> Flow[api.Turn]:
    where = path("sessions", session, "turns", turn, "input")
    return cast(api.Turn, (yield post(where, given, Repeat.IF_NOT_SENT)).json())


def finished(turn: api.Turn, after: int) -> Flow[tuple[TurnResult, int]]:
    """An ended turn with its result and its displays. `after` is an event before the turn's output.
    The second returned value is an event before the next turn's output."""
    session = turn["session"]
    result = None
    if turn["output"]["bytes"] and turn.get("outcome") == "ok":
        result, after = yield from _shown_result(session, turn, after)
    displays = []
    for display in turn.get("displays", []):
        answer = yield Call("GET", path("sessions", session, "displays", str(display["seq"])))
        displays.append(
            DisplayResult(display["mime"], answer.body, display.get("id"), display["seq"])
        )
    return result_of(turn, result, tuple(displays)), after


#: Number of events that are read to find a turn's result, from the end of the session backwards:
#: first as many as a small turn has, then twice as many each time.
RESULT_EVENTS_FIRST = 16
RESULT_EVENTS_MAX = 1000

#: If a turn has at most this much output, its events are read from the turn's start, where the
#: result is near.
RESULT_NEAR_BYTES = 64 * 1024


def _shown_result(session: str, turn: api.Turn, after: int) -> Flow[tuple[Optional[bytes], int]]:
    """The value of the last expression: the events of the stream `result`, which are the last ones
    of a turn."""
    number = turn["number"]
    if turn["output"]["bytes"] <= RESULT_NEAR_BYTES:
        page = yield from events_page(session, after, RESULT_EVENTS_MAX)
        for event in page["events"]:
            if event["kind"] == "turn_ended" and event.get("turn") == number:
                return _joined(page["events"], number), event["seq"]
    end = (yield from look(session))["seq"]
    count, found = RESULT_EVENTS_FIRST, cast("list[api.EventItem]", [])
    while end > after and (not found or _is_result(found[0])):
        start = max(after, end - count)
        page = yield from events_page(session, start, end - start)
        found = [event for event in page["events"] if event.get("turn") == number] + found
        end, count = start, min(count * 2, RESULT_EVENTS_MAX)
    return _joined(found, number), max([after, *(event["seq"] for event in found)])


def _is_result(event: Mapping[str, Any]) -> bool:
    return bool(event["kind"] == "output" and event["stream"] == "result")


def _joined(events: Iterable[Mapping[str, Any]], number: int) -> Optional[bytes]:
    parts = [body_of(e) for e in events if e.get("turn") == number and _is_result(e)]
    return b"".join(parts) if parts else None


# Events and output


def events_page(session: str, after: int, limit: Optional[int] = None) -> Flow[api.Events]:
    call = Call("GET", path("sessions", session, "events", after=after, limit=limit))
    return cast(api.Events, (yield call).json())


def events_stream(session: str, after: int) -> Call:
    """The answer is a stream. The query and the header name the same position: a proxy repeats the
    header."""
    accept = (("accept", "text/event-stream"), ("last-event-id", str(after)))
    return Call("GET", path("sessions", session, "events", after=after), headers=accept)


def output(
    session: str,
    turn: Optional[str],
    start: Optional[int],
    stop: Optional[int],
    tail: Optional[int],
) -> Flow[OutputRange]:
    asked = {"turn": turn, "from": start, "to": stop, "tail": tail}
    answer = yield Call("GET", path("sessions", session, "output", **asked))
    said = answer.head.headers
    try:
        start = int(said["windlass-output-from"])
        return OutputRange(
            data=answer.body,
            start=start,
            next=int(said.get("windlass-output-next", start + len(answer.body))),
            total=int(said["windlass-output-total"]),
            dropped=int(said["windlass-output-dropped"]),
        )
    except (KeyError, ValueError) as error:
        raise answer.call.bad(f"a header is missing or not a number: {error}") from None


def search(
    session: str, query: str, turn: Optional[str], limit: Optional[int]
) -> Flow[api.SearchResult]:
    where = path("sessions", session, "output", "search", query=query, turn=turn, limit=limit)
    return cast(api.SearchResult, (yield Call("GET", where)).json())


def egress(session: str) -> Flow[api.EgressLog]:
    return cast(api.EgressLog, (yield Call("GET", path("sessions", session, "egress"))).json())


# The node


def node_status() -> Flow[api.NodeStatus]:
    return cast(api.NodeStatus, (yield Call("GET", path("version"))).json())


def environments(wait: float) -> Flow[list[api.Environment]]:
    place = path("environments", wait_ms=int(wait * 1000) or None)
    answer = yield Call("GET", place, wait=ANSWER_WAIT + wait)
    return cast("list[api.Environment]", answer.json()["environments"])


def workers() -> Flow[list[api.WorkerInfo]]:
    return cast("list[api.WorkerInfo]", (yield Call("GET", path("workers"))).json()["workers"])


def stop_node(sessions: api.StopSessions) -> Flow[api.NodeStatus]:
    answer = yield post(path("node", "stop"), {"sessions": sessions}, Repeat.IF_NOT_SENT)
    return cast(api.NodeStatus, answer.json())
