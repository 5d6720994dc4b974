"""The JSON of the node's HTTP door, as types.

Written by `cargo xtask api` from docs/openapi.json; not to be changed by hand.
"""

from __future__ import annotations

from typing import Any, Literal, Optional, TypedDict, Union


class ApiError(TypedDict):
    """Every answer that is not a success."""

    code: ErrorCode
    # What happened, for a person.
    message: str
    # What to do about it.
    remedy: str
    # Whether the same request may succeed later.
    retryable: bool

# A host tool call's number, the worker's own. A fresh worker counts from 1 again, so only a turn and a call together name one.
CallNo = int


class CanReach(TypedDict):
    """Something of the original from before a fork that the fork does not keep from the twin: it could signal the twin, and read and write the twin's memory."""

    # Its number in the session, and the name of its program.
    name: str
    # `thread` or `process`; `more` where the list was cut off.
    what: str


class Confinement(TypedDict):
    """How a session is confined."""

    controls: list[ControlReport]
    isolation: Isolation

# One thing that a policy can ask for.
Control = Literal["read", "write", "hidden", "protected", "network", "sockets", "processes", "ipc", "privileges", "syscalls", "devices", "environment", "memory", "cpu", "process_count", "open_files", "file_size", "disk", "wall_time"]


class _ControlReport(TypedDict):
    control: Control
    state: ControlState


class ControlReport(_ControlReport, total=False):
    """A control of one session."""

    # By what it is enforced, or why it is not.
    mechanism: str
    # What would make it enforced here.
    remedy: Optional[str]
    # A canary inside the sandbox tried what is forbidden, and was refused.
    tested: bool

# What became of a control.
ControlState = Literal["enforced", "not_enforced", "not_asked"]

# Which directories of a workspace a fork copies.
CopyScope = Literal["needed", "all"]


class CreateSession(TypedDict, total=False):
    """A new session."""

    # How long a turn may run that has no deadline of its own. Default: the node's, a day unless it was started with another.
    deadline_ms: Optional[int]
    # Environment variables to add.
    env: dict[str, str]
    # A name of the client's choice; made by the node when absent.
    id: Optional[SessionId]
    # Seconds without a client and without a turn after which the session ends; 0: never. Default: the node's, a day unless it was started with another.
    idle_s: Optional[int]
    # The interpreter, or a virtual environment's directory. Default: the nearest `.venv` at or above the workspace, then the one on PATH.
    interpreter: Optional[str]
    # How long an interrupted turn may take to stop before its worker is killed.
    interrupt_grace_ms: Optional[int]
    # Output bytes the journal keeps for the session.
    output_quota_bytes: Optional[int]
    # Whose session it is: a tool host may offer its tools to all of one owner's.
    owner: Optional[Owner]
    # What the code may touch. Default: the preset `workspace`.
    policy: Optional[PolicyRequest]
    # The session's first turn: whoever learns the id queues behind it.
    turn: Optional[SubmitTurn]
    # Which kind of worker. Default: `python`.
    worker: Optional[str]
    # The directory the code works in. Default: a fresh one of the session's own.
    workspace: Optional[str]


class _Created(TypedDict):
    session: Session


class Created(_Created, total=False):
    """What `POST /v1/sessions` answers."""

    # The first turn, when one was given.
    turn: Optional[Turn]

# What something on the disk is.
DiskKind = Literal["journals_live", "journals_ended", "workspaces_live", "workspaces_ended", "fork_copies", "temporary", "leftovers", "environments", "index", "logs", "other"]


class DiskShare(TypedDict):
    """What one kind takes."""

    # Blocks on the disk, not lengths of files. A file with several names counts once.
    bytes: int
    # Files and directories.
    entries: int
    kind: DiskKind


class DiskUse(TypedDict):
    """What `GET /v1/node/disk` answers."""

    # All of them together.
    bytes: int
    # False where a directory could not be read, or looking took too long: there is more then.
    complete: bool
    # Every kind, also those that take nothing.
    kinds: list[DiskShare]
    # Seconds for which ended sessions are kept.
    retain_age_s: int
    # What all journals and the workspaces of ended sessions may take together.
    retain_bytes: int
    state_dir: str


class _DisplayRef(TypedDict):
    bytes: int
    mime: str
    # The event that completed it.
    seq: Seq


class DisplayRef(_DisplayRef, total=False):
    """A display of a turn; its bytes are at `GET displays/{seq}`."""

    id: Optional[str]

