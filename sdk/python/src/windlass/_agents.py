"""Agents (codex, claude, opencode, gemini, any that speaks ACP): their settings, and their events as
typed objects. Does no I/O."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from typing import Any, Literal, Mapping, Optional, Sequence, cast

from . import _api as api
from . import _events as events

#: The type of a display that is an agent's event.
MIME = "application/vnd.windlass.agent+json"

#: The agents that have an adapter of their own. Others are `acp:COMMAND`.
ENGINES = ("codex", "claude", "opencode", "gemini")

ActionKind = Literal[
    "command", "file_change", "tool", "web_search", "sub_agent", "turn", "note", "warning", "unknown"
]
ActionPhase = Literal["started", "updated", "completed"]
OptionKind = Literal["allow_once", "allow_always", "reject_once", "reject_always"]
DecidedBy = Literal["client", "policy", "deadline", "interrupt", "engine"]


@dataclass(frozen=True)
class AgentEvent:
    """One event of an agent's turn."""

    #: Its position in the session.
    seq: int
    #: Whether Windlass made the event, and not the agent.
    synthetic: bool
    #: The agent's own message, if it is short enough.
    raw: Any = field(repr=False, compare=False)


@dataclass(frozen=True)
class Started(AgentEvent):
    """The turn began, and no other turn of this conversation runs."""

    engine: str
    resume: str


@dataclass(frozen=True)
class Message(AgentEvent):
    """Text for the user: a chunk, or a whole message."""

    text: str
    chunk: bool
    phase: Optional[str]


@dataclass(frozen=True)
class Reasoning(AgentEvent):
    """What the model thought."""

    text: str
    chunk: bool


@dataclass(frozen=True)
class Action(AgentEvent):
    """Something that the agent does. Later events of the same `id` replace earlier ones."""

    id: str
    action: ActionKind
    title: str
    phase: ActionPhase
    ok: Optional[bool]
    detail: Optional[str]


@dataclass(frozen=True)
class PlanStep:
    text: str
    state: Literal["pending", "in_progress", "completed"]


@dataclass(frozen=True)
class Plan(AgentEvent):
    """What the agent plans to do."""

    steps: tuple[PlanStep, ...]


@dataclass(frozen=True)
class PermissionOption:
    id: str
    name: str
    kind: OptionKind


@dataclass(frozen=True)
class Permission(AgentEvent):
    """The agent asks whether it may do something."""

    id: str
    title: str
    options: tuple[PermissionOption, ...]
    action: Optional[str]


@dataclass(frozen=True)
class Decision(AgentEvent):
    """A permission was decided."""

    id: str
    option: Optional[str]
    allowed: bool
    by: DecidedBy


@dataclass(frozen=True)
class Usage(AgentEvent):
    """What the turn has used so far."""

    input_tokens: int
    output_tokens: int
    cached_tokens: int
    reasoning_tokens: int
    cost_usd: Optional[float]


@dataclass(frozen=True)
class Notice(AgentEvent):
    """A warning or a hint of the agent."""

    text: str
    id: Optional[str]


@dataclass(frozen=True)
class Completed(AgentEvent):
    """The turn is over. Always the last event."""

    engine: str
    resume: Optional[str]
    ok: bool
    answer: str
    #: `name` and `message`.
    error: Optional[Mapping[str, str]]
    stop_reason: Optional[str]


@dataclass(frozen=True)
class OtherAgentEvent(AgentEvent):
    """An event of a type that has no class here."""

    fields: Mapping[str, Any]


def make(event: events.Event) -> Optional[AgentEvent]:
    """The agent's event in a display, or `None` if the event is something else."""
    if not isinstance(event, events.Display) or event.mime != MIME:
        return None
    body = json.loads(event.data)
    kind = body.get("type")
    common = (event.seq, bool(body.get("synthetic")), body.get("raw"))
    if kind == "started":
        return Started(*common, body["engine"], body["resume"])
    if kind == "message":
        return Message(*common, body["text"], body.get("chunk", False), body.get("phase"))
    if kind == "reasoning":
        return Reasoning(*common, body["text"], body.get("chunk", False))
    if kind == "action":
        known = (body["id"], body["action"], body["title"], body["phase"])
        return Action(*common, *known, body.get("ok"), body.get("detail"))
    if kind == "plan":
        return Plan(*common, tuple(PlanStep(step["text"], step["state"]) for step in body["steps"]))
    if kind == "permission":
        options = [PermissionOption(one["id"], one["name"], one["kind"]) for one in body["options"]]
        return Permission(*common, body["id"], body["title"], tuple(options), body.get("action"))
    if kind == "decision":
        return Decision(*common, body["id"], body.get("option"), body["allowed"], body["by"])
    if kind == "usage":
        names = ("input", "output", "cached", "reasoning")
        counts = [body.get(f"{name}_tokens", 0) for name in names]
        return Usage(*common, counts[0], counts[1], counts[2], counts[3], body.get("cost_usd"))
    if kind == "notice":
        return Notice(*common, body["text"], body.get("id"))
    if kind == "completed":
        end = (body["engine"], body.get("resume"), body["ok"], body["answer"])
        return Completed(*common, *end, body.get("error"), body.get("stop_reason"))
    return OtherAgentEvent(*common, body)


def with_agent(
    body: api.CreateSession,
    *,
    resume: Optional[str],
    model: Optional[str],
    permissions: Optional[str],
    permission_deadline: Optional[float],
    stall: Optional[float],
    arguments: Sequence[str],
) -> api.CreateSession:
    """The request for a session, with the settings of its agent."""
    settings = {
        "resume": resume,
        "model": model,
        "permissions": permissions,
        "permission_deadline_ms": _ms(permission_deadline),
        "stall_ms": _ms(stall),
        "arguments": list(arguments) or None,
    }
    agent = {name: value for name, value in settings.items() if value is not None}
    return cast(api.CreateSession, {**body, "agent": agent})


def _ms(seconds: Optional[float]) -> Optional[int]:
    return None if seconds is None else int(seconds * 1000)


def worker_of(engine: str) -> str:
    """The worker of an agent: `codex` is `agent:codex`, `acp:COMMAND` is itself."""
    return engine if engine.startswith("acp:") else f"agent:{engine}"


class Questions:
    """The permissions that an agent has asked for, by id."""

    def __init__(self) -> None:
        self._asked: dict[str, Permission] = {}

    def note(self, event: AgentEvent) -> None:
        if isinstance(event, Permission):
            self._asked[event.id] = event

    def of_prompt(self, prompt: str) -> Optional[Permission]:
        """The permission that a prompt asks for."""
        named = re.search(r"\[(p\d+)\]", prompt)
        return self._asked.get(named.group(1)) if named else None


def answer_of(permission: Permission, choice: Any) -> str:
    """The line that answers a permission: `True`, `False`, a word, or the id of an option."""
    word = choice
    if isinstance(choice, bool):
        word = "allow" if choice else "deny"
    return f"{permission.id} {word}\n"
