"""The events of a session, as typed objects. Owns the classes and their construction from the API's
JSON. Does not follow events (`_follow` does)."""

from __future__ import annotations

import base64
from dataclasses import dataclass, field
from typing import Any, Callable, Mapping, Optional

from . import _api as api


@dataclass(frozen=True)
class Event:
    """One numbered fact of a session."""

    #: Its position in the session; a stream can be resumed after it.
    seq: int
    #: When the node received it: milliseconds since the Unix epoch.
    at_ms: int
    #: The number of the turn it belongs to, if it does.
    turn: Optional[int]
    #: The event as the node sent it.
    raw: Mapping[str, Any] = field(repr=False, compare=False)

    @property
    def kind(self) -> str:
        return str(self.raw.get("kind", ""))


@dataclass(frozen=True)
class TurnAccepted(Event):
    """The node accepted a turn; it waits or runs."""

    id: str
    code: str


@dataclass(frozen=True)
class Output(Event):
    """Output of the code: printed text, its result, or a traceback."""

    stream: api.Stream
    data: bytes = field(repr=False)
    #: The data as text. A character that was split between two events is joined.
    text: str
    #: Written by a thread or process that outlived its turn.
    background: bool = False


@dataclass(frozen=True)
class Display(Event):
    """Rich output: a picture, a page, a table. Always complete."""

    mime: str
    data: bytes = field(repr=False)
    id: Optional[str] = None
    #: Replaces the display with the same id.
    update: bool = False

    @property
    def text(self) -> str:
        return self.data.decode("utf-8", "replace")


@dataclass(frozen=True)
class StdinWait(Event):
    """The code asks for input and blocks."""

    prompt: str
    secret: bool


@dataclass(frozen=True)
class InputTaken(Event):
    """Input was sent to the code."""

    bytes: int


@dataclass(frozen=True)
class InterruptAsked(Event):
    """The turn is being stopped."""

    cause: api.StopCause


@dataclass(frozen=True)
class ToolCalled(Event):
    """The code calls a host tool. The arguments are not kept."""

    call: int
    name: str
    bytes: int


@dataclass(frozen=True)
class ToolCancelled(Event):
    """The code has cancelled a call."""

    call: int


@dataclass(frozen=True)
class ToolEnded(Event):
    """A call is over."""

    call: int
    ok: bool
    code: Optional[str]
    bytes: int
    wall_ms: float


@dataclass(frozen=True)
class TurnEnded(Event):
    """The turn is over. The last event of a turn's stream."""

    outcome: api.Outcome
    error: Optional[api.TurnError]
    usage: Optional[api.Usage]
    receipt: Optional[api.Receipt]
    refusal: Optional[api.PolicyRefusal]

    @property
    def ok(self) -> bool:
        return self.outcome == "ok"


@dataclass(frozen=True)
class OutputDropped(Event):
    """Output bytes that were not kept."""

    bytes: int
    reason: api.DropReason


@dataclass(frozen=True)
class LimitReached(Event):
    """The session ran into a limit of its policy."""

    limit: api.Limit
    message: str


@dataclass(frozen=True)
class WorkerReady(Event):
    """A worker is up and can take turns."""

    worker: str
    pid: int
    restarts: int


@dataclass(frozen=True)
class WorkerEnded(Event):
    """The worker process is gone."""

    cause: str


@dataclass(frozen=True)
class SessionEnded(Event):
    """The session is over. Nothing follows."""

    reason: api.EndReason
    receipt: Optional[api.Receipt]


@dataclass(frozen=True)
class OtherEvent(Event):
    """An event of a kind that has no class here; see `kind` and `raw`."""


def body_of(raw: Mapping[str, Any]) -> bytes:
    """The bytes that came with an event."""
    if raw.get("base64") is not None:
        return base64.b64decode(raw["base64"])
    return str(raw.get("text") or "").encode()


def make(raw: Mapping[str, Any], body: bytes, text: str) -> Event:
    """The event as its class. `body` is the complete body, which may have come in several events.
    """
    common = (raw["seq"], raw["at_ms"], raw.get("turn"), raw)
    maker = _MAKERS.get(raw["kind"])
    return maker(common, raw, body, text) if maker else OtherEvent(*common)


_Common = tuple[int, int, Optional[int], Mapping[str, Any]]
_Maker = Callable[[_Common, Mapping[str, Any], bytes, str], Event]

_MAKERS: dict[str, _Maker] = {
    "turn_accepted": lambda c, raw, body, text: TurnAccepted(*c, raw["id"], text),
    "output": lambda c, raw, body, text: Output(
        *c, raw["stream"], body, text, raw.get("background", False)
    ),
    "display": lambda c, raw, body, text: Display(
        *c, raw["mime"], body, raw.get("id"), raw.get("update", False)
    ),
    "stdin_wait": lambda c, raw, body, text: StdinWait(*c, raw["prompt"], raw["secret"]),
    "input_taken": lambda c, raw, body, text: InputTaken(*c, raw["bytes"]),
    "interrupt_asked": lambda c, raw, body, text: InterruptAsked(*c, raw["cause"]),
    "tool_call": lambda c, raw, body, text: ToolCalled(
        *c, raw["call"], raw["name"], raw.get("bytes", 0)
    ),
    "tool_cancel": lambda c, raw, body, text: ToolCancelled(*c, raw["call"]),
    "tool_ended": lambda c, raw, body, text: ToolEnded(
        *c, raw["call"], raw["ok"], raw.get("code"), raw["bytes"], raw["wall_ms"]
    ),
    "turn_ended": lambda c, raw, body, text: TurnEnded(
        *c,
        raw["outcome"],
        raw.get("error"),
        raw.get("usage"),
        raw.get("receipt"),
        raw.get("refusal"),
    ),
    "output_dropped": lambda c, raw, body, text: OutputDropped(*c, raw["bytes"], raw["reason"]),
    "limit_reached": lambda c, raw, body, text: LimitReached(*c, raw["limit"], raw["message"]),
    "worker_ready": lambda c, raw, body, text: WorkerReady(
        *c, raw["worker"], raw["pid"], raw["restarts"]
    ),
    "worker_ended": lambda c, raw, body, text: WorkerEnded(*c, raw["cause"]),
    "session_ended": lambda c, raw, body, text: SessionEnded(
        *c, raw["reason"], raw.get("receipt")
    ),
}