# Why output bytes are missing.
DropReason = Literal["quota", "disk_full"]


class _EgressDecision(TypedDict):
    allowed: bool
    count: int
    # `*` where no host is to be named: too many connections at once, or too many hosts to list.
    host: str
    last_at_ms: int
    port: int
    received_bytes: int
    # Bytes from the code to the host.
    sent_bytes: int


class EgressDecision(_EgressDecision, total=False):
    """Connections to one host and port with the same decision, added up."""

    # Why it was refused, or why an allowed one failed; empty when all is well.
    reason: str


class EgressLog(TypedDict):
    """Every decision about a session's network, by host. Empty where the policy has no host list."""

    # The latest first.
    decisions: list[EgressDecision]
    # Since when it counts: the session's start, or a later start of the node.
    since_ms: int

# Why a session ended.
EndReason = Literal["closed", "worker_exited", "start_failed", "wall_time", "idle", "protocol_error", "keeper_lost", "node_gone"]


class _Ended(TypedDict):
    reason: EndReason


class Ended(_Ended, total=False):
    """How a session ended."""

    # The figures of the reason, such as how long nobody used it.
    message: Optional[str]
    receipt: Optional[Receipt]


class _Environment(TypedDict):
    # As the file names it.
    interpreter: str
    pool: PoolInfo
    preload: list[str]
    zygote: ZygoteInfo


class Environment(_Environment, total=False):
    """An environment as it is at this moment."""

    # The program that this is.
    program: Optional[str]


class _EnvironmentList(TypedDict):
    environments: list[Environment]


class EnvironmentList(_EnvironmentList, total=False):
    """Its answer."""

    # Why the user's file is not used.
    error: Optional[str]

# The fencing token of a session's owner: a keeper obeys no node of a lower epoch. A node that takes a session over raises it.
Epoch = int

# A failure's name, the same at every door and in the journal.
ErrorCode = Literal["bad_request", "message_too_large", "overloaded", "session_not_found", "session_exists", "not_here", "session_ended", "session_busy", "fork_refused", "fork_limit", "workspace_too_large", "turn_not_found", "turn_not_running", "state_lost", "limit_memory", "limit_processes", "limit_disk", "limit_wall_time", "not_enforceable", "unauthorized", "worker_failed", "protocol_error", "worker_died", "keeper_lost", "deadline_passed", "unstoppable", "session_closed", "disk_full", "file_not_found", "file_conflict", "path_refused", "tool_not_found", "tool_failed", "tool_deadline_passed", "tool_host_gone", "tool_cancelled", "would_deadlock", "version_mismatch", "shutting_down", "already_running", "not_found", "internal"]

# An event with its bytes: as text where they are UTF-8, else in base64. Large bodies are left out and can be read from `GET output` or `GET displays`.
EventItem = Union["EventItemTurnAccepted", "EventItemTakenOver", "EventItemInterruptAsked", "EventItemOutput", "EventItemDisplay", "EventItemStdinWait", "EventItemToolCall", "EventItemToolCancel", "EventItemToolEnded", "EventItemInputTaken", "EventItemTurnEnded", "EventItemWorkerReady", "EventItemConfined", "EventItemLimitReached", "EventItemWorkerEnded", "EventItemEgress", "EventItemProtocolBroken", "EventItemOutputDropped", "EventItemMessagesDropped", "EventItemSessionEnded"]


class _EventItemConfined(TypedDict):
    # When the node took it in: milliseconds since the Unix epoch.
    at_ms: int
    controls: list[ControlReport]
    isolation: Isolation
    kind: Literal["confined"]
    seq: Seq


class EventItemConfined(_EventItemConfined, total=False):
    base64: Optional[str]
    # The body's length in bytes.
    bytes: int
    # The keeper's own number for it; absent for what the node says itself.
    link: Optional[LinkSeq]
    text: Optional[str]
    # The turn it belongs to; absent for facts of the session itself.
    turn: Optional[TurnNo]


class _EventItemDisplay(TypedDict):
    # When the node took it in: milliseconds since the Unix epoch.
    at_ms: int
    kind: Literal["display"]
    mime: str
    seq: Seq


class EventItemDisplay(_EventItemDisplay, total=False):
    base64: Optional[str]
    # The body's length in bytes.
    bytes: int
    id: Optional[str]
    # The keeper's own number for it; absent for what the node says itself.
    link: Optional[LinkSeq]
    more: bool
    text: Optional[str]
    # The turn it belongs to; absent for facts of the session itself.
    turn: Optional[TurnNo]
    # Replaces the display with the same `id`.
    update: bool


