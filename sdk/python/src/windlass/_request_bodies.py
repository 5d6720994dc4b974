"""Request bodies from the caller's arguments: seconds become milliseconds, relative paths become
absolute, absent arguments are left out."""

from __future__ import annotations

import math
import os
from typing import Any, Mapping, Optional, Sequence, Union, cast

from . import _api as api
from ._calls import fresh_turn_id

#: A preset's name, or a full policy request.
PolicyArgument = Union[api.Preset, api.PolicyRequest, str, Mapping[str, Any]]

#: A path, as text or as a path object.
PathText = Union[str, "os.PathLike[str]"]


def session_body(
    *,
    id: Optional[str],
    workspace: Optional[PathText],
    policy: Optional[PolicyArgument],
    interpreter: Optional[PathText],
    environment: Optional[str],
    allow_packages: bool,
    env: Optional[Mapping[str, str]],
    owner: Optional[str],
    worker: Optional[str],
    interrupt_grace: Optional[float],
    output_quota_bytes: Optional[int],
    idle: Optional[float],
    deadline: Optional[float],
) -> api.CreateSession:
    body: dict[str, Any] = {
        "id": id,
        # The node runs in another directory, where a relative path means another path.
        "workspace": None if workspace is None else os.path.abspath(workspace),
        "policy": {"preset": policy} if isinstance(policy, str) else _absolute_policy(policy),
        "interpreter": None if interpreter is None else _program(os.fspath(interpreter)),
        "environment": environment,
        "allow_packages": allow_packages or None,
        "env": dict(env) if env else None,
        "owner": owner,
        "worker": worker,
        "interrupt_grace_ms": _ms(interrupt_grace),
        "output_quota_bytes": output_quota_bytes,
        # 0 means never, so a fraction of a second must not become 0.
        "idle_s": None if idle is None else math.ceil(idle),
        "deadline_ms": _ms(deadline),
    }
    return cast(api.CreateSession, {k: v for k, v in body.items() if v is not None})


def turn_body(
    code: str,
    deadline: Optional[float],
    budgets: Mapping[str, int],
    context: Optional[api.TurnContext] = None,
    *,
    wait: float,
) -> api.SubmitTurn:
    body: dict[str, Any] = {
        "id": fresh_turn_id(),
        "code": code,
        "wait_ms": _ms(wait) or None,
        "deadline_ms": _ms(deadline),
        "context": context,
        **budgets,
    }
    return cast(api.SubmitTurn, {k: v for k, v in body.items() if v is not None})


def _program(named: str) -> str:
    """A relative path becomes absolute. The node looks up a bare name on its PATH."""
    bare = os.path.basename(named) == named and not os.path.isdir(named)
    return named if bare else os.path.abspath(named)


#: The fields of a policy that hold paths. `shown` has names of the preset's lists too, and stays.
_PATH_FIELDS = ("readable", "writable", "hidden")


def _absolute_policy(policy: Optional[Mapping[str, Any]]) -> Optional[Mapping[str, Any]]:
    if policy is None:
        return None
    paths = {name: policy[name] for name in _PATH_FIELDS if policy.get(name) is not None}
    return {**policy, **{name: [_absolute(one) for one in each] for name, each in paths.items()}}


def _absolute(path: PathText) -> str:
    """The node expands `~/`."""
    text = os.fspath(path)
    return text if text == "~" or text.startswith("~/") else os.path.abspath(text)


def budgets_of(
    output_bytes_max: Optional[int],
    stdout_bytes_max: Optional[int],
    stderr_bytes_max: Optional[int],
) -> dict[str, int]:
    """The byte budgets of a reply, by their names in requests."""
    given = {
        "output_bytes_max": output_bytes_max,
        "stdout_bytes_max": stdout_bytes_max,
        "stderr_bytes_max": stderr_bytes_max,
    }
    return {name: budget for name, budget in given.items() if budget is not None}


def context_of(
    file: Optional[PathText],
    args: Optional[Sequence[str]],
    cwd: Optional[PathText],
    env: Optional[Mapping[str, str]],
    program: bool,
) -> Optional[api.TurnContext]:
    """The context of a turn; None if nothing of it is given. Only workers with the capability
    `context` take one."""
    context: dict[str, Any] = {
        "file": None if file is None else os.fspath(file),
        "args": None if args is None else list(args),
        "cwd": None if cwd is None else os.fspath(cwd),
        "env": None if env is None else dict(env),
        "program": program or None,
    }
    given = {name: value for name, value in context.items() if value is not None}
    return cast(api.TurnContext, given) if given else None


def _ms(seconds: Optional[float]) -> Optional[int]:
    return None if seconds is None else int(seconds * 1000)
