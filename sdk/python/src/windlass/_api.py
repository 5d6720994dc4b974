"""The JSON of the node's HTTP door, as types.

Written by `cargo xtask api` from docs/openapi.json; not to be changed by hand.
"""

from __future__ import annotations

from typing import Any, Literal, Optional, TypedDict, Union


class AgentRequest(TypedDict, total=False):
    """Settings of a session whose worker is an agent."""

    # More arguments for the engine's program, before its subcommand.
    arguments: list[str]
    # The model, by the engine's name for it. Default: the engine's own.
    model: Optional[str]
    # How long a permission waits for a client's answer. Then it is refused. Default: ten minutes.
    permission_deadline_ms: Optional[int]
    # Who answers the agent's requests for permission. Default: `allow`, because the session is confined.
    permissions: Optional[PermissionPolicy]
    # Resume this conversation instead of beginning a new one.
    resume: Optional[ResumeToken]
    # How long the engine may make no progress while it neither runs an action nor asks. Then its turn fails. Default: five minutes.
    stall_ms: Optional[int]


class ApiError(TypedDict):
    """The reply of every request that fails."""

    code: ErrorCode
    # What happened, for people.
    message: str
    # What to do about it.
    remedy: str
    # Whether the same request may succeed later.
    retryable: bool

# What happens to a request whose body has a placeholder.
BodyPlaceholder = Literal["refuse", "pass"]

# The number of a host tool call, which the worker assigns. A fresh worker starts from 1 again, so only turn and call together identify a call.
CallNo = int


class CanReach(TypedDict):
    """A thread or process of the original from before a fork that the fork does not separate from the twin. It can signal the twin, and read and write the twin's memory."""

    # The thread or process id in the session, and the name of the program.
    name: str
    # `thread` or `process`; `more` if the list was cut.
    what: str

# The name that a program gives itself when it creates a session. It is shown to people and decides nothing.
ClientName = str


class Confinement(TypedDict):
    """How a session is confined."""

    controls: list[ControlReport]
    isolation: Isolation


class ConsoleLogin(TypedDict):
    """An address with which a person logs in to the web console of the node."""

    # How long the code works.
    expires_in_s: int
    # Has a code that works once.
    url: str


class _ConsoleSession(TypedDict):
    # When the login ends unless it is used, in milliseconds since the Unix epoch.
    expires_at: int
    # The page sends it with each request, in the header `X-Windlass-Console`.
    key: str
    # What the login allows: `read`, `run` or `admin`.
    scope: str


class ConsoleSession(_ConsoleSession, total=False):
    """A login of the web console."""

    # The tenant to which the login is limited.
    tenant: Optional[TenantName]

# One restriction that a policy can request.
Control = Literal["read", "write", "hidden", "protected", "network", "sockets", "processes", "ipc", "privileges", "syscalls", "devices", "environment", "memory", "cpu", "process_count", "open_files", "file_size", "disk", "wall_time"]


class _ControlReport(TypedDict):
    control: Control
    state: ControlState


class ControlReport(_ControlReport, total=False):
    """A control of one session."""

    # The mechanism that enforces the control, or the reason why it is not enforced.
    mechanism: str
    # What the user can do so that the control is enforced on this machine.
    remedy: Optional[str]
    # A self-test inside the sandbox tried the forbidden operation and was refused.
    tested: bool

# The state of a control.
ControlState = Literal["enforced", "not_enforced", "not_asked"]

# Which directories of a workspace a fork copies.
CopyScope = Literal["needed", "all"]


class CordonState(TypedDict):
    """Whether a node is cordoned, and how many sessions it still has."""

    cordoned: bool
    node: NodeName
    sessions: int


class CreatePackageEnvironment(TypedDict, total=False):
    """The request for an environment. If it is there already, nothing is built."""

    # Also packages that have no wheel: their own code builds them, in the sandbox of the build. Default: wheels only.
    allow_source_builds: bool
    # The text of a lock file, instead of packages. Every package in it needs a hash.
    lock: Optional[str]
    # Letters, digits, `-`, `_` and `.`. Default: the node derives a name from the packages and the interpreter, so the same request finds the same environment.
    name: Optional[str]
    # Packages of the index, each with an optional version: `pandas`, `numpy>=2,<3`, `requests[socks]==2.32.5`.
    packages: list[str]
    # The version of Python (`3.12`), or the interpreter as for a session. Default: `python3` on PATH.
    python: Optional[str]
    # How long the reply may wait for the build. Default: 0.
    wait_ms: int


class CreateSession(TypedDict, total=False):
    """The request for a new session."""

    # Settings of an agent. Only the workers `agent` and `acp` have them.
    agent: Optional[AgentRequest]
    # The code may install packages with pip or uv, into an environment that ends with the session. The hosts of the node's package index are added to the policy. Only the worker `python` installs packages.
    allow_packages: bool
    # The code works in a copy of `workspace`, in a new directory of the node, and `workspace` stays as it is. The reply names the directories that are not in the copy.
    copy_workspace: Optional[CopyScope]
    # The deadline of turns that set none themselves. Default: the node's deadline, one day unless the node was started with another.
    deadline_ms: Optional[int]
    # When acceptance and end of a turn are told. Default: `local`. `replicated` needs a fleet.
    durability: Durability
    # Environment variables to add.
    env: dict[str, str]
    # The package environment whose interpreter and packages the code uses, instead of `interpreter`. `POST /v1/environments` makes one. Only the worker `python` takes one.
    environment: Optional[str]
    # The session's id. Default: the node generates one.
    id: Optional[SessionId]
    # The idle timeout: the session ends after this many seconds without a client and without a turn. 0: never. Default: the node's idle timeout, one day unless the node was started with another.
    idle_s: Optional[int]
    # The interpreter, or the directory of a virtual environment. Default for Python: the nearest `.venv` at or above the workspace, else the interpreter on PATH.
    interpreter: Optional[str]
    # How long an interrupted turn may take to stop. After that, its worker is killed.
    interrupt_grace_ms: Optional[int]
    # Output bytes that the journal keeps for the session.
    output_quota_bytes: Optional[int]
    # The owner of the session. A tool host can offer its tools to all sessions of one owner.
    owner: Optional[Owner]
    # The live session whose child this session is. A child has its parent's policy, workspace and owner, so the request names none of them, and it ends with its parent.
    parent: Optional[SessionId]
    # On which node of the fleet the session is made. Default: the node that is asked chooses one with room, and itself for a session that names something of its machine.
    placement: Optional[PlacementRule]
    # What the code may access. Default: the preset `workspace`.
    policy: Optional[PolicyRequest]
    # The tenant that the session belongs to. Its id becomes `NAME@TENANT`. A client whose token has a tenant need not name it, and can name no other.
    tenant: Optional[TenantName]
    # Gives the code a terminal of this size. Only the worker `shell` has terminals.
    terminal: Optional[TerminalSize]
    # The session's first turn. It runs before any turn of another client that knows the id.
    turn: Optional[SubmitTurn]
    # The kind of worker, as `GET /v1/workers` names it, `jupyter:KERNEL`, `agent:ENGINE` or `acp:COMMAND`. Default: `python`.
    worker: Optional[str]
    # The directory that the code works in. Default: a new directory for this session.
    workspace: Optional[str]