class _EventItemEgress(TypedDict):
    allowed: bool
    # When the node took it in: milliseconds since the Unix epoch.
    at_ms: int
    host: str
    kind: Literal["egress"]
    port: int
    seq: Seq


class EventItemEgress(_EventItemEgress, total=False):
    base64: Optional[str]
    # The body's length in bytes.
    bytes: int
    # The keeper's own number for it; absent for what the node says itself.
    link: Optional[LinkSeq]
    reason: str
    text: Optional[str]
    # The turn it belongs to; absent for facts of the session itself.
    turn: Optional[TurnNo]


class _EventItemInputTaken(TypedDict):
    # When the node took it in: milliseconds since the Unix epoch.
    at_ms: int
    bytes: int
    kind: Literal["input_taken"]
    seq: Seq


class EventItemInputTaken(_EventItemInputTaken, total=False):
    base64: Optional[str]
    # The keeper's own number for it; absent for what the node says itself.
    link: Optional[LinkSeq]
    text: Optional[str]
    # The turn it belongs to; absent for facts of the session itself.
    turn: Optional[TurnNo]


class _EventItemInterruptAsked(TypedDict):
    # When the node took it in: milliseconds since the Unix epoch.
    at_ms: int
    cause: StopCause
    kind: Literal["interrupt_asked"]
    seq: Seq


class EventItemInterruptAsked(_EventItemInterruptAsked, total=False):
    base64: Optional[str]
    # The body's length in bytes.
    bytes: int
    # The keeper's own number for it; absent for what the node says itself.
    link: Optional[LinkSeq]
    text: Optional[str]
    # The turn it belongs to; absent for facts of the session itself.
    turn: Optional[TurnNo]


class _EventItemLimitReached(TypedDict):
    # When the node took it in: milliseconds since the Unix epoch.
    at_ms: int
    kind: Literal["limit_reached"]
    limit: Limit
    message: str
    seq: Seq


class EventItemLimitReached(_EventItemLimitReached, total=False):
    base64: Optional[str]
    # The body's length in bytes.
    bytes: int
    # The keeper's own number for it; absent for what the node says itself.
    link: Optional[LinkSeq]
    text: Optional[str]
    # The turn it belongs to; absent for facts of the session itself.
    turn: Optional[TurnNo]


class _EventItemMessagesDropped(TypedDict):
    # When the node took it in: milliseconds since the Unix epoch.
    at_ms: int
    count: int
    kind: Literal["messages_dropped"]
    reason: str
    seq: Seq


class EventItemMessagesDropped(_EventItemMessagesDropped, total=False):
    base64: Optional[str]
    # The body's length in bytes.
    bytes: int
    # The keeper's own number for it; absent for what the node says itself.
    link: Optional[LinkSeq]
    text: Optional[str]
    # The turn it belongs to; absent for facts of the session itself.
    turn: Optional[TurnNo]


class _EventItemOutput(TypedDict):
    # When the node took it in: milliseconds since the Unix epoch.
    at_ms: int
    kind: Literal["output"]
    seq: Seq
    stream: Stream


class EventItemOutput(_EventItemOutput, total=False):
    # Written by something that outlived its own turn.
    background: bool
    base64: Optional[str]
    # The body's length in bytes.
    bytes: int
    # The keeper's own number for it; absent for what the node says itself.
    link: Optional[LinkSeq]
    text: Optional[str]
    # The turn it belongs to; absent for facts of the session itself.
    turn: Optional[TurnNo]


class _EventItemOutputDropped(TypedDict):
    # When the node took it in: milliseconds since the Unix epoch.
    at_ms: int
    bytes: int
    kind: Literal["output_dropped"]
    reason: DropReason
    seq: Seq


class EventItemOutputDropped(_EventItemOutputDropped, total=False):
    base64: Optional[str]
    # The keeper's own number for it; absent for what the node says itself.
    link: Optional[LinkSeq]
    text: Optional[str]
    # The turn it belongs to; absent for facts of the session itself.
    turn: Optional[TurnNo]


class _EventItemProtocolBroken(TypedDict):
    # When the node took it in: milliseconds since the Unix epoch.
    at_ms: int
    kind: Literal["protocol_broken"]
    message: str
    seq: Seq


