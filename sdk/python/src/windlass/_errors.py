"""The errors of this package. Each has a stable code, a message and a remedy.

Owns the classes and the class of each code. Never decides what is retried.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, ClassVar, Optional

if TYPE_CHECKING:
    from ._results import TurnResult


class WindlassError(Exception):
    """Every failure of this package."""

    #: The codes that this class stands for.
    codes: ClassVar[tuple[str, ...]] = ()

    def __init__(
        self, code: str, message: str, remedy: str = "", *, retryable: bool = False
    ) -> None:
        super().__init__(message)
        #: A name that does not change between releases.
        self.code = code
        #: What happened.
        self.message = message
        #: What to do about it.
        self.remedy = remedy
        #: Whether the same request may succeed later.
        self.retryable = retryable

    def __str__(self) -> str:
        return f"{self.message}\n  remedy: {self.remedy}" if self.remedy else self.message

    def __reduce__(self) -> Any:
        return (_rebuilt, (type(self), self.args, self.__dict__))


def _rebuilt(kind: type[WindlassError], args: Any, attributes: dict[str, Any]) -> WindlassError:
    error = kind.__new__(kind, *args)
    error.args = args
    error.__dict__.update(attributes)
    return error


class NodeUnreachable(WindlassError):
    """No node answers."""

    codes = ("unreachable",)


class StartFailed(WindlassError):
    """The node could not be started."""

    codes = ("start_failed", "bad_directory")


class ConnectionLost(WindlassError):
    """The request left and no answer came. It is unknown whether the node carried it out."""

    codes = ("connection_lost",)


class Timeout(WindlassError, TimeoutError):
    """No answer within the time limit."""

    codes = ("timeout",)


class VersionMismatch(WindlassError):
    """This package and the node speak different versions."""

    codes = ("version_mismatch",)


class Unauthorized(WindlassError):
    """The token is missing, malformed or not the node's."""

    codes = ("unauthorized", "bad_token")


class TlsFailed(WindlassError):
    """No TLS with the node: its certificate is refused, or the URL has the wrong scheme."""

    codes = ("bad_certificate", "bad_ca", "tls_failed", "wrong_scheme")


class BadRequest(WindlassError):
    """The request has the wrong form."""

    codes = ("bad_request", "message_too_large", "bad_url")


class Overloaded(WindlassError):
    """Too many requests wait already, or the node cannot take more now."""

    codes = ("overloaded", "shutting_down", "disk_full")


class SessionNotFound(WindlassError):
    codes = ("session_not_found",)


class SessionExists(WindlassError):
    codes = ("session_exists",)


class SessionEnded(WindlassError):
    """The session is over and takes no turns."""

    codes = ("session_ended", "session_closed")


class TurnNotFound(WindlassError):
    codes = ("turn_not_found",)


class TurnNotRunning(WindlassError):
    codes = ("turn_not_running",)


class NotEnforceable(WindlassError):
    """A control that the policy requires cannot be enforced on this machine."""

    codes = ("not_enforceable",)


class WouldDeadlock(WindlassError):
    """The turn would wait for a tool call that waits for the turn."""

    codes = ("would_deadlock",)


class FileMissing(WindlassError):
    """There is no such file in the workspace."""

    codes = ("file_not_found",)


class FileConflict(WindlassError):
    """A file does not meet the request's condition. Nothing was written."""

    codes = ("file_conflict",)


class PathRefused(WindlassError):
    """The path leads out of the workspace, or to something that is not a plain file."""

    codes = ("path_refused",)


class InputNeeded(WindlassError):
    """The turn asks for input: answer with `turn.input(text)`, then wait again."""

    codes = ("awaiting_input",)

    def __init__(self, prompt: str, secret: bool) -> None:
        super().__init__(
            "awaiting_input",
            f"the turn asks for input: {prompt!r}",
            "answer with turn.input(text), or wait with on_input",
        )
        self.prompt = prompt
        self.secret = secret


class TurnFailed(WindlassError):
    """A turn did not end well; from `TurnResult.raise_for_error`."""

    def __init__(self, result: TurnResult) -> None:
        error = result.error
        what = f"{error.name}: {error.message}" if error else f"the turn ended {result.outcome}"
        code = error.code if error and error.code else result.outcome
        super().__init__(code, what, "see the turn's output")
        #: The turn.
        self.result = result

    def __str__(self) -> str:
        output = self.result.output.rstrip()
        refusal = self.result.refusal
        why = f"the sandbox refused it: {refusal['message']}" if refusal else ""
        return "\n".join(part for part in (self.message, output, why) if part)


_CLASSES: dict[str, type[WindlassError]] = {
    code: kind for kind in WindlassError.__subclasses__() for code in kind.codes
}


def failed(
    code: str, message: str, remedy: str = "", *, retryable: bool = False
) -> WindlassError:
    """An error of the class that its code names."""
    kind = _CLASSES.get(code, WindlassError)
    if kind is InputNeeded:
        kind = WindlassError
    return kind(code, message, remedy, retryable=retryable)


def from_answer(status: int, body: bytes) -> Optional[WindlassError]:
    """The error in an answer; None if the answer is not an error of a node."""
    try:
        said = json.loads(body)
        return failed(
            said["code"], said["message"], said["remedy"], retryable=bool(said["retryable"])
        )
    except (ValueError, KeyError, TypeError):
        return None