class _Created(TypedDict):
    session: Session


class Created(_Created, total=False):
    """The reply of `POST /v1/sessions`."""

    # Directories that are not in the copy of the workspace, at most 64.
    left_out: list[LeftOutDirectory]
    # Number of further directories that are not in the copy.
    left_out_more: int
    # The first turn, if the request has one.
    turn: Optional[Turn]

# The kind of data on the disk.
DiskKind = Literal["journals_live", "journals_ended", "workspaces_live", "workspaces_ended", "fork_copies", "temporary", "leftovers", "environments", "packages", "index", "logs", "other"]


class DiskShare(TypedDict):
    """The disk usage of one kind of data."""

    # Allocated blocks in bytes, not file lengths. A file with several hard links counts once.
    bytes: int
    # Number of files and directories.
    entries: int
    kind: DiskKind


class DiskUse(TypedDict):
    """The reply of `GET /v1/node/disk`."""

    # Total bytes of all kinds.
    bytes: int
    # False if a directory could not be read or the measurement took too long. The usage is then higher.
    complete: bool
    # All kinds, including those without data.
    kinds: list[DiskShare]
    # How many seconds ended sessions are kept.
    retain_age_s: int
    # Maximum total bytes of all journals and of the workspaces of ended sessions.
    retain_bytes: int
    state_dir: str


class _DisplayRef(TypedDict):
    bytes: int
    mime: str
    # The event that completed the display.
    seq: Seq


class DisplayRef(_DisplayRef, total=False):
    """A display of a turn; its bytes are at `GET displays/{seq}`."""

    id: Optional[str]

# What `windlass doctor --json` prints.
DoctorFindings = Any

# Why output bytes are missing.
DropReason = Literal["quota", "disk_full", "not_copied"]

# When acceptance and end of a session's turns are told to the client that sent them.
Durability = Literal["local", "replicated"]


class _EgressDecision(TypedDict):
    allowed: bool
    count: int
    # The host. `*` if no host is named, because of too many connections at once or too many hosts to list.
    host: str
    last_at_ms: int
    port: int
    received_bytes: int
    # Bytes from the code to the host.
    sent_bytes: int


class EgressDecision(_EgressDecision, total=False):
    """The connections to one host and port with the same decision, added up."""

    # Why the connection was refused, or why an allowed connection failed. Empty if there was no problem.
    reason: str


class _EgressLog(TypedDict):
    # The decisions, latest first.
    decisions: list[EgressDecision]
    # When counting began: the start of the session, or a later start of the node.
    since_ms: int


class EgressLog(_EgressLog, total=False):
    """All egress decisions of a session, by host. Empty if the policy has no host list."""

    # The session has ended, so the decisions come from its journal. The journal has the time of the first decision of each kind, but no counts: `count`, `sent_bytes` and `received_bytes` are 0.
    from_journal: bool

# Why a session ended.
EndReason = Literal["closed", "worker_exited", "start_failed", "wall_time", "disk", "idle", "protocol_error", "keeper_lost", "node_gone", "fenced", "lost"]


class _Ended(TypedDict):
    reason: EndReason


class Ended(_Ended, total=False):
    """How a session ended."""

    # Details of the reason, for example how long the session was idle.
    message: Optional[str]
    receipt: Optional[Receipt]


class _Environment(TypedDict):
    # The interpreter as the file names it.
    interpreter: str
    pool: PoolInfo
    preload: list[str]
    zygote: ZygoteInfo


class Environment(_Environment, total=False):
    """The current state of an environment."""

    # The program that the name resolves to.
    program: Optional[str]
    # The kind of worker.
    worker: str


class _EnvironmentList(TypedDict):
    environments: list[Environment]


class EnvironmentList(_EnvironmentList, total=False):
    """The reply of `GET /v1/environments`."""

    # Why the user's configuration file is not used.
    error: Optional[str]
    # The package environments, which the node builds.
    packages: list[PackageEnvironment]

# The code of a failure. It is the same at every door and in the journal.
ErrorCode = Literal["bad_request", "message_too_large", "overloaded", "quota_exceeded", "session_not_found", "session_exists", "not_here", "cordoned", "node_unreachable", "fleet_unavailable", "fenced", "node_removed", "session_lost", "session_ended", "session_busy", "fork_refused", "fork_limit", "workspace_too_large", "turn_not_found", "turn_not_running", "state_lost", "limit_memory", "limit_processes", "limit_disk", "limit_wall_time", "not_enforceable", "unauthorized", "forbidden", "foreign_site", "worker_failed", "protocol_error", "worker_died", "keeper_lost", "deadline_passed", "unstoppable", "session_closed", "disk_full", "file_not_found", "file_conflict", "path_refused", "tool_not_found", "tool_failed", "tool_deadline_passed", "tool_host_gone", "tool_cancelled", "would_deadlock", "version_mismatch", "shutting_down", "already_running", "not_found", "method_not_allowed", "internal"]

# An event with its body: as text if it is UTF-8, else in base64. Large bodies are left out; read them with `GET output` or `GET displays`.
EventItem = Union["EventItemTurnAccepted", "EventItemInterruptAsked", "EventItemOutput", "EventItemDisplay", "EventItemStdinWait", "EventItemToolCall", "EventItemToolCancel", "EventItemToolEnded", "EventItemInputTaken", "EventItemTurnEnded", "EventItemWorkerReady", "EventItemConfined", "EventItemLimitReached", "EventItemWorkerEnded", "EventItemEgress", "EventItemProtocolBroken", "EventItemOutputDropped", "EventItemMessagesDropped", "EventItemSessionEnded"]


class _EventItemConfined(TypedDict):
    # When the node took the event: milliseconds since the Unix epoch.
    at_ms: int
    controls: list[ControlReport]
    isolation: Isolation
    kind: Literal["confined"]
    seq: Seq


class EventItemConfined(_EventItemConfined, total=False):
    base64: Optional[str]
    # The body's length in bytes.
    bytes: int
    # The keeper's number for the event. Absent for events of the node.
    link: Optional[LinkSeq]
    text: Optional[str]
    # The turn of the event. Absent for events of the session itself.
    turn: Optional[TurnNo]


class _EventItemDisplay(TypedDict):
    # When the node took the event: milliseconds since the Unix epoch.
    at_ms: int
    kind: Literal["display"]
    mime: str
    seq: Seq


class EventItemDisplay(_EventItemDisplay, total=False):
    base64: Optional[str]
    # The body's length in bytes.
    bytes: int
    id: Optional[str]
    # The keeper's number for the event. Absent for events of the node.
    link: Optional[LinkSeq]
    more: bool
    text: Optional[str]
    # The turn of the event. Absent for events of the session itself.
    turn: Optional[TurnNo]
    # Whether it replaces the display with the same `id`.
    update: bool


class _EventItemEgress(TypedDict):
    allowed: bool
    # When the node took the event: milliseconds since the Unix epoch.
    at_ms: int
    host: str
    kind: Literal["egress"]
    port: int
    seq: Seq


class EventItemEgress(_EventItemEgress, total=False):
    base64: Optional[str]
    # The body's length in bytes.
    bytes: int
    # The keeper's number for the event. Absent for events of the node.
    link: Optional[LinkSeq]
    reason: str
    text: Optional[str]
    # The turn of the event. Absent for events of the session itself.
    turn: Optional[TurnNo]