class EventItemProtocolBroken(_EventItemProtocolBroken, total=False):
    base64: Optional[str]
    # The body's length in bytes.
    bytes: int
    # The keeper's own number for it; absent for what the node says itself.
    link: Optional[LinkSeq]
    text: Optional[str]
    # The turn it belongs to; absent for facts of the session itself.
    turn: Optional[TurnNo]


class _EventItemSessionEnded(TypedDict):
    # When the node took it in: milliseconds since the Unix epoch.
    at_ms: int
    kind: Literal["session_ended"]
    reason: EndReason
    seq: Seq


class EventItemSessionEnded(_EventItemSessionEnded, total=False):
    base64: Optional[str]
    # The body's length in bytes.
    bytes: int
    # The keeper's own number for it; absent for what the node says itself.
    link: Optional[LinkSeq]
    # The figures of the reason, such as how long nobody used it.
    message: Optional[str]
    receipt: Optional[Receipt]
    text: Optional[str]
    # The turn it belongs to; absent for facts of the session itself.
    turn: Optional[TurnNo]


class _EventItemStdinWait(TypedDict):
    # When the node took it in: milliseconds since the Unix epoch.
    at_ms: int
    kind: Literal["stdin_wait"]
    prompt: str
    secret: bool
    seq: Seq


class EventItemStdinWait(_EventItemStdinWait, total=False):
    base64: Optional[str]
    # The body's length in bytes.
    bytes: int
    # The keeper's own number for it; absent for what the node says itself.
    link: Optional[LinkSeq]
    text: Optional[str]
    # The turn it belongs to; absent for facts of the session itself.
    turn: Optional[TurnNo]


class _EventItemTakenOver(TypedDict):
    # When the node took it in: milliseconds since the Unix epoch.
    at_ms: int
    epoch: Epoch
    kind: Literal["taken_over"]
    seq: Seq


class EventItemTakenOver(_EventItemTakenOver, total=False):
    base64: Optional[str]
    # The body's length in bytes.
    bytes: int
    # The keeper's own number for it; absent for what the node says itself.
    link: Optional[LinkSeq]
    text: Optional[str]
    # The turn it belongs to; absent for facts of the session itself.
    turn: Optional[TurnNo]


class _EventItemToolCall(TypedDict):
    # When the node took it in: milliseconds since the Unix epoch.
    at_ms: int
    call: CallNo
    kind: Literal["tool_call"]
    name: str
    seq: Seq


class EventItemToolCall(_EventItemToolCall, total=False):
    base64: Optional[str]
    bytes: int
    # How long the code wants to wait for it.
    deadline_ms: Optional[int]
    # The keeper's own number for it; absent for what the node says itself.
    link: Optional[LinkSeq]
    more: bool
    # Bytes of arguments in the events before this one, and in this one.
    offset: int
    text: Optional[str]
    # The turn it belongs to; absent for facts of the session itself.
    turn: Optional[TurnNo]


class _EventItemToolCancel(TypedDict):
    # When the node took it in: milliseconds since the Unix epoch.
    at_ms: int
    call: CallNo
    kind: Literal["tool_cancel"]
    seq: Seq


class EventItemToolCancel(_EventItemToolCancel, total=False):
    base64: Optional[str]
    # The body's length in bytes.
    bytes: int
    # The keeper's own number for it; absent for what the node says itself.
    link: Optional[LinkSeq]
    text: Optional[str]
    # The turn it belongs to; absent for facts of the session itself.
    turn: Optional[TurnNo]


class _EventItemToolEnded(TypedDict):
    # When the node took it in: milliseconds since the Unix epoch.
    at_ms: int
    # Bytes of the answer.
    bytes: int
    call: CallNo
    kind: Literal["tool_ended"]
    ok: bool
    seq: Seq
    wall_ms: float


class EventItemToolEnded(_EventItemToolEnded, total=False):
    base64: Optional[str]
    # Why it failed; absent when the tool itself did.
    code: Optional[ErrorCode]
    # The keeper's own number for it; absent for what the node says itself.
    link: Optional[LinkSeq]
    text: Optional[str]
    # The turn it belongs to; absent for facts of the session itself.
    turn: Optional[TurnNo]


class _EventItemTurnAccepted(TypedDict):
    # When the node took it in: milliseconds since the Unix epoch.
    at_ms: int
    id: TurnId
    kind: Literal["turn_accepted"]
    seq: Seq


