"""Results of turns and other answers, as plain objects. Nothing here sends a request."""

from __future__ import annotations

import base64
import json
from dataclasses import dataclass, field
from typing import Any, Mapping, Optional

from . import _api as api
from ._errors import TurnFailed


@dataclass(frozen=True)
class TurnError:
    """What went wrong in a turn."""

    #: The exception's class, or a short name of what happened.
    name: str
    message: str
    #: A stable code when Windlass ended the turn; None when the code itself raised.
    code: Optional[str] = None


@dataclass(frozen=True)
class DisplayResult:
    """Rich output of a turn, complete."""

    mime: str
    data: bytes = field(repr=False)
    id: Optional[str] = None
    seq: int = 0

    @property
    def text(self) -> str:
        return self.data.decode("utf-8", "replace")

    def json(self) -> Any:
        """The value of a display in JSON."""
        return json.loads(self.data)


@dataclass(frozen=True)
class TurnResult:
    """A turn that has ended."""

    session: str
    id: str
    number: int
    outcome: api.Outcome
    #: All printed and shown text, in order. Long output is cut in the middle.
    output: str
    #: The value of the last expression as a REPL shows it; None if there was none.
    result: Optional[str] = None
    error: Optional[TurnError] = None
    displays: tuple[DisplayResult, ...] = ()
    #: Bytes of output in all, and how many of them are not in `output`.
    output_bytes: int = 0
    omitted_bytes: int = 0
    #: The exit status of the code; None if its worker reports none.
    exit_code: Optional[int] = None
    #: The value of the last expression, if it is small and can be written as JSON; else None.
    value: Any = None
    #: Standard output, and standard error with the traceback, each on its own; None unless the
    #: request asked for them.
    stdout: Optional[str] = None
    stderr: Optional[str] = None
    #: Resources that the turn used, and what was lost with it.
    usage: Optional[api.Usage] = field(default=None, repr=False)
    receipt: Optional[api.Receipt] = None
    #: What the session's policy refused, and the option that allows it, if that made the turn fail.
    refusal: Optional[api.PolicyRefusal] = None
    #: The turn as the node sent it.
    raw: Mapping[str, Any] = field(default_factory=dict, repr=False, compare=False)

    @property
    def ok(self) -> bool:
        return self.outcome == "ok"

    @property
    def text(self) -> str:
        """The same as `output`."""
        return self.output

    def raise_for_error(self) -> TurnResult:
        """The same turn if it ended well; else raises `TurnFailed`."""
        if not self.ok:
            raise TurnFailed(self)
        return self


@dataclass(frozen=True)
class OutputRange:
    """A range of raw output."""

    data: bytes = field(repr=False)
    #: Where the range begins, and where to continue reading.
    start: int
    next: int
    #: Bytes of output in all, and bytes that the node did not keep.
    total: int
    dropped: int

    @property
    def text(self) -> str:
        return self.data.decode("utf-8", "replace")


def result_of(
    turn: api.Turn, result: Optional[bytes], displays: tuple[DisplayResult, ...]
) -> TurnResult:
    """The result of an ended turn, with its value and its displays."""
    said = turn.get("error")
    error = TurnError(said["name"], said["message"], said.get("code")) if said else None
    view = turn["output"]
    shown = result.decode("utf-8", "replace") if result is not None else None
    return TurnResult(
        session=turn["session"],
        id=turn["id"],
        number=turn["number"],
        outcome=turn.get("outcome") or "lost",
        output=view["text"],
        result=shown.removesuffix("\n") if shown is not None else None,
        error=error,
        displays=displays,
        output_bytes=view["bytes"],
        omitted_bytes=view.get("omitted_bytes", 0),
        exit_code=turn.get("exit_code"),
        value=turn.get("value"),
        stdout=_text_of(turn.get("stdout")),
        stderr=_text_of(turn.get("stderr")),
        usage=turn.get("usage"),
        receipt=turn.get("receipt"),
        refusal=turn.get("refusal"),
        raw=turn,
    )


def _text_of(view: Optional[api.StreamView]) -> Optional[str]:
    return None if view is None else view["text"]


def input_of(text: str | bytes | None) -> api.TurnInput:
    """Input for a turn: a line of text, unchanged bytes, or the end of input."""
    if text is None:
        return {"eof": True}
    if isinstance(text, bytes):
        return {"base64": base64.b64encode(text).decode()}
    return {"text": text if text.endswith("\n") else text + "\n"}