class _EventItemInputTaken(TypedDict):
    # When the node took the event: milliseconds since the Unix epoch.
    at_ms: int
    bytes: int
    kind: Literal["input_taken"]
    seq: Seq


class EventItemInputTaken(_EventItemInputTaken, total=False):
    base64: Optional[str]
    # The keeper's number for the event. Absent for events of the node.
    link: Optional[LinkSeq]
    text: Optional[str]
    # The turn of the event. Absent for events of the session itself.
    turn: Optional[TurnNo]


class _EventItemInterruptAsked(TypedDict):
    # When the node took the event: milliseconds since the Unix epoch.
    at_ms: int
    cause: StopCause
    kind: Literal["interrupt_asked"]
    seq: Seq


class EventItemInterruptAsked(_EventItemInterruptAsked, total=False):
    base64: Optional[str]
    # The body's length in bytes.
    bytes: int
    # The keeper's number for the event. Absent for events of the node.
    link: Optional[LinkSeq]
    text: Optional[str]
    # The turn of the event. Absent for events of the session itself.
    turn: Optional[TurnNo]


class _EventItemLimitReached(TypedDict):
    # When the node took the event: milliseconds since the Unix epoch.
    at_ms: int
    kind: Literal["limit_reached"]
    limit: Limit
    message: str
    seq: Seq


class EventItemLimitReached(_EventItemLimitReached, total=False):
    base64: Optional[str]
    # The body's length in bytes.
    bytes: int
    # The session ends because of it. Absent in events of earlier releases.
    ends_session: bool
    # The keeper's number for the event. Absent for events of the node.
    link: Optional[LinkSeq]
    text: Optional[str]
    # The turn of the event. Absent for events of the session itself.
    turn: Optional[TurnNo]


class _EventItemMessagesDropped(TypedDict):
    # When the node took the event: milliseconds since the Unix epoch.
    at_ms: int
    count: int
    kind: Literal["messages_dropped"]
    reason: str
    seq: Seq


class EventItemMessagesDropped(_EventItemMessagesDropped, total=False):
    base64: Optional[str]
    # The body's length in bytes.
    bytes: int
    # The keeper's number for the event. Absent for events of the node.
    link: Optional[LinkSeq]
    text: Optional[str]
    # The turn of the event. Absent for events of the session itself.
    turn: Optional[TurnNo]


class _EventItemOutput(TypedDict):
    # When the node took the event: milliseconds since the Unix epoch.
    at_ms: int
    kind: Literal["output"]
    seq: Seq
    stream: Stream


class EventItemOutput(_EventItemOutput, total=False):
    # Whether a thread or process wrote it that outlived its turn.
    background: bool
    base64: Optional[str]
    # The body's length in bytes.
    bytes: int
    # The keeper's number for the event. Absent for events of the node.
    link: Optional[LinkSeq]
    text: Optional[str]
    # The turn of the event. Absent for events of the session itself.
    turn: Optional[TurnNo]


class _EventItemOutputDropped(TypedDict):
    # When the node took the event: milliseconds since the Unix epoch.
    at_ms: int
    bytes: int
    kind: Literal["output_dropped"]
    reason: DropReason
    seq: Seq


class EventItemOutputDropped(_EventItemOutputDropped, total=False):
    base64: Optional[str]
    # The keeper's number for the event. Absent for events of the node.
    link: Optional[LinkSeq]
    text: Optional[str]
    # The turn of the event. Absent for events of the session itself.
    turn: Optional[TurnNo]


class _EventItemProtocolBroken(TypedDict):
    # When the node took the event: milliseconds since the Unix epoch.
    at_ms: int
    kind: Literal["protocol_broken"]
    message: str
    seq: Seq


class EventItemProtocolBroken(_EventItemProtocolBroken, total=False):
    base64: Optional[str]
    # The body's length in bytes.
    bytes: int
    # The keeper's number for the event. Absent for events of the node.
    link: Optional[LinkSeq]
    text: Optional[str]
    # The turn of the event. Absent for events of the session itself.
    turn: Optional[TurnNo]


class _EventItemSessionEnded(TypedDict):
    # When the node took the event: milliseconds since the Unix epoch.
    at_ms: int
    kind: Literal["session_ended"]
    reason: EndReason
    seq: Seq


class EventItemSessionEnded(_EventItemSessionEnded, total=False):
    base64: Optional[str]
    # The body's length in bytes.
    bytes: int
    # The keeper's number for the event. Absent for events of the node.
    link: Optional[LinkSeq]
    # Details of the reason, for example how long the session was idle.
    message: Optional[str]
    receipt: Optional[Receipt]
    text: Optional[str]
    # The turn of the event. Absent for events of the session itself.
    turn: Optional[TurnNo]


class _EventItemStdinWait(TypedDict):
    # When the node took the event: milliseconds since the Unix epoch.
    at_ms: int
    kind: Literal["stdin_wait"]
    prompt: str
    secret: bool
    seq: Seq


class EventItemStdinWait(_EventItemStdinWait, total=False):
    base64: Optional[str]
    # The body's length in bytes.
    bytes: int
    # The keeper's number for the event. Absent for events of the node.
    link: Optional[LinkSeq]
    text: Optional[str]
    # The turn of the event. Absent for events of the session itself.
    turn: Optional[TurnNo]


class _EventItemToolCall(TypedDict):
    # When the node took the event: milliseconds since the Unix epoch.
    at_ms: int
    call: CallNo
    kind: Literal["tool_call"]
    name: str
    seq: Seq


class EventItemToolCall(_EventItemToolCall, total=False):
    base64: Optional[str]
    # Bytes of arguments in this event.
    bytes: int
    # How long the code waits for the result.
    deadline_ms: Optional[int]
    # The keeper's number for the event. Absent for events of the node.
    link: Optional[LinkSeq]
    more: bool
    # Bytes of arguments in the earlier events of this call.
    offset: int
    text: Optional[str]
    # The turn of the event. Absent for events of the session itself.
    turn: Optional[TurnNo]


class _EventItemToolCancel(TypedDict):
    # When the node took the event: milliseconds since the Unix epoch.
    at_ms: int
    call: CallNo
    kind: Literal["tool_cancel"]
    seq: Seq


class EventItemToolCancel(_EventItemToolCancel, total=False):
    base64: Optional[str]
    # The body's length in bytes.
    bytes: int
    # The keeper's number for the event. Absent for events of the node.
    link: Optional[LinkSeq]
    text: Optional[str]
    # The turn of the event. Absent for events of the session itself.
    turn: Optional[TurnNo]


class _EventItemToolEnded(TypedDict):
    # When the node took the event: milliseconds since the Unix epoch.
    at_ms: int
    # Bytes of the result.
    bytes: int
    call: CallNo
    kind: Literal["tool_ended"]
    ok: bool
    seq: Seq
    wall_ms: float


class EventItemToolEnded(_EventItemToolEnded, total=False):
    base64: Optional[str]
    # Why the call failed. Absent if the tool itself failed.
    code: Optional[ErrorCode]
    # The keeper's number for the event. Absent for events of the node.
    link: Optional[LinkSeq]
    text: Optional[str]
    # The turn of the event. Absent for events of the session itself.
    turn: Optional[TurnNo]