class EventItemTurnAccepted(_EventItemTurnAccepted, total=False):
    base64: Optional[str]
    # The body's length in bytes.
    bytes: int
    deadline_ms: Optional[int]
    # The keeper's own number for it; absent for what the node says itself.
    link: Optional[LinkSeq]
    # More of the code follows in the next event.
    more: bool
    text: Optional[str]
    # The turn it belongs to; absent for facts of the session itself.
    turn: Optional[TurnNo]


class _EventItemTurnEnded(TypedDict):
    # When the node took it in: milliseconds since the Unix epoch.
    at_ms: int
    kind: Literal["turn_ended"]
    outcome: Outcome
    seq: Seq


class EventItemTurnEnded(_EventItemTurnEnded, total=False):
    base64: Optional[str]
    # The body's length in bytes.
    bytes: int
    error: Optional[TurnError]
    # The keeper's own number for it; absent for what the node says itself.
    link: Optional[LinkSeq]
    receipt: Optional[Receipt]
    text: Optional[str]
    # The turn it belongs to; absent for facts of the session itself.
    turn: Optional[TurnNo]
    usage: Usage


class _EventItemWorkerEnded(TypedDict):
    # When the node took it in: milliseconds since the Unix epoch.
    at_ms: int
    cause: str
    kind: Literal["worker_ended"]
    seq: Seq


class EventItemWorkerEnded(_EventItemWorkerEnded, total=False):
    base64: Optional[str]
    # The body's length in bytes.
    bytes: int
    # The limit that ended it.
    limit: Optional[Limit]
    # The keeper's own number for it; absent for what the node says itself.
    link: Optional[LinkSeq]
    # The node had it replaced. The turn that was running on it, if any, is the event's turn.
    replaced: bool
    text: Optional[str]
    # The turn it belongs to; absent for facts of the session itself.
    turn: Optional[TurnNo]


class _EventItemWorkerReady(TypedDict):
    # When the node took it in: milliseconds since the Unix epoch.
    at_ms: int
    kind: Literal["worker_ready"]
    pid: int
    restarts: int
    seq: Seq
    worker: str


class EventItemWorkerReady(_EventItemWorkerReady, total=False):
    base64: Optional[str]
    # The body's length in bytes.
    bytes: int
    # What it can do, as it says. Absent in events of earlier releases.
    capabilities: Optional[list[str]]
    # The keeper's own number for it; absent for what the node says itself.
    link: Optional[LinkSeq]
    start: StartedBy
    text: Optional[str]
    # The turn it belongs to; absent for facts of the session itself.
    turn: Optional[TurnNo]


class Events(TypedDict):
    """Some events of a session, in order."""

    # Ask for events after this one next.
    after: Seq
    # No event will follow these.
    ended: bool
    events: list[EventItem]


class FileDeleted(TypedDict):
    """What was removed."""

    path: str


class _FileEntry(TypedDict):
    bytes: int
    kind: FileKind
    modified_ms: int
    # In the workspace, whatever directory was asked for.
    path: str


class FileEntry(_FileEntry, total=False):
    # Of plain files: changes with every change of the file.
    etag: Optional[str]


class FileEvent(TypedDict):
    """Something happened to a file or directory below a watched one."""

    kind: FileEventKind
    path: str

FileEventKind = Literal["made", "changed", "removed", "overflow"]

FileKind = Literal["file", "directory", "link", "other"]


class FileList(TypedDict):
    """Some of the files in a workspace, in order: a directory comes before what is in it, and names are compared byte by byte."""

    entries: list[FileEntry]
    # There are more: ask again with `after`, the last of these.
    more: bool


class FileWritten(TypedDict):
    """A file as it was put in place."""

    bytes: int
    etag: str
    path: str


class ForkSession(TypedDict, total=False):
    """A twin of a session."""

    # Which directories of the workspace are copied. Default: all but those that can be made or installed again.
    copy: CopyScope
    # A name of the client's choice; made by the node when absent.
    id: Optional[SessionId]
    # Whose session the twin is. Default: the original's owner.
    owner: Optional[Owner]


class _ForkedSession(TypedDict):
    # What the twin does not have, or has in common with the original.
    not_carried: list[NotCarried]
    # The twin. Its workspace is a copy, at another path than the original's.
    session: Session


class ForkedSession(_ForkedSession, total=False):
    """What `POST /v1/sessions/{session}/fork` answers."""

    # Threads and processes from before the fork that could still reach the twin. Empty for most forks, and where nothing confines the session.
    can_reach: list[CanReach]
    # Directories of the workspace that the copy does not have, at most 64. `copy` with `all` copies them.
    left_out: list[LeftOutDirectory]
    # How many more of these there are.
    left_out_more: int


class Health(TypedDict):
    status: str

# How the keeper holds its process tree.
Hold = Literal["pid_namespace", "subreaper"]

# Rules, any of which lets a host through.
HostRules = list[str]

# Where the journal's index is. It is made of the journal, so nothing is lost with it.
IndexStorage = Literal["file", "memory"]

# How strongly a session is confined.
Isolation = Literal["full", "landlock", "none"]


class LeftOutDirectory(TypedDict):
    """A directory of the workspace that the twin's copy does not have."""

    # Whether the copy has a link to the original's, which the twin can read and not write.
    linked: bool
    # Relative to the workspace.
    path: str
    why: LeftOutReason

# Why a fork does not copy a directory.
LeftOutReason = Literal["environment", "packages", "cache"]

# A limit that a session ran into.
Limit = Literal["memory", "processes", "disk", "wall_time"]


class Limits(TypedDict, total=False):
    """What a session may use. Absent: no limit of Windlass's own."""

    # Processor time: 100 is one core.
    cpu_percent: Optional[int]
    # What the workspace may grow by.
    disk_bytes: Optional[int]
    # The largest file that it can write.
    file_bytes: Optional[int]
    # Memory of all its processes together, its private `/tmp` included.
    memory_bytes: Optional[int]
    # Open files of one process.
    open_files: Optional[int]
    # Processes and threads at once.
    processes: Optional[int]
    # The private `/tmp`, and as much again for `/dev/shm`.
    tmp_bytes: Optional[int]
    # How long the session may live.
    wall_s: Optional[int]

# An event's place in what one keeper has said, from 1. What node and keeper acknowledge by.
LinkSeq = int

# What of the network can be reached.
Network = Union[Literal["none", "open"], "NetworkHosts"]


class NetworkHosts(TypedDict):
    """These hosts, through the node's proxy."""

    # These hosts, through the node's proxy.
    hosts: HostRules


class _NodeStatus(TypedDict):
    api: str
    epoch: int
    pid: int
    runtime_dir: str
    sessions: int
    started_at_ms: int
    state_dir: str
    version: str


class NodeStatus(_NodeStatus, total=False):
    """The node as it is now."""

    # Where its TCP door is, if it is open.
    listen: Optional[str]
    # Absent where the node is of a release that does not say.
    storage: Optional[StateStorage]


class NotCarried(TypedDict):
    """Something that a fork leaves with the original."""

    # Its name, as far as it has one.
    name: str
    # `thread`, `process`, `socket`, `pipe`, `gpu`, `descriptor`; `file`, which the copy of the workspace does not have; or `shared_memory`, which both have in common from then on.
    what: str

# How a turn ended.
Outcome = Literal["ok", "error", "interrupted", "timed_out", "lost"]


_OutputView = TypedDict(
    "_OutputView",
    {
        # Bytes of output in all.
        "bytes": int,
        # Where the turn's output starts in the session's, for `GET output?from=`.
        "from": int,
        # The shown text: all of it, or head, marker and tail. Bytes that are not UTF-8 show as U+FFFD.
        "text": str,
    },
)


class OutputView(_OutputView, total=False):
    """A turn's output within a byte budget: its head, its tail, and what is between."""

    # The raw bytes in base64, where they are not UTF-8.
    base64: Optional[str]
    # Bytes between head and tail that are not shown.
    omitted_bytes: int

# Whose sessions these are: a name that a client gives to those it makes, so that it can offer tools to all of them.
Owner = str


class _Policy(TypedDict):
    # Variables of the node's own environment that the code gets, besides the usual.
    environment: list[str]
    # What cannot be seen, wherever else it would be readable.
    hidden: list[str]
    limits: Limits
    network: Network
    preset: Preset
    # Names directly below a writable root that can be read, and neither written, replaced nor made.
    protected: list[str]
    # What can be read, the workspace besides. `/` is the whole system.
    readable: list[str]
    # Controls without which the session does not start.
    required: list[Control]
    workspace: WorkspaceAccess
    # What can be written besides the workspace and the private directories.
    writable: list[str]


class Policy(_Policy, total=False):
    """A whole policy: nothing in it is left to a default."""

    # Absent: the strongest that the machine can do.
    isolation: Optional[Isolation]
    # Tools of the node's MCP servers that the code may call.
    tools: list[ToolRule]
    unix_sockets: UnixSockets