class _EventItemTurnAccepted(TypedDict):
    # When the node took the event: milliseconds since the Unix epoch.
    at_ms: int
    id: TurnId
    kind: Literal["turn_accepted"]
    seq: Seq


class EventItemTurnAccepted(_EventItemTurnAccepted, total=False):
    base64: Optional[str]
    # The body's length in bytes.
    bytes: int
    # The surroundings of the turn, in the event with the first part of its code.
    context: Optional[TurnContext]
    deadline_ms: Optional[int]
    # The keeper's number for the event. Absent for events of the node.
    link: Optional[LinkSeq]
    # Whether more of the code follows in the next event.
    more: bool
    text: Optional[str]
    # The turn of the event. Absent for events of the session itself.
    turn: Optional[TurnNo]


class _EventItemTurnEnded(TypedDict):
    # When the node took the event: milliseconds since the Unix epoch.
    at_ms: int
    kind: Literal["turn_ended"]
    outcome: Outcome
    seq: Seq


class EventItemTurnEnded(_EventItemTurnEnded, total=False):
    base64: Optional[str]
    # The body's length in bytes.
    bytes: int
    error: Optional[TurnError]
    # The exit status of the code. For a worker that a signal ended: 128 and the signal's number.
    exit_code: Optional[int]
    # The keeper's number for the event. Absent for events of the node.
    link: Optional[LinkSeq]
    receipt: Optional[Receipt]
    # What the policy refused in the turn, if that made it fail.
    refusal: Optional[PolicyRefusal]
    text: Optional[str]
    # The turn of the event. Absent for events of the session itself.
    turn: Optional[TurnNo]
    usage: Usage
    # The value of the last expression, if it can be written as JSON and is small.
    value: Optional[ResultValue]


class _EventItemWorkerEnded(TypedDict):
    # When the node took the event: milliseconds since the Unix epoch.
    at_ms: int
    cause: str
    kind: Literal["worker_ended"]
    seq: Seq


class EventItemWorkerEnded(_EventItemWorkerEnded, total=False):
    base64: Optional[str]
    # The body's length in bytes.
    bytes: int
    # The exit status of the process. For a process that a signal ended: 128 and the signal's number.
    exit_code: Optional[int]
    # The limit that ended the worker, if a limit did.
    limit: Optional[Limit]
    # The keeper's number for the event. Absent for events of the node.
    link: Optional[LinkSeq]
    # Whether the node requested the restart. The event's turn is the turn that ran on the worker, if any.
    replaced: bool
    # The end of what the turn on the worker wrote to its standard error, if the worker ended in a turn.
    stderr: str
    text: Optional[str]
    # The turn of the event. Absent for events of the session itself.
    turn: Optional[TurnNo]


class _EventItemWorkerReady(TypedDict):
    # When the node took the event: milliseconds since the Unix epoch.
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
    # The capabilities that the worker declares. Absent in events of earlier releases.
    capabilities: Optional[list[str]]
    # What the start cost. Only if the node's configuration asks for it.
    figures: Optional[StartFigures]
    # The keeper's number for the event. Absent for events of the node.
    link: Optional[LinkSeq]
    start: StartedBy
    text: Optional[str]
    # The turn of the event. Absent for events of the session itself.
    turn: Optional[TurnNo]


class Events(TypedDict):
    """Some events of a session, in order."""

    # The `after` of the next request.
    after: Seq
    # Whether these are the last events of the session.
    ended: bool
    events: list[EventItem]


class FileDeleted(TypedDict):
    """A file that was deleted."""

    path: str


class _FileEntry(TypedDict):
    bytes: int
    kind: FileKind
    modified_ms: int
    # The path relative to the workspace, also if another directory was requested.
    path: str


class FileEntry(_FileEntry, total=False):
    # Only for regular files. It changes with every change of the file.
    etag: Optional[str]


class FileEvent(TypedDict):
    """A change of a file or directory below a watched directory."""

    kind: FileEventKind
    path: str

FileEventKind = Literal["made", "changed", "removed", "overflow"]

FileKind = Literal["file", "directory", "link", "other"]


class FileList(TypedDict):
    """One page of the files in a workspace, in order. A directory comes before its contents. Names are compared byte by byte."""

    entries: list[FileEntry]
    # Whether more entries follow. Request them with the last path of this page as `after`.
    more: bool


class FileWritten(TypedDict):
    """A file that was written."""

    bytes: int
    etag: str
    path: str


class FleetNodeCounts(TypedDict):
    """Number of nodes by status."""

    alive: int
    lost: int
    # Nodes that are alive and did not answer in time.
    silent: int
    unreachable: int


class FleetNodeList(TypedDict):
    """The nodes of a fleet, by name."""

    nodes: list[FleetNodeView]

# What the fleet knows of a node's lease.
FleetNodeStatus = Literal["alive", "unreachable", "lost"]


class _FleetNodeView(TypedDict):
    node: NodeName
    status: FleetNodeStatus


class FleetNodeView(_FleetNodeView, total=False):
    """A node of the fleet, as the node that answers knows it."""

    # Where other nodes reach it.
    address: Optional[str]
    # How long its answer took.
    answer_ms: Optional[int]
    # How far its clock is ahead of the clock of the node that answers. Exact to `answer_ms`.
    clock_ahead_ms: Optional[int]
    # Why there is no load.
    error: Optional[str]
    generation: Optional[Generation]
    # Whether this is the node that answers.
    is_self: bool
    # Its load. Absent if it did not answer in time.
    load: Optional[NodeLoad]


class _FleetStatus(TypedDict):
    # When the node's certificate expires, in milliseconds since the Unix epoch.
    certificate_expires_at_ms: int
    cordoned: bool
    # From this age on the node takes no new sessions.
    lease_close_ms: int
    # From this age on the node ends its sessions.
    lease_fence_ms: int
    node: NodeName
    nodes: FleetNodeCounts
    release: str
    # Live sessions of the nodes that answered.
    sessions: int
    standing: NodeStanding
    store: FleetStoreStatus


class FleetStatus(_FleetStatus, total=False):
    """How a node stands in its fleet."""

    generation: Optional[Generation]
    # Time since the last acknowledged renewal of the lease.
    lease_age_ms: Optional[int]


class _FleetStoreStatus(TypedDict):
    reachable: bool


class FleetStoreStatus(_FleetStoreStatus, total=False):
    """Whether the store of the fleet answers."""

    answer_ms: Optional[int]
    # Why the store cannot be used.
    error: Optional[str]


class ForkSession(TypedDict, total=False):
    """The request for a twin of a session."""

    # Which directories of the workspace are copied. Default: all except those that can be rebuilt or reinstalled.
    copy: CopyScope
    # The twin's id. Default: the node generates one.
    id: Optional[SessionId]
    # The owner of the twin. Default: the original's owner.
    owner: Optional[Owner]


class _ForkedSession(TypedDict):
    # What the twin does not have, or shares with the original.
    not_carried: list[NotCarried]
    # The twin. Its workspace is a copy at another path.
    session: Session