class PolicyRequest(TypedDict, total=False):
    """What a client asks for: a preset, and what differs from it."""

    # Besides the usual: variables of the node's own environment that the code gets.
    environment: list[str]
    # Besides the preset's: what cannot be seen.
    hidden: list[str]
    # Default: the strongest that the machine can do; never `none` unless it is named.
    isolation: Optional[Isolation]
    limits: Limits
    # Instead of the preset's.
    network: Optional[Network]
    # Default: `workspace`.
    preset: Optional[Preset]
    # Instead of the preset's: what can be read. Absolute paths, or `~/...`.
    readable: Optional[list[str]]
    # Instead of the preset's: controls without which the session does not start.
    required: Optional[list[Control]]
    # Paths of the preset's hidden or protected lists that are not to be hidden or protected.
    shown: list[str]
    # Tools of the node's MCP servers that the code may call: `files.read`, `files.*`, `*`. Default: none. Tools that a client offers to its own sessions need no leave.
    tools: list[ToolRule]
    # Default: `local`.
    unix_sockets: Optional[UnixSockets]
    # Besides the preset's: what can be written.
    writable: list[str]


class PoolInfo(TypedDict):
    """Workers that wait."""

    ready: int
    size: int

# A policy to start from.
Preset = Literal["read-only", "workspace", "open"]


class PruneRequest(TypedDict, total=False):
    """What to remove."""

    # Only say what would be removed.
    dry_run: bool
    # Of ended sessions only those that ended longer ago, in seconds; all of them when absent. What the node's own retention would remove goes in any case, and so do leftovers.
    older_than_s: Optional[int]


class Pruned(TypedDict):
    """What `POST /v1/node/prune` answers."""

    # What the disk got back, or would get back.
    bytes: int
    # False where not all could be measured: a dry run may then have said too little.
    complete: bool
    # Nothing was removed.
    dry_run: bool
    # What could not be removed, with the reason.
    failed: list[str]
    # How many more there are. `bytes` counts them.
    more: int
    # At most 1,000 of them, in the order in which they went.
    removed: list[PrunedItem]


class PrunedItem(TypedDict):
    """Something that was removed, or would be."""

    bytes: int
    kind: DiskKind
    # The session's id, or a path below the state directory.
    name: str


class Receipt(TypedDict):
    """What a loss cost: what was kept and what is gone."""

    kept: list[str]
    lost: list[str]


class SearchMatch(TypedDict):
    """A line that holds the text."""

    # The line around it, cut to 512 bytes.
    line: str
    # Where the match is in the session's output.
    offset: int


class SearchResult(TypedDict):
    matches: list[SearchMatch]
    # More matches follow the last one.
    more: bool

# An event's place in its session, from 1. What clients see and resume from.
Seq = int


class _Session(TypedDict):
    created_at_ms: int
    id: SessionId
    # Worker messages that were not understood or came for another turn.
    messages_dropped: int
    # Output bytes produced so far.
    output_bytes: int
    # Output bytes produced and no longer kept.
    output_dropped_bytes: int
    # Fresh workers started after a loss.
    restarts: int
    # The last event.
    seq: Seq
    state: SessionState
    # Turns accepted so far.
    turns: int
    # Turns that wait behind it.
    waiting: int
    # What the worker calls itself; empty until it is up.
    worker: str
    workspace: str


class Session(_Session, total=False):
    """A session as it is now."""

    # What the worker can do, as it says: `stdin`, `interrupt`, `display`, `tools`, `fork`. Absent until it is up.
    capabilities: Optional[list[str]]
    # How the policy is enforced, once a worker was started under it.
    confinement: Optional[Confinement]
    # The deadline of its turns that have none of their own, where it was made with one.
    deadline_ms: Optional[int]
    ended: Optional[Ended]
    # The session that it was forked from.
    forked_from: Optional[SessionId]
    hold: Optional[Hold]
    # Its idle timeout, where it was made with one; 0: it has none.
    idle_s: Optional[int]
    # The keeper's process.
    keeper_pid: Optional[int]
    # Which kind of worker it has.
    kind: str
    # Whose session it is.
    owner: Optional[Owner]
    # What its code may touch.
    policy: Optional[Policy]
    # How the worker was started, once it is up.
    started_by: Optional[StartedBy]
    # The running turn.
    turn: Optional[TurnId]
    # The worker's process, as the keeper numbers it.
    worker_pid: Optional[int]

# A session's name, unique in its node: chosen by the client or made by the node. It names a directory and a socket, so its characters are few.
SessionId = str


class SessionList(TypedDict):
    sessions: list[Session]

SessionState = Literal["starting", "idle", "busy", "awaiting_input", "interrupting", "restarting", "ended"]


class SessionTool(TypedDict):
    name: str
    # How code calls it.
    signature: str
    summary: str


class SessionTools(TypedDict):
    """What the code of a session may call."""

    # There are more than these.
    more: bool
    tools: list[SessionTool]

# How a worker came to be. Its session is the same, whichever it was.
StartedBy = Literal["exec", "zygote", "pool", "fork"]


class _StateStorage(TypedDict):
    index: IndexStorage
    # Lines of the node's log that could not be written since the node started.
    log_lines_dropped: int


class StateStorage(_StateStorage, total=False):
    """The disk with the node's state."""

    # Bytes that the node can still write there, if that can be found out. A node without room refuses new turns with `disk_full`.
    free_bytes: Optional[int]


class StdinWait(TypedDict):
    """What a turn asks for."""

    prompt: str
    # Do not show or store the answer.
    secret: bool

# Who wants a turn stopped.
StopCause = Literal["client", "deadline"]


class StopNode(TypedDict):
    """How the node is to stop."""

    sessions: StopSessions

StopSessions = Literal["end", "keep"]

# Where output came from.
Stream = Literal["stdout", "stderr", "result", "traceback"]


class _SubmitTurn(TypedDict):
    code: str


class SubmitTurn(_SubmitTurn, total=False):
    """A turn to run."""

    # How long the turn may run, from when the worker gets it. Default: the session's, or the node's.
    deadline_ms: Optional[int]
    # A name of the client's choice: sending it twice runs it once.
    id: Optional[TurnId]
    # The most output bytes in the reply.
    output_bytes_max: Optional[int]
    # How long the reply may wait for the turn to end or ask for input. Default 0.
    wait_ms: int

# `files.read`, `files.*` or `*`.
ToolRule = str


class _Turn(TypedDict):
    id: TurnId
    number: TurnNo
    output: OutputView
    session: SessionId
    state: TurnState


class Turn(_Turn, total=False):
    """A turn as it is now."""

    displays: list[DisplayRef]
    error: Optional[TurnError]
    # How it ended, once it has.
    outcome: Optional[Outcome]
    receipt: Optional[Receipt]
    # What it waits for, while it does.
    stdin_wait: Optional[StdinWait]
    usage: Optional[Usage]


class _TurnError(TypedDict):
    message: str
    # The exception's class, or a short name of what happened.
    name: str


class TurnError(_TurnError, total=False):
    """What went wrong in a turn."""

    # A stable code when Windlass ended the turn; absent when the code itself raised.
    code: Optional[ErrorCode]

# A turn's name, unique in its session: chosen by the client (then sending it twice runs it once) or its number in decimal.
TurnId = str


class TurnInput(TypedDict, total=False):
    """Input for a running turn."""

    # Raw bytes, for what is not text.
    base64: Optional[str]
    # No input follows.
    eof: bool
    text: Optional[str]

# A turn's place in its session, from 1, in the order accepted. Workers know turns by it.
TurnNo = int

TurnState = Literal["waiting", "running", "awaiting_input", "interrupting", "ended"]

# Which unix sockets the code can make. Connected pairs it always can.
UnixSockets = Literal["local", "none"]


class Usage(TypedDict):
    """What a turn cost."""

    # Processor time of the worker process (and, for turns over 2 ms, of its ended children).
    cpu_ms: float
    output_bytes: int
    # The most memory the worker process has held so far in the session.
    peak_rss_bytes: int
    wall_ms: float

WorkspaceAccess = Literal["read", "write"]


class WrittenBack(TypedDict):
    """What a write-back did: all that it was asked for."""

    deleted: list[FileDeleted]
    written: list[FileWritten]


class _ZygoteInfo(TypedDict):
    state: ZygoteState


class ZygoteInfo(_ZygoteInfo, total=False):
    """The process that an environment's workers are forked from."""

    # Why there is none.
    error: Optional[str]
    # Modules that could not be imported, and why.
    missing: list[str]
    pid: Optional[int]
    # What it takes, counting what it shares with its workers as its share.
    pss_kib: Optional[int]

ZygoteState = Literal["none", "starting", "ready", "failed"]