class ForkedSession(_ForkedSession, total=False):
    """The reply of `POST /v1/sessions/{session}/fork`."""

    # Threads and processes from before the fork that can still reach the twin. Empty for most forks, and for sessions without confinement.
    can_reach: list[CanReach]
    # Directories of the workspace that were not copied, at most 64. Fork with `copy: all` to copy them.
    left_out: list[LeftOutDirectory]
    # Number of further directories that were not copied.
    left_out_more: int

# How often a node has begun anew in its fleet, from 1. All sessions of an earlier generation have ended.
Generation = int


class _Health(TypedDict):
    status: str


class Health(_Health, total=False):
    # `behind`: records of the audit log could not be written. Only for clients without a tenant.
    audit: Optional[str]

# How the keeper holds the processes of its session together.
Hold = Literal["pid_namespace", "subreaper"]

# A list of host rules. A host is allowed if any rule matches.
HostRules = list[str]

# Where the journal's index is. The index is derived from the journal, so its loss loses no data.
IndexStorage = Literal["file", "memory"]

# How strongly a session is confined.
Isolation = Literal["full", "landlock", "none"]


class LeftOutDirectory(TypedDict):
    """A directory of the workspace that the fork did not copy."""

    # Whether the copy has a symlink to the original's directory, which the twin can read but not write.
    linked: bool
    # The path relative to the workspace.
    path: str
    why: LeftOutReason

# Why a fork does not copy a directory.
LeftOutReason = Literal["environment", "packages", "cache"]

# A limit that a session reached.
Limit = Literal["memory", "processes", "disk", "wall_time"]


class Limits(TypedDict, total=False):
    """The resource limits of a session. Absent: Windlass sets no limit."""

    # CPU time: 100 is one core.
    cpu_percent: Optional[int]
    # By how much the workspace may grow.
    disk_bytes: Optional[int]
    # The size of the largest file that the session can write.
    file_bytes: Optional[int]
    # Memory of all processes together, including the private `/tmp`.
    memory_bytes: Optional[int]
    # Number of open files of one process.
    open_files: Optional[int]
    # Number of processes and threads at the same time.
    processes: Optional[int]
    # The size of the private `/tmp`. `/dev/shm` has the same size in addition.
    tmp_bytes: Optional[int]
    # How long the session may live.
    wall_s: Optional[int]

# The sequence number of an event among the events of one keeper, from 1. The node acknowledges events by it.
LinkSeq = int


class _MeasuredUsage(TypedDict):
    # Number of live sessions that are measured.
    sessions: int


class MeasuredUsage(_MeasuredUsage, total=False):
    """What the processes of sessions use, as the kernel counts it in cgroups. A figure is absent if no cgroup counts it. Cgroups of version 1 count CPU time only where `cpuacct` and `cpu` are one hierarchy."""

    # CPU time of live sessions since they began, and of sessions that have ended since the node started.
    cpu_ms: Optional[float]
    # Memory of their processes now, with the files that the kernel caches for them.
    memory_bytes: Optional[int]


class MemoryCapacity(TypedDict):
    """The memory of a node. The limit of the node's cgroup counts, if it is tighter than the machine."""

    available_bytes: int
    # What must stay available: below it, the node takes no new sessions.
    reserve_bytes: int
    total_bytes: int

# The network access of a session.
Network = Union[Literal["none", "open"], "NetworkHosts"]


class NetworkHosts(TypedDict):
    """Only these hosts, through the node's egress proxy."""

    # Only these hosts, through the node's egress proxy.
    hosts: HostRules


class _NodeLoad(TypedDict):
    # The node's clock when it answered, in milliseconds since the Unix epoch.
    at_ms: int
    # Whether the node takes no new sessions because a user wants so.
    cordoned: bool
    memory: MemoryCapacity
    node: NodeName
    processors: ProcessorCapacity
    # The version of Windlass that the node runs.
    release: str
    sessions: SessionCapacity
    standing: NodeStanding
    version: int


class NodeLoad(_NodeLoad, total=False):
    """The load of a node, as the node itself measures it."""

    labels: dict[str, str]
    # Pooled workers that are ready.
    ready: list[ReadyWorkers]

# The name of a node in its fleet. It is a part of subjects and of certificates' names, so few characters are allowed.
NodeName = str

# What a node may do in its fleet.
NodeStanding = Literal["joining", "serving", "closed", "fenced"]


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
    """The current state of the node."""

    # The address of the TCP door. Absent if the door is closed.
    listen: Optional[str]
    # Whether the TCP door is encrypted: clients use `https`.
    listen_tls: bool
    # The unix socket of the HTTP door. Absent if the node is of an earlier release.
    socket: Optional[str]
    # Absent if the node is of an earlier release.
    storage: Optional[StateStorage]
    # The tenant of the client's token. Absent: the client has no tenant, or the node is of an earlier release.
    tenant: Optional[TenantName]


class NotCarried(TypedDict):
    """An item that a fork leaves with the original."""

    # The name of the item, if it has one.
    name: str
    # `thread`, `process`, `socket`, `pipe`, `gpu`, `descriptor`; `file`, which the copy of the workspace does not have; or `shared_memory`, which original and twin share after the fork.
    what: str


class OpenConsole(TypedDict, total=False):
    """With what a page of the web console logs in: one of the two."""

    # The code of an address that `windlass console` prints.
    code: Optional[str]
    # A token of the node.
    token: Optional[str]

# How a turn ended.
Outcome = Literal["ok", "error", "interrupted", "timed_out", "lost"]


_OutputView = TypedDict(
    "_OutputView",
    {
        # Total bytes of output.
        "bytes": int,
        # The offset of the turn's output in the session's output, for `GET output?from=`.
        "from": int,
        # The whole text, or head, marker and tail. Bytes that are not UTF-8 are shown as U+FFFD.
        "text": str,
    },
)


class OutputView(_OutputView, total=False):
    """A turn's output within a byte budget: the head, the tail, and the number of bytes between them."""

    # The raw bytes in base64, if they are not UTF-8.
    base64: Optional[str]
    # Bytes between head and tail that are not shown.
    omitted_bytes: int

# The owner of sessions: a name that a client gives to its sessions, so that it can offer tools to all of them. An owner of a tenant is `NAME@TENANT`.
Owner = str


class _PackageEnvironment(TypedDict):
    created_at_ms: int
    # The directory of the virtual environment.
    directory: str
    name: str
    # The interpreter that it was made with.
    python: str
    state: PackageEnvironmentState
    # When a session last used it.
    used_at_ms: int


class PackageEnvironment(_PackageEnvironment, total=False):
    """A package environment."""

    # The session that builds it, or that built it. Its output is the output of the build.
    build: Optional[SessionId]
    # Why the build failed.
    error: Optional[str]
    # The lock file: all packages with version and hashes. Only in the reply for one environment.
    lock: Optional[str]
    # The packages of the request.
    packages: list[str]

PackageEnvironmentState = Literal["building", "ready", "failed"]

# Who answers an agent's requests for permission.
PermissionPolicy = Literal["allow", "ask", "refuse"]


class PlacementRule(TypedDict, total=False):
    """On which node a new session is wanted. Without it, the node that is asked chooses."""

    # A node that has all these labels.
    labels: dict[str, str]
    # The node of this name.
    node: Optional[NodeName]


class _Policy(TypedDict):
    # Variables of the node's environment that the code gets, in addition to the default ones.
    environment: list[str]
    # Hidden paths. They cannot be read, even below a readable path.
    hidden: list[str]
    limits: Limits
    network: Network
    preset: Preset
    # Names directly below a writable root that can be read, but not written, replaced or created.
    protected: list[str]
    # Readable paths, in addition to the workspace. `/` is the whole system.
    readable: list[str]
    # Controls without which the session does not start.
    required: list[Control]
    workspace: WorkspaceAccess
    # Writable paths, in addition to the workspace and the private directories.
    writable: list[str]


class Policy(_Policy, total=False):
    """A complete policy, without defaults to fill in."""

    # Absent: the strongest level that the machine supports.
    isolation: Optional[Isolation]
    # Where the egress proxy may send secrets of the node.
    secrets: list[SecretRule]
    # Tools of the node's MCP servers that the code may call.
    tools: list[ToolRule]
    unix_sockets: UnixSockets


class _PolicyRefusal(TypedDict):
    # The control that refused it.
    control: Control
    # What happened and what allows it, for people.
    message: str
    # What was tried, for example `connect to example.org`. Names in it come from the session's code.
    tried: str


class PolicyRefusal(_PolicyRefusal, total=False):
    """Why the policy of a session stopped what a turn tried."""

    # The field of a policy request that allows it, for example `policy.network.hosts`. Absent if none does.
    field: Optional[str]
    # The command line option that allows it, for example `--allow-host example.org`. Absent if no option does.
    option: Optional[str]


class PolicyRequest(TypedDict, total=False):
    """The policy that a client requests: a preset, and the differences from it."""

    # Variables of the node's environment that the code gets, in addition to the default ones.
    environment: list[str]
    # Hidden paths, in addition to the preset's.
    hidden: list[str]
    # Default: the strongest level that the machine supports, but never `none`.
    isolation: Optional[Isolation]
    limits: Limits
    # The network access, instead of the preset's.
    network: Optional[Network]
    # Default: `workspace`.
    preset: Optional[Preset]
    # Readable paths, instead of the preset's. Absolute, or `~/...`.
    readable: Optional[list[str]]
    # Controls without which the session does not start, instead of the preset's.
    required: Optional[list[Control]]
    # Where the egress proxy may send secrets of the node. The hosts of these rules are allowed too.
    secrets: list[SecretRule]
    # Entries to remove from the preset's hidden and protected lists.
    shown: list[str]
    # Tools of the node's MCP servers that the code may call: `files.read`, `files.*`, `*`. Default: none. Tools that a client offers to its own sessions need no rule.
    tools: list[ToolRule]
    # Default: `local`.
    unix_sockets: Optional[UnixSockets]
    # Writable paths, in addition to the preset's.
    writable: list[str]


class PoolInfo(TypedDict):
    """The pool of an environment."""

    ready: int
    size: int

# A predefined policy.
Preset = Literal["read-only", "workspace", "open"]


class _Prewarm(TypedDict):
    how: PrewarmSource


class Prewarm(_Prewarm, total=False):
    """The preparation of an interpreter: its start, and the packages loaded ahead."""

    # How long the preparation took, whenever it was done. Absent if the worker does not say.
    ms: Optional[int]

PrewarmSource = Literal["executed", "cached"]


class ProcessorCapacity(TypedDict):
    """The processors of a node."""

    count: int
    # The machine's load average over one minute, in hundredths.
    load_hundredths: int


class PruneRequest(TypedDict, total=False):
    """What to remove."""

    # Only report what would be removed.
    dry_run: bool
    # Remove only sessions that ended more than this many seconds ago, and package environments without a name that were last used before that. Default: all ended sessions, and all such environments that no live session uses. Leftovers, and sessions that the node's retention would remove, are always removed.
    older_than_s: Optional[int]


class Pruned(TypedDict):
    """The reply of `POST /v1/node/prune`."""

    # Bytes that were freed, or would be.
    bytes: int
    # False if not everything could be measured. A dry run may then report too little.
    complete: bool
    # True if nothing was removed, because the request was a dry run.
    dry_run: bool
    # Items that could not be removed, with the reason.
    failed: list[str]
    # Number of further removed items. `bytes` includes them.
    more: int
    # The removed items, at most 1,000, in the order of removal.
    removed: list[PrunedItem]


class PrunedItem(TypedDict):
    """An item that was removed, or would be."""

    bytes: int
    kind: DiskKind
    # The session's id, or a path below the state directory.
    name: str


class ReadyWorkers(TypedDict):
    """The pooled workers of one environment that are ready."""

    # The interpreter, as the node's configuration names it.
    interpreter: str
    ready: int
    # The kind of worker.
    worker: str


class Receipt(TypedDict):
    """The report of a loss: what was kept and what was lost."""

    kept: list[str]
    lost: list[str]

# The value of a turn's last expression, as JSON. The worker that sends it is not trusted: a value over a limit counts as absent.
ResultValue = Any

# Names one conversation of one engine. At most one turn of a conversation runs at any time.
ResumeToken = str


class SearchMatch(TypedDict):
    """A line that contains the text."""

    # The line around the match, cut to 512 bytes.
    line: str
    # The offset of the match in the session's output.
    offset: int


class SearchResult(TypedDict):
    matches: list[SearchMatch]
    # Whether more matches follow the last one.
    more: bool


class SecretInfo(TypedDict):
    """A secret, without its value."""

    name: str
    # When the value was set.
    set_at_ms: int


class SecretList(TypedDict):
    """The secrets of the node, without their values."""

    secrets: list[SecretInfo]


class _SecretRule(TypedDict):
    # The secret, as in `windlass secret set NAME`.
    name: str
    # The start of the URLs: `https://api.example.com/v1/`. With `http://` the value is sent unencrypted.
    to: str


class SecretRule(_SecretRule, total=False):
    """Where a secret may go, and how. A request gets the value if its URL starts with `to` and `methods` names its method. In such a request the proxy replaces the placeholder in the header or the query parameter; if the request has no such header or parameter, the proxy adds it."""

    # The user name of basic authentication, instead of a template: the value is the password.
    basic_user: Optional[str]
    # Whether a placeholder in the body of a request to `to` is refused. `pass` is for model APIs: an agent that prints its environment sends the placeholder with every later prompt.
    body: BodyPlaceholder
    # The environment variable that holds the placeholder. Default: the secret's name.
    env: Optional[str]
    # The header that carries the value. Default: `authorization`, unless `query` is set.
    header: Optional[str]
    # The methods of the requests, for example `["GET"]`. Default: all.
    methods: list[str]
    # The query parameter that carries the value, instead of a header.
    query: Optional[str]
    # The header or the parameter that the proxy adds to a request without one: `{secret}` stands for the value. Default: `Bearer {secret}` in `authorization`, else `{secret}`.
    template: Optional[str]

# The sequence number of an event in its session, from 1. Clients resume from it.
Seq = int


class _Session(TypedDict):
    created_at_ms: int
    id: SessionId
    # Number of worker messages that were dropped: of an unknown kind, or for another turn.
    messages_dropped: int
    # Output bytes produced so far.
    output_bytes: int
    # Output bytes that are no longer kept.
    output_dropped_bytes: int
    # Number of workers started after the first.
    restarts: int
    # The sequence number of the last event.
    seq: Seq
    state: SessionState
    # Number of turns accepted so far.
    turns: int
    # Number of turns that wait behind the running one.
    waiting: int
    # The worker's name for itself. Empty until the worker is ready.
    worker: str
    workspace: str


class Session(_Session, total=False):
    """The current state of a session."""

    # The capabilities that the worker declares: `stdin`, `interrupt`, `display`, `tools`, `fork`. Absent until the worker is ready.
    capabilities: Optional[list[str]]
    # The program that created the session, by the name that it gives itself in the header `Windlass-Client`.
    client: Optional[ClientName]
    # How the policy is enforced. Absent until a worker was started under it.
    confinement: Optional[Confinement]
    # The directory that the workspace is a copy of.
    copied_from: Optional[str]
    # The default deadline of turns that the session was created with. Absent: the node's default.
    deadline_ms: Optional[int]
    ended: Optional[Ended]
    # The package environment that the session uses.
    environment: Optional[str]
    # The session that this session was forked from.
    forked_from: Optional[SessionId]
    hold: Optional[Hold]
    # The idle timeout that the session was created with. 0: none. Absent: the node's default.
    idle_s: Optional[int]
    # The keeper's process id.
    keeper_pid: Optional[int]
    # The kind of worker.
    kind: str
    # The node that has the session. Absent without a fleet.
    node: Optional[NodeName]
    # The owner of the session.
    owner: Optional[Owner]
    # The session whose child this session is.
    parent: Optional[SessionId]
    # What the session's code may access.
    policy: Optional[Policy]
    # The conversation of the session's agent. Absent until the agent has begun one.
    resume: Optional[ResumeToken]
    # What the start of the worker cost. Only if `start_figures` is set in the node's configuration file.
    start_figures: Optional[StartFigures]
    # How the worker was started. Absent until the worker is ready.
    started_by: Optional[StartedBy]
    # The tenant that the session belongs to. It is also a part of the id.
    tenant: Optional[TenantName]
    # The size of the terminal that the code has. Absent for a session without a terminal.
    terminal: Optional[TerminalSize]
    # The running turn.
    turn: Optional[TurnId]
    # The worker's process id, in the keeper's pid namespace.
    worker_pid: Optional[int]


class SessionCapacity(TypedDict):
    """How many sessions a node has, and how many it takes."""

    live: int
    max: int

# The id of a session, unique in its node. The client chooses it, or the node generates it. A directory and a socket have this name, so few characters are allowed. The id of a tenant's session is `NAME@TENANT`: the tenant is a part of the id, so it holds wherever the id is recorded.
SessionId = str


class _SessionList(TypedDict):
    sessions: list[Session]


class SessionList(_SessionList, total=False):
    # Where the next page begins. Absent on the last page. A page can have fewer sessions than the request allows, also none, and still not be the last one.
    cursor: Optional[str]


class _SessionOverview(TypedDict):
    sessions: list[SessionRow]


class SessionOverview(_SessionOverview, total=False):
    """Some sessions as short rows, in the order of the list of sessions."""

    # Where the next page begins. Absent on the last page. A page can have fewer sessions than the request allows, also none, and still not be the last one.
    cursor: Optional[str]


class _SessionRow(TypedDict):
    id: SessionId
    # Output bytes produced so far.
    output_bytes: int
    state: SessionState
    # Number of turns accepted so far.
    turns: int


class SessionRow(_SessionRow, total=False):
    """One session in the overview. Figures of use are absent for an ended session, and if no cgroup counts them."""

    # The program that created the session, by the name that it gives itself.
    client: Optional[ClientName]
    # CPU time of all processes that the session ever had, over its whole life.
    cpu_ms: Optional[int]
    # Absent if only the fleet's directory knows the session.
    created_at_ms: int
    # The package environment that the session uses.
    environment: Optional[str]
    # The session that this session was forked from.
    forked_from: Optional[SessionId]
    # The idle timeout that the session was created with. 0: none. Absent: the node's default.
    idle_s: Optional[int]
    # The kind of worker. Absent if only the fleet's directory knows the session.
    kind: str
    # When `memory_bytes` and `cpu_ms` were read, by the clock of the session's node, which reads them at most once a second. Processors in use: the difference of two `cpu_ms` divided by that of their `measured_at_ms`.
    measured_at_ms: Optional[int]
    # Memory of the session's processes, with the files that the kernel caches for them.
    memory_bytes: Optional[int]
    # The node that has the session. Absent without a fleet.
    node: Optional[NodeName]
    # The owner of the session.
    owner: Optional[Owner]
    # The session whose child this session is.
    parent: Optional[SessionId]
    # The tenant that the session belongs to. It is also a part of the id.
    tenant: Optional[TenantName]
    # The number of the running turn.
    turn: Optional[TurnNo]
    # Number of turns that wait behind the running one. Absent: 0.
    waiting: int
    # Whether the running turn waits for input. Absent: it does not.
    waits_for_input: bool
    # The directory that the code works in. Absent if only the fleet's directory knows the session.
    workspace: str


class SessionSecretRules(TypedDict):
    """The secret rules of a live session."""

    # What the session's code sends instead of each secret, by name.
    placeholders: dict[str, str]
    rules: list[SecretRule]

SessionState = Literal["starting", "idle", "busy", "awaiting_input", "interrupting", "restarting", "ended", "unreachable", "lost"]


class SessionTool(TypedDict):
    name: str
    # How code calls the tool.
    signature: str
    summary: str


class SessionTools(TypedDict):
    """The tools that a session's code may call."""

    # Whether there are more tools.
    more: bool
    tools: list[SessionTool]


class SetCordon(TypedDict):
    """The request to cordon a node, or to let it take sessions again."""

    on: bool


class SetSecretRules(TypedDict):
    """New secret rules for a live session, instead of the ones that it has."""

    rules: list[SecretRule]


class _StartFigures(TypedDict):
    prewarm: Prewarm
    # Time from the start of the worker, or from its claim from a pool, until it was ready for turns.
    startup_ms: int


class StartFigures(_StartFigures, total=False):
    """What the start of a worker cost, and what was prepared for it."""

    # Number of those packages.
    package_count: Optional[int]
    # Time to load packages that code expects to find loaded, by the worker.
    package_load_ms: Optional[int]
    # Time until the interpreter could run code, by the worker.
    runtime_load_ms: Optional[int]

# How a worker was started. The session behaves the same in every case.
StartedBy = Literal["exec", "zygote", "pool", "fork"]


class _StateStorage(TypedDict):
    index: IndexStorage
    # Number of log lines that the node could not write since it started.
    log_lines_dropped: int


class StateStorage(_StateStorage, total=False):
    """The disk that holds the node's state."""

    # Number of records of the audit log that were lost since the node started. 0 from nodes of earlier releases.
    audit_records_dropped: int
    # Bytes that the node can still write there. Absent if unknown. A node without disk space refuses new turns with `disk_full`.
    free_bytes: Optional[int]


class StdinWait(TypedDict):
    """A turn's request for input."""

    prompt: str
    # Whether the input is a secret: do not show or store it.
    secret: bool

# Why a turn is stopped.
StopCause = Literal["client", "deadline"]


class StopNode(TypedDict):
    """How the node stops."""

    sessions: StopSessions

StopSessions = Literal["end", "keep"]

# Where output came from.
Stream = Literal["stdout", "stderr", "result", "traceback"]


class _StreamView(TypedDict):
    # Bytes of this stream that the journal has.
    bytes: int
    # The whole text, or head, marker and tail. Bytes that are not UTF-8 are shown as U+FFFD.
    text: str


class StreamView(_StreamView, total=False):
    """One stream of a turn's output within a byte budget: the head, the tail, and the number of bytes between them."""

    # The raw bytes in base64, if they are not UTF-8.
    base64: Optional[str]
    # Bytes between head and tail that are not shown.
    omitted_bytes: int


class _SubmitTurn(TypedDict):
    code: str


class SubmitTurn(_SubmitTurn, total=False):
    """The request to run a turn."""

    # The surroundings of the turn: arguments, directory, variables. At most 32 KiB as JSON. Only workers with the capability `context` take it.
    context: Optional[TurnContext]
    # How long the turn may run after the worker receives it. Default: the session's deadline, else the node's.
    deadline_ms: Optional[int]
    # An id that the client chooses. A turn that is sent twice with the same id runs once.
    id: Optional[TurnId]
    # Maximum output bytes in the reply.
    output_bytes_max: Optional[int]
    # Shows the standard error and the traceback on their own as `stderr`, within this many bytes. Default: 0, not shown.
    stderr_bytes_max: Optional[int]
    # Shows the standard output on its own as `stdout`, within this many bytes. Default: 0, not shown.
    stdout_bytes_max: Optional[int]
    # How long the reply may wait until the turn ends or asks for input. Default: 0.
    wait_ms: int

# The name of a tenant: clients that see and use only what is their own.
TenantName = str


class _TenantUsage(TypedDict):
    # CPU time of the turns.
    cpu_ms: float
    # The limits of the live sessions together. A quota counts them.
    held: Limits
    # Bytes that the turns printed.
    output_bytes: int
    # Number of live sessions.
    sessions: int
    # Number of ended turns.
    turns: int


class TenantUsage(_TenantUsage, total=False):
    """What one tenant uses on one node."""

    # What the processes of its sessions use.
    measured: MeasuredUsage
    # Absent: sessions without a tenant.
    tenant: Optional[TenantName]


class TerminalSize(TypedDict):
    """The size of a session's terminal, in characters. Each is from 1 to 1000."""

    columns: int
    rows: int

# A tool rule: `files.read`, `files.*` or `*`.
ToolRule = str


class _Turn(TypedDict):
    id: TurnId
    number: TurnNo
    output: OutputView
    session: SessionId
    state: TurnState


class Turn(_Turn, total=False):
    """The current state of a turn."""

    displays: list[DisplayRef]
    error: Optional[TurnError]
    # The exit status of the code. If a signal ended the worker: 128 and the signal's number. Absent until the turn ends, and for workers that report none.
    exit_code: Optional[int]
    # How the turn ended. Absent until it ends.
    outcome: Optional[Outcome]
    receipt: Optional[Receipt]
    # What the policy refused in the turn, if that made it fail.
    refusal: Optional[PolicyRefusal]
    # The standard error and the traceback on their own, if the request has `stderr_bytes_max`.
    stderr: Optional[StreamView]
    # The input that the turn waits for, while it waits.
    stdin_wait: Optional[StdinWait]
    # The standard output on its own, if the request has `stdout_bytes_max`.
    stdout: Optional[StreamView]
    usage: Optional[Usage]
    # The value of the last expression, if it can be written as JSON in 16 KiB.
    value: Optional[ResultValue]


class TurnContext(TypedDict, total=False):
    """The surroundings of one turn. Only workers with the capability `context` take one."""

    # The arguments of the program, without its name.
    args: list[str]
    # The directory that the turn works in.
    cwd: Optional[str]
    # Environment variables to set for the turn.
    env: dict[str, str]
    # The name of the code in tracebacks, usually the absolute path of its file.
    file: Optional[str]
    # Whether the code runs as a program: as the interpreter runs a file with these arguments.
    program: bool


class _TurnError(TypedDict):
    message: str
    # The class of the exception, or a short name of the failure.
    name: str


class TurnError(_TurnError, total=False):
    """What went wrong in a turn."""

    # A stable code if Windlass ended the turn. Absent if the code itself raised the error.
    code: Optional[ErrorCode]

# The id of a turn, unique in its session. The client chooses it, or it is the turn's number in decimal. A turn that is sent twice with the same chosen id runs once.
TurnId = str


class TurnInput(TypedDict, total=False):
    """Input for a running turn."""

    # Raw bytes in base64, for input that is not text.
    base64: Optional[str]
    # End of input: no more input follows.
    eof: bool
    # The text is what was typed at a terminal: a worker adds no line end to it. Only the worker `shell` has terminals.
    keys: bool
    text: Optional[str]

# The number of a turn in its session, from 1, in the order accepted. Workers know turns by this number.
TurnNo = int

TurnState = Literal["waiting", "running", "awaiting_input", "interrupting", "ended"]

# Which Unix sockets the code can create. Connected pairs are always allowed.
UnixSockets = Literal["local", "none"]


class Usage(TypedDict):
    """The resources that a turn used."""

    # CPU time of the worker process and, for turns over 2 ms, of its ended children.
    cpu_ms: float
    output_bytes: int
    # Peak memory of the worker process so far in the session.
    peak_rss_bytes: int
    wall_ms: float


class UsageList(TypedDict):
    """What each tenant uses on one node."""

    # Since when turns are counted: the start of the node.
    since_ms: int
    # By name, first what belongs to no tenant.
    tenants: list[TenantUsage]


class _WorkerInfo(TypedDict):
    # The name of the language.
    language: str
    # The name by which a session requests this kind.
    name: str
    source: WorkerSource


class WorkerInfo(_WorkerInfo, total=False):
    """One kind of worker."""

    # The file name extensions of the language.
    extensions: list[str]
    # The program that runs the code.
    interpreter: Optional[str]
    # What is missing on this machine, and how to get it. Absent if sessions of this kind can start.
    missing: Optional[str]
    # How workers of this kind can be started.
    starts: list[StartedBy]


class _WorkerList(TypedDict):
    workers: list[WorkerInfo]


class WorkerList(_WorkerList, total=False):
    """The reply of `GET /v1/workers`."""

    # Why the workers of the user's configuration file are not used.
    error: Optional[str]

# Where a kind of worker comes from.
WorkerSource = Literal["built_in", "configured"]

WorkspaceAccess = Literal["read", "write"]


class WrittenBack(TypedDict):
    """The result of a write-back. Either all requested changes are done, or none."""

    deleted: list[FileDeleted]
    written: list[FileWritten]


class _ZygoteInfo(TypedDict):
    state: ZygoteState


class ZygoteInfo(_ZygoteInfo, total=False):
    """The process that an environment's workers are forked from."""

    # Why there is no zygote.
    error: Optional[str]
    # Modules that could not be imported, with the reason.
    missing: list[str]
    pid: Optional[int]
    # Proportional set size: memory shared with workers counts in proportion.
    pss_kib: Optional[int]

ZygoteState = Literal["none", "starting", "ready", "failed"]
