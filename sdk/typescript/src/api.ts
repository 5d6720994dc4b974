// The JSON of the node's HTTP door, as types.
//
// Written by `cargo xtask api` from docs/openapi.json; not to be changed by hand.

/** Settings of a session whose worker is an agent. */
export interface AgentRequest {
  /** More arguments for the engine's program, before its subcommand. */
  arguments?: string[];
  /** The model, by the engine's name for it. Default: the engine's own. */
  model?: string | null;
  /** How long a permission waits for a client's answer. Then it is refused. Default: ten minutes. */
  permission_deadline_ms?: number | null;
  /** Who answers the agent's requests for permission. Default: `allow`, because the session is confined. */
  permissions?: PermissionPolicy | null;
  /** Resume this conversation instead of beginning a new one. */
  resume?: ResumeToken | null;
  /** How long the engine may make no progress while it neither runs an action nor asks. Then its turn fails. Default: five minutes. */
  stall_ms?: number | null;
}

/** The reply of every request that fails. */
export interface ApiError {
  code: ErrorCode;
  /** What happened, for people. */
  message: string;
  /** What to do about it. */
  remedy: string;
  /** Whether the same request may succeed later. */
  retryable: boolean;
}

/** What happens to a request whose body has a placeholder. */
export type BodyPlaceholder = "refuse" | "pass";

/** The number of a host tool call, which the worker assigns. A fresh worker starts from 1 again, so only turn and call together identify a call. */
export type CallNo = number;

/** A thread or process of the original from before a fork that the fork does not separate from the twin. It can signal the twin, and read and write the twin's memory. */
export interface CanReach {
  /** The thread or process id in the session, and the name of the program. */
  name: string;
  /** `thread` or `process`; `more` if the list was cut. */
  what: string;
}

/** The name that a program gives itself when it creates a session. It is shown to people and decides nothing. */
export type ClientName = string;

/** How a session is confined. */
export interface Confinement {
  controls: ControlReport[];
  isolation: Isolation;
}

/** An address with which a person logs in to the web console of the node. */
export interface ConsoleLogin {
  /** How long the code works. */
  expires_in_s: number;
  /** Has a code that works once. */
  url: string;
}

/** A login of the web console. */
export interface ConsoleSession {
  /** When the login ends unless it is used, in milliseconds since the Unix epoch. */
  expires_at: number;
  /** The page sends it with each request, in the header `X-Windlass-Console`. */
  key: string;
  /** What the login allows: `read`, `run` or `admin`. */
  scope: string;
  /** The tenant to which the login is limited. */
  tenant?: TenantName | null;
}

/** One restriction that a policy can request. */
export type Control = "read" | "write" | "hidden" | "protected" | "network" | "sockets" | "processes" | "ipc" | "privileges" | "syscalls" | "devices" | "environment" | "memory" | "cpu" | "process_count" | "open_files" | "file_size" | "disk" | "wall_time";

/** A control of one session. */
export interface ControlReport {
  control: Control;
  /** The mechanism that enforces the control, or the reason why it is not enforced. */
  mechanism?: string;
  /** What the user can do so that the control is enforced on this machine. */
  remedy?: string | null;
  state: ControlState;
  /** A self-test inside the sandbox tried the forbidden operation and was refused. */
  tested?: boolean;
}

/** The state of a control. */
export type ControlState = "enforced" | "not_enforced" | "not_asked";

/** Which directories of a workspace a fork copies. */
export type CopyScope = "needed" | "all";

/** Whether a node is cordoned, and how many sessions it still has. */
export interface CordonState {
  cordoned: boolean;
  node: NodeName;
  sessions: number;
}

/** The request for an environment. If it is there already, nothing is built. */
export interface CreatePackageEnvironment {
  /** Also packages that have no wheel: their own code builds them, in the sandbox of the build. Default: wheels only. */
  allow_source_builds?: boolean;
  /** The text of a lock file, instead of packages. Every package in it needs a hash. */
  lock?: string | null;
  /** Letters, digits, `-`, `_` and `.`. Default: the node derives a name from the packages and the interpreter, so the same request finds the same environment. */
  name?: string | null;
  /** Packages of the index, each with an optional version: `pandas`, `numpy>=2,<3`, `requests[socks]==2.32.5`. */
  packages?: string[];
  /** The version of Python (`3.12`), or the interpreter as for a session. Default: `python3` on PATH. */
  python?: string | null;
  /** How long the reply may wait for the build. Default: 0. */
  wait_ms?: number;
}

/** The request for a new session. */
export interface CreateSession {
  /** Settings of an agent. Only the workers `agent` and `acp` have them. */
  agent?: AgentRequest | null;
  /** The code may install packages with pip or uv, into an environment that ends with the session. The hosts of the node's package index are added to the policy. Only the worker `python` installs packages. */
  allow_packages?: boolean;
  /** The code works in a copy of `workspace`, in a new directory of the node, and `workspace` stays as it is. The reply names the directories that are not in the copy. */
  copy_workspace?: CopyScope | null;
  /** The deadline of turns that set none themselves. Default: the node's deadline, one day unless the node was started with another. */
  deadline_ms?: number | null;
  /** When acceptance and end of a turn are told. Default: `local`. `replicated` needs a fleet. */
  durability?: Durability;
  /** Environment variables to add. */
  env?: Record<string, string>;
  /** The package environment whose interpreter and packages the code uses, instead of `interpreter`. `POST /v1/environments` makes one. Only the worker `python` takes one. */
  environment?: string | null;
  /** The session's id. Default: the node generates one. */
  id?: SessionId | null;
  /** The idle timeout: the session ends after this many seconds without a client and without a turn. 0: never. Default: the node's idle timeout, one day unless the node was started with another. */
  idle_s?: number | null;
  /** The interpreter, or the directory of a virtual environment. Default for Python: the nearest `.venv` at or above the workspace, else the interpreter on PATH. */
  interpreter?: string | null;
  /** How long an interrupted turn may take to stop. After that, its worker is killed. */
  interrupt_grace_ms?: number | null;
  /** Output bytes that the journal keeps for the session. */
  output_quota_bytes?: number | null;
  /** The owner of the session. A tool host can offer its tools to all sessions of one owner. */
  owner?: Owner | null;
  /** The live session whose child this session is. A child has its parent's policy, workspace and owner, so the request names none of them, and it ends with its parent. */
  parent?: SessionId | null;
  /** On which node of the fleet the session is made. Default: the node that is asked chooses one with room, and itself for a session that names something of its machine. */
  placement?: PlacementRule | null;
  /** What the code may access. Default: the preset `workspace`. */
  policy?: PolicyRequest | null;
  /** The tenant that the session belongs to. Its id becomes `NAME@TENANT`. A client whose token has a tenant need not name it, and can name no other. */
  tenant?: TenantName | null;
  /** Gives the code a terminal of this size. Only the worker `shell` has terminals. */
  terminal?: TerminalSize | null;
  /** The session's first turn. It runs before any turn of another client that knows the id. */
  turn?: SubmitTurn | null;
  /** The kind of worker, as `GET /v1/workers` names it, `jupyter:KERNEL`, `agent:ENGINE` or `acp:COMMAND`. Default: `python`. */
  worker?: string | null;
  /** The directory that the code works in. Default: a new directory for this session. */
  workspace?: string | null;
}

/** The reply of `POST /v1/sessions`. */
export interface Created {
  /** Directories that are not in the copy of the workspace, at most 64. */
  left_out?: LeftOutDirectory[];
  /** Number of further directories that are not in the copy. */
  left_out_more?: number;
  session: Session;
  /** The first turn, if the request has one. */
  turn?: Turn | null;
}

/** The kind of data on the disk. */
export type DiskKind = "journals_live" | "journals_ended" | "workspaces_live" | "workspaces_ended" | "fork_copies" | "temporary" | "leftovers" | "environments" | "packages" | "index" | "logs" | "other";

/** The disk usage of one kind of data. */
export interface DiskShare {
  /** Allocated blocks in bytes, not file lengths. A file with several hard links counts once. */
  bytes: number;
  /** Number of files and directories. */
  entries: number;
  kind: DiskKind;
}

/** The reply of `GET /v1/node/disk`. */
export interface DiskUse {
  /** Total bytes of all kinds. */
  bytes: number;
  /** False if a directory could not be read or the measurement took too long. The usage is then higher. */
  complete: boolean;
  /** All kinds, including those without data. */
  kinds: DiskShare[];
  /** How many seconds ended sessions are kept. */
  retain_age_s: number;
  /** Maximum total bytes of all journals and of the workspaces of ended sessions. */
  retain_bytes: number;
  state_dir: string;
}

/** A display of a turn; its bytes are at `GET displays/{seq}`. */
export interface DisplayRef {
  bytes: number;
  id?: string | null;
  mime: string;
  /** The event that completed the display. */
  seq: Seq;
}

/** What `windlass doctor --json` prints. */
export type DoctorFindings = unknown;

/** Why output bytes are missing. */
export type DropReason = "quota" | "disk_full" | "not_copied";

/** When acceptance and end of a session's turns are told to the client that sent them. */
export type Durability = "local" | "replicated";

/** The connections to one host and port with the same decision, added up. */
export interface EgressDecision {
  allowed: boolean;
  count: number;
  /** The host. `*` if no host is named, because of too many connections at once or too many hosts to list. */
  host: string;
  last_at_ms: number;
  port: number;
  /** Why the connection was refused, or why an allowed connection failed. Empty if there was no problem. */
  reason?: string;
  received_bytes: number;
  /** Bytes from the code to the host. */
  sent_bytes: number;
}

/** All egress decisions of a session, by host. Empty if the policy has no host list. */
export interface EgressLog {
  /** The decisions, latest first. */
  decisions: EgressDecision[];
  /** The session has ended, so the decisions come from its journal. The journal has the time of the first decision of each kind, but no counts: `count`, `sent_bytes` and `received_bytes` are 0. */
  from_journal?: boolean;
  /** When counting began: the start of the session, or a later start of the node. */
  since_ms: number;
}

/** Why a session ended. */
export type EndReason = "closed" | "worker_exited" | "start_failed" | "wall_time" | "disk" | "idle" | "protocol_error" | "keeper_lost" | "node_gone" | "fenced" | "lost";

/** How a session ended. */
export interface Ended {
  /** Details of the reason, for example how long the session was idle. */
  message?: string | null;
  reason: EndReason;
  receipt?: Receipt | null;
}

/** The current state of an environment. */
export interface Environment {
  /** The interpreter as the file names it. */
  interpreter: string;
  pool: PoolInfo;
  preload: string[];
  /** The program that the name resolves to. */
  program?: string | null;
  /** The kind of worker. */
  worker?: string;
  zygote: ZygoteInfo;
}

/** The reply of `GET /v1/environments`. */
export interface EnvironmentList {
  environments: Environment[];
  /** Why the user's configuration file is not used. */
  error?: string | null;
  /** The package environments, which the node builds. */
  packages?: PackageEnvironment[];
}

/** The code of a failure. It is the same at every door and in the journal. */
export type ErrorCode = "bad_request" | "message_too_large" | "overloaded" | "quota_exceeded" | "session_not_found" | "session_exists" | "not_here" | "cordoned" | "node_unreachable" | "fleet_unavailable" | "fenced" | "node_removed" | "session_lost" | "session_ended" | "session_busy" | "fork_refused" | "fork_limit" | "workspace_too_large" | "turn_not_found" | "turn_not_running" | "state_lost" | "limit_memory" | "limit_processes" | "limit_disk" | "limit_wall_time" | "not_enforceable" | "unauthorized" | "forbidden" | "foreign_site" | "worker_failed" | "protocol_error" | "worker_died" | "keeper_lost" | "deadline_passed" | "unstoppable" | "session_closed" | "disk_full" | "file_not_found" | "file_conflict" | "path_refused" | "tool_not_found" | "tool_failed" | "tool_deadline_passed" | "tool_host_gone" | "tool_cancelled" | "would_deadlock" | "version_mismatch" | "shutting_down" | "already_running" | "not_found" | "method_not_allowed" | "internal";

/** An event with its body: as text if it is UTF-8, else in base64. Large bodies are left out; read them with `GET output` or `GET displays`. */
export type EventItem = EventItemTurnAccepted | EventItemInterruptAsked | EventItemOutput | EventItemDisplay | EventItemStdinWait | EventItemToolCall | EventItemToolCancel | EventItemToolEnded | EventItemInputTaken | EventItemTurnEnded | EventItemWorkerReady | EventItemConfined | EventItemLimitReached | EventItemWorkerEnded | EventItemEgress | EventItemProtocolBroken | EventItemOutputDropped | EventItemMessagesDropped | EventItemSessionEnded;

export interface EventItemConfined {
  /** When the node took the event: milliseconds since the Unix epoch. */
  at_ms: number;
  base64?: string | null;
  /** The body's length in bytes. */
  bytes?: number;
  controls: ControlReport[];
  isolation: Isolation;
  kind: "confined";
  /** The keeper's number for the event. Absent for events of the node. */
  link?: LinkSeq | null;
  seq: Seq;
  text?: string | null;
  /** The turn of the event. Absent for events of the session itself. */
  turn?: TurnNo | null;
}

export interface EventItemDisplay {
  /** When the node took the event: milliseconds since the Unix epoch. */
  at_ms: number;
  base64?: string | null;
  /** The body's length in bytes. */
  bytes?: number;
  id?: string | null;
  kind: "display";
  /** The keeper's number for the event. Absent for events of the node. */
  link?: LinkSeq | null;
  mime: string;
  more?: boolean;
  seq: Seq;
  text?: string | null;
  /** The turn of the event. Absent for events of the session itself. */
  turn?: TurnNo | null;
  /** Whether it replaces the display with the same `id`. */
  update?: boolean;
}

export interface EventItemEgress {
  allowed: boolean;
  /** When the node took the event: milliseconds since the Unix epoch. */
  at_ms: number;
  base64?: string | null;
  /** The body's length in bytes. */
  bytes?: number;
  host: string;
  kind: "egress";
  /** The keeper's number for the event. Absent for events of the node. */
  link?: LinkSeq | null;
  port: number;
  reason?: string;
  seq: Seq;
  text?: string | null;
  /** The turn of the event. Absent for events of the session itself. */
  turn?: TurnNo | null;
}

export interface EventItemInputTaken {
  /** When the node took the event: milliseconds since the Unix epoch. */
  at_ms: number;
  base64?: string | null;
  bytes: number;
  kind: "input_taken";
  /** The keeper's number for the event. Absent for events of the node. */
  link?: LinkSeq | null;
  seq: Seq;
  text?: string | null;
  /** The turn of the event. Absent for events of the session itself. */
  turn?: TurnNo | null;
}

export interface EventItemInterruptAsked {
  /** When the node took the event: milliseconds since the Unix epoch. */
  at_ms: number;
  base64?: string | null;
  /** The body's length in bytes. */
  bytes?: number;
  cause: StopCause;
  kind: "interrupt_asked";
  /** The keeper's number for the event. Absent for events of the node. */
  link?: LinkSeq | null;
  seq: Seq;
  text?: string | null;
  /** The turn of the event. Absent for events of the session itself. */
  turn?: TurnNo | null;
}

export interface EventItemLimitReached {
  /** When the node took the event: milliseconds since the Unix epoch. */
  at_ms: number;
  base64?: string | null;
  /** The body's length in bytes. */
  bytes?: number;
  /** The session ends because of it. Absent in events of earlier releases. */
  ends_session?: boolean;
  kind: "limit_reached";
  limit: Limit;
  /** The keeper's number for the event. Absent for events of the node. */
  link?: LinkSeq | null;
  message: string;
  seq: Seq;
  text?: string | null;
  /** The turn of the event. Absent for events of the session itself. */
  turn?: TurnNo | null;
}

export interface EventItemMessagesDropped {
  /** When the node took the event: milliseconds since the Unix epoch. */
  at_ms: number;
  base64?: string | null;
  /** The body's length in bytes. */
  bytes?: number;
  count: number;
  kind: "messages_dropped";
  /** The keeper's number for the event. Absent for events of the node. */
  link?: LinkSeq | null;
  reason: string;
  seq: Seq;
  text?: string | null;
  /** The turn of the event. Absent for events of the session itself. */
  turn?: TurnNo | null;
}

export interface EventItemOutput {
  /** When the node took the event: milliseconds since the Unix epoch. */
  at_ms: number;
  /** Whether a thread or process wrote it that outlived its turn. */
  background?: boolean;
  base64?: string | null;
  /** The body's length in bytes. */
  bytes?: number;
  kind: "output";
  /** The keeper's number for the event. Absent for events of the node. */
  link?: LinkSeq | null;
  seq: Seq;
  stream: Stream;
  text?: string | null;
  /** The turn of the event. Absent for events of the session itself. */
  turn?: TurnNo | null;
}

export interface EventItemOutputDropped {
  /** When the node took the event: milliseconds since the Unix epoch. */
  at_ms: number;
  base64?: string | null;
  bytes: number;
  kind: "output_dropped";
  /** The keeper's number for the event. Absent for events of the node. */
  link?: LinkSeq | null;
  reason: DropReason;
  seq: Seq;
  text?: string | null;
  /** The turn of the event. Absent for events of the session itself. */
  turn?: TurnNo | null;
}

export interface EventItemProtocolBroken {
  /** When the node took the event: milliseconds since the Unix epoch. */
  at_ms: number;
  base64?: string | null;
  /** The body's length in bytes. */
  bytes?: number;
  kind: "protocol_broken";
  /** The keeper's number for the event. Absent for events of the node. */
  link?: LinkSeq | null;
  message: string;
  seq: Seq;
  text?: string | null;
  /** The turn of the event. Absent for events of the session itself. */
  turn?: TurnNo | null;
}

export interface EventItemSessionEnded {
  /** When the node took the event: milliseconds since the Unix epoch. */
  at_ms: number;
  base64?: string | null;
  /** The body's length in bytes. */
  bytes?: number;
  kind: "session_ended";
  /** The keeper's number for the event. Absent for events of the node. */
  link?: LinkSeq | null;
  /** Details of the reason, for example how long the session was idle. */
  message?: string | null;
  reason: EndReason;
  receipt?: Receipt | null;
  seq: Seq;
  text?: string | null;
  /** The turn of the event. Absent for events of the session itself. */
  turn?: TurnNo | null;
}

export interface EventItemStdinWait {
  /** When the node took the event: milliseconds since the Unix epoch. */
  at_ms: number;
  base64?: string | null;
  /** The body's length in bytes. */
  bytes?: number;
  kind: "stdin_wait";
  /** The keeper's number for the event. Absent for events of the node. */
  link?: LinkSeq | null;
  prompt: string;
  secret: boolean;
  seq: Seq;
  text?: string | null;
  /** The turn of the event. Absent for events of the session itself. */
  turn?: TurnNo | null;
}

export interface EventItemToolCall {
  /** When the node took the event: milliseconds since the Unix epoch. */
  at_ms: number;
  base64?: string | null;
  /** Bytes of arguments in this event. */
  bytes?: number;
  call: CallNo;
  /** How long the code waits for the result. */
  deadline_ms?: number | null;
  kind: "tool_call";
  /** The keeper's number for the event. Absent for events of the node. */
  link?: LinkSeq | null;
  more?: boolean;
  name: string;
  /** Bytes of arguments in the earlier events of this call. */
  offset?: number;
  seq: Seq;
  text?: string | null;
  /** The turn of the event. Absent for events of the session itself. */
  turn?: TurnNo | null;
}

export interface EventItemToolCancel {
  /** When the node took the event: milliseconds since the Unix epoch. */
  at_ms: number;
  base64?: string | null;
  /** The body's length in bytes. */
  bytes?: number;
  call: CallNo;
  kind: "tool_cancel";
  /** The keeper's number for the event. Absent for events of the node. */
  link?: LinkSeq | null;
  seq: Seq;
  text?: string | null;
  /** The turn of the event. Absent for events of the session itself. */
  turn?: TurnNo | null;
}

export interface EventItemToolEnded {
  /** When the node took the event: milliseconds since the Unix epoch. */
  at_ms: number;
  base64?: string | null;
  /** Bytes of the result. */
  bytes: number;
  call: CallNo;
  /** Why the call failed. Absent if the tool itself failed. */
  code?: ErrorCode | null;
  kind: "tool_ended";
  /** The keeper's number for the event. Absent for events of the node. */
  link?: LinkSeq | null;
  ok: boolean;
  seq: Seq;
  text?: string | null;
  /** The turn of the event. Absent for events of the session itself. */
  turn?: TurnNo | null;
  wall_ms: number;
}

export interface EventItemTurnAccepted {
  /** When the node took the event: milliseconds since the Unix epoch. */
  at_ms: number;
  base64?: string | null;
  /** The body's length in bytes. */
  bytes?: number;
  /** The surroundings of the turn, in the event with the first part of its code. */
  context?: TurnContext | null;
  deadline_ms?: number | null;
  id: TurnId;
  kind: "turn_accepted";
  /** The keeper's number for the event. Absent for events of the node. */
  link?: LinkSeq | null;
  /** Whether more of the code follows in the next event. */
  more?: boolean;
  seq: Seq;
  text?: string | null;
  /** The turn of the event. Absent for events of the session itself. */
  turn?: TurnNo | null;
}

export interface EventItemTurnEnded {
  /** When the node took the event: milliseconds since the Unix epoch. */
  at_ms: number;
  base64?: string | null;
  /** The body's length in bytes. */
  bytes?: number;
  error?: TurnError | null;
  /** The exit status of the code. For a worker that a signal ended: 128 and the signal's number. */
  exit_code?: number | null;
  kind: "turn_ended";
  /** The keeper's number for the event. Absent for events of the node. */
  link?: LinkSeq | null;
  outcome: Outcome;
  receipt?: Receipt | null;
  /** What the policy refused in the turn, if that made it fail. */
  refusal?: PolicyRefusal | null;
  seq: Seq;
  text?: string | null;
  /** The turn of the event. Absent for events of the session itself. */
  turn?: TurnNo | null;
  usage?: Usage;
  /** The value of the last expression, if it can be written as JSON and is small. */
  value?: ResultValue | null;
}

export interface EventItemWorkerEnded {
  /** When the node took the event: milliseconds since the Unix epoch. */
  at_ms: number;
  base64?: string | null;
  /** The body's length in bytes. */
  bytes?: number;
  cause: string;
  /** The exit status of the process. For a process that a signal ended: 128 and the signal's number. */
  exit_code?: number | null;
  kind: "worker_ended";
  /** The limit that ended the worker, if a limit did. */
  limit?: Limit | null;
  /** The keeper's number for the event. Absent for events of the node. */
  link?: LinkSeq | null;
  /** Whether the node requested the restart. The event's turn is the turn that ran on the worker, if any. */
  replaced?: boolean;
  seq: Seq;
  /** The end of what the turn on the worker wrote to its standard error, if the worker ended in a turn. */
  stderr?: string;
  text?: string | null;
  /** The turn of the event. Absent for events of the session itself. */
  turn?: TurnNo | null;
}

export interface EventItemWorkerReady {
  /** When the node took the event: milliseconds since the Unix epoch. */
  at_ms: number;
  base64?: string | null;
  /** The body's length in bytes. */
  bytes?: number;
  /** The capabilities that the worker declares. Absent in events of earlier releases. */
  capabilities?: string[] | null;
  /** What the start cost. Only if the node's configuration asks for it. */
  figures?: StartFigures | null;
  kind: "worker_ready";
  /** The keeper's number for the event. Absent for events of the node. */
  link?: LinkSeq | null;
  pid: number;
  restarts: number;
  seq: Seq;
  start?: StartedBy;
  text?: string | null;
  /** The turn of the event. Absent for events of the session itself. */
  turn?: TurnNo | null;
  worker: string;
}

/** Some events of a session, in order. */
export interface Events {
  /** The `after` of the next request. */
  after: Seq;
  /** Whether these are the last events of the session. */
  ended: boolean;
  events: EventItem[];
}

/** A file that was deleted. */
export interface FileDeleted {
  path: string;
}

export interface FileEntry {
  bytes: number;
  /** Only for regular files. It changes with every change of the file. */
  etag?: string | null;
  kind: FileKind;
  modified_ms: number;
  /** The path relative to the workspace, also if another directory was requested. */
  path: string;
}

/** A change of a file or directory below a watched directory. */
export interface FileEvent {
  kind: FileEventKind;
  path: string;
}

export type FileEventKind = "made" | "changed" | "removed" | "overflow";

export type FileKind = "file" | "directory" | "link" | "other";

/** One page of the files in a workspace, in order. A directory comes before its contents. Names are compared byte by byte. */
export interface FileList {
  entries: FileEntry[];
  /** Whether more entries follow. Request them with the last path of this page as `after`. */
  more: boolean;
}

/** A file that was written. */
export interface FileWritten {
  bytes: number;
  etag: string;
  path: string;
}

/** Number of nodes by status. */
export interface FleetNodeCounts {
  alive: number;
  lost: number;
  /** Nodes that are alive and did not answer in time. */
  silent: number;
  unreachable: number;
}

/** The nodes of a fleet, by name. */
export interface FleetNodeList {
  nodes: FleetNodeView[];
}

/** What the fleet knows of a node's lease. */
export type FleetNodeStatus = "alive" | "unreachable" | "lost";

/** A node of the fleet, as the node that answers knows it. */
export interface FleetNodeView {
  /** Where other nodes reach it. */
  address?: string | null;
  /** How long its answer took. */
  answer_ms?: number | null;
  /** How far its clock is ahead of the clock of the node that answers. Exact to `answer_ms`. */
  clock_ahead_ms?: number | null;
  /** Why there is no load. */
  error?: string | null;
  generation?: Generation | null;
  /** Whether this is the node that answers. */
  is_self?: boolean;
  /** Its load. Absent if it did not answer in time. */
  load?: NodeLoad | null;
  node: NodeName;
  status: FleetNodeStatus;
}

/** How a node stands in its fleet. */
export interface FleetStatus {
  /** When the node's certificate expires, in milliseconds since the Unix epoch. */
  certificate_expires_at_ms: number;
  cordoned: boolean;
  generation?: Generation | null;
  /** Time since the last acknowledged renewal of the lease. */
  lease_age_ms?: number | null;
  /** From this age on the node takes no new sessions. */
  lease_close_ms: number;
  /** From this age on the node ends its sessions. */
  lease_fence_ms: number;
  node: NodeName;
  nodes: FleetNodeCounts;
  release: string;
  /** Live sessions of the nodes that answered. */
  sessions: number;
  standing: NodeStanding;
  store: FleetStoreStatus;
}

/** Whether the store of the fleet answers. */
export interface FleetStoreStatus {
  answer_ms?: number | null;
  /** Why the store cannot be used. */
  error?: string | null;
  reachable: boolean;
}

/** The request for a twin of a session. */
export interface ForkSession {
  /** Which directories of the workspace are copied. Default: all except those that can be rebuilt or reinstalled. */
  copy?: CopyScope;
  /** The twin's id. Default: the node generates one. */
  id?: SessionId | null;
  /** The owner of the twin. Default: the original's owner. */
  owner?: Owner | null;
}

/** The reply of `POST /v1/sessions/{session}/fork`. */
export interface ForkedSession {
  /** Threads and processes from before the fork that can still reach the twin. Empty for most forks, and for sessions without confinement. */
  can_reach?: CanReach[];
  /** Directories of the workspace that were not copied, at most 64. Fork with `copy: all` to copy them. */
  left_out?: LeftOutDirectory[];
  /** Number of further directories that were not copied. */
  left_out_more?: number;
  /** What the twin does not have, or shares with the original. */
  not_carried: NotCarried[];
  /** The twin. Its workspace is a copy at another path. */
  session: Session;
}

/** How often a node has begun anew in its fleet, from 1. All sessions of an earlier generation have ended. */
export type Generation = number;

export interface Health {
  /** `behind`: records of the audit log could not be written. Only for clients without a tenant. */
  audit?: string | null;
  status: string;
}

/** How the keeper holds the processes of its session together. */
export type Hold = "pid_namespace" | "subreaper";

/** A list of host rules. A host is allowed if any rule matches. */
export type HostRules = string[];

/** Where the journal's index is. The index is derived from the journal, so its loss loses no data. */
export type IndexStorage = "file" | "memory";

/** How strongly a session is confined. */
export type Isolation = "full" | "landlock" | "none";

/** A directory of the workspace that the fork did not copy. */
export interface LeftOutDirectory {
  /** Whether the copy has a symlink to the original's directory, which the twin can read but not write. */
  linked: boolean;
  /** The path relative to the workspace. */
  path: string;
  why: LeftOutReason;
}

/** Why a fork does not copy a directory. */
export type LeftOutReason = "environment" | "packages" | "cache";

/** A limit that a session reached. */
export type Limit = "memory" | "processes" | "disk" | "wall_time";

/** The resource limits of a session. Absent: Windlass sets no limit. */
export interface Limits {
  /** CPU time: 100 is one core. */
  cpu_percent?: number | null;
  /** By how much the workspace may grow. */
  disk_bytes?: number | null;
  /** The size of the largest file that the session can write. */
  file_bytes?: number | null;
  /** Memory of all processes together, including the private `/tmp`. */
  memory_bytes?: number | null;
  /** Number of open files of one process. */
  open_files?: number | null;
  /** Number of processes and threads at the same time. */
  processes?: number | null;
  /** The size of the private `/tmp`. `/dev/shm` has the same size in addition. */
  tmp_bytes?: number | null;
  /** How long the session may live. */
  wall_s?: number | null;
}

/** The sequence number of an event among the events of one keeper, from 1. The node acknowledges events by it. */
export type LinkSeq = number;

/** What the processes of sessions use, as the kernel counts it in cgroups. A figure is absent if no cgroup counts it. Cgroups of version 1 count CPU time only where `cpuacct` and `cpu` are one hierarchy. */
export interface MeasuredUsage {
  /** CPU time of live sessions since they began, and of sessions that have ended since the node started. */
  cpu_ms?: number | null;
  /** Memory of their processes now, with the files that the kernel caches for them. */
  memory_bytes?: number | null;
  /** Number of live sessions that are measured. */
  sessions: number;
}

/** The memory of a node. The limit of the node's cgroup counts, if it is tighter than the machine. */
export interface MemoryCapacity {
  available_bytes: number;
  /** What must stay available: below it, the node takes no new sessions. */
  reserve_bytes: number;
  total_bytes: number;
}

/** The network access of a session. */
export type Network = "none" | "open" | NetworkHosts;

/** Only these hosts, through the node's egress proxy. */
export interface NetworkHosts {
  /** Only these hosts, through the node's egress proxy. */
  hosts: HostRules;
}

/** The load of a node, as the node itself measures it. */
export interface NodeLoad {
  /** The node's clock when it answered, in milliseconds since the Unix epoch. */
  at_ms: number;
  /** Whether the node takes no new sessions because a user wants so. */
  cordoned: boolean;
  labels?: Record<string, string>;
  memory: MemoryCapacity;
  node: NodeName;
  processors: ProcessorCapacity;
  /** Pooled workers that are ready. */
  ready?: ReadyWorkers[];
  /** The version of Windlass that the node runs. */
  release: string;
  sessions: SessionCapacity;
  standing: NodeStanding;
  version: number;
}

/** The name of a node in its fleet. It is a part of subjects and of certificates' names, so few characters are allowed. */
export type NodeName = string;

/** What a node may do in its fleet. */
export type NodeStanding = "joining" | "serving" | "closed" | "fenced";

/** The current state of the node. */
export interface NodeStatus {
  api: string;
  epoch: number;
  /** The address of the TCP door. Absent if the door is closed. */
  listen?: string | null;
  /** Whether the TCP door is encrypted: clients use `https`. */
  listen_tls?: boolean;
  pid: number;
  runtime_dir: string;
  sessions: number;
  /** The unix socket of the HTTP door. Absent if the node is of an earlier release. */
  socket?: string | null;
  started_at_ms: number;
  state_dir: string;
  /** Absent if the node is of an earlier release. */
  storage?: StateStorage | null;
  /** The tenant of the client's token. Absent: the client has no tenant, or the node is of an earlier release. */
  tenant?: TenantName | null;
  version: string;
}

/** An item that a fork leaves with the original. */
export interface NotCarried {
  /** The name of the item, if it has one. */
  name: string;
  /** `thread`, `process`, `socket`, `pipe`, `gpu`, `descriptor`; `file`, which the copy of the workspace does not have; or `shared_memory`, which original and twin share after the fork. */
  what: string;
}

/** With what a page of the web console logs in: one of the two. */
export interface OpenConsole {
  /** The code of an address that `windlass console` prints. */
  code?: string | null;
  /** A token of the node. */
  token?: string | null;
}

/** How a turn ended. */
export type Outcome = "ok" | "error" | "interrupted" | "timed_out" | "lost";

/** A turn's output within a byte budget: the head, the tail, and the number of bytes between them. */
export interface OutputView {
  /** The raw bytes in base64, if they are not UTF-8. */
  base64?: string | null;
  /** Total bytes of output. */
  bytes: number;
  /** The offset of the turn's output in the session's output, for `GET output?from=`. */
  from: number;
  /** Bytes between head and tail that are not shown. */
  omitted_bytes?: number;
  /** The whole text, or head, marker and tail. Bytes that are not UTF-8 are shown as U+FFFD. */
  text: string;
}

/** The owner of sessions: a name that a client gives to its sessions, so that it can offer tools to all of them. An owner of a tenant is `NAME@TENANT`. */
export type Owner = string;

/** A package environment. */
export interface PackageEnvironment {
  /** The session that builds it, or that built it. Its output is the output of the build. */
  build?: SessionId | null;
  created_at_ms: number;
  /** The directory of the virtual environment. */
  directory: string;
  /** Why the build failed. */
  error?: string | null;
  /** The lock file: all packages with version and hashes. Only in the reply for one environment. */
  lock?: string | null;
  name: string;
  /** The packages of the request. */
  packages?: string[];
  /** The interpreter that it was made with. */
  python: string;
  state: PackageEnvironmentState;
  /** When a session last used it. */
  used_at_ms: number;
}

export type PackageEnvironmentState = "building" | "ready" | "failed";

/** Who answers an agent's requests for permission. */
export type PermissionPolicy = "allow" | "ask" | "refuse";

/** On which node a new session is wanted. Without it, the node that is asked chooses. */
export interface PlacementRule {
  /** A node that has all these labels. */
  labels?: Record<string, string>;
  /** The node of this name. */
  node?: NodeName | null;
}

/** A complete policy, without defaults to fill in. */
export interface Policy {
  /** Variables of the node's environment that the code gets, in addition to the default ones. */
  environment: string[];
  /** Hidden paths. They cannot be read, even below a readable path. */
  hidden: string[];
  /** Absent: the strongest level that the machine supports. */
  isolation?: Isolation | null;
  limits: Limits;
  network: Network;
  preset: Preset;
  /** Names directly below a writable root that can be read, but not written, replaced or created. */
  protected: string[];
  /** Readable paths, in addition to the workspace. `/` is the whole system. */
  readable: string[];
  /** Controls without which the session does not start. */
  required: Control[];
  /** Where the egress proxy may send secrets of the node. */
  secrets?: SecretRule[];
  /** Tools of the node's MCP servers that the code may call. */
  tools?: ToolRule[];
  unix_sockets?: UnixSockets;
  workspace: WorkspaceAccess;
  /** Writable paths, in addition to the workspace and the private directories. */
  writable: string[];
}

/** Why the policy of a session stopped what a turn tried. */
export interface PolicyRefusal {
  /** The control that refused it. */
  control: Control;
  /** The field of a policy request that allows it, for example `policy.network.hosts`. Absent if none does. */
  field?: string | null;
  /** What happened and what allows it, for people. */
  message: string;
  /** The command line option that allows it, for example `--allow-host example.org`. Absent if no option does. */
  option?: string | null;
  /** What was tried, for example `connect to example.org`. Names in it come from the session's code. */
  tried: string;
}

/** The policy that a client requests: a preset, and the differences from it. */
export interface PolicyRequest {
  /** Variables of the node's environment that the code gets, in addition to the default ones. */
  environment?: string[];
  /** Hidden paths, in addition to the preset's. */
  hidden?: string[];
  /** Default: the strongest level that the machine supports, but never `none`. */
  isolation?: Isolation | null;
  limits?: Limits;
  /** The network access, instead of the preset's. */
  network?: Network | null;
  /** Default: `workspace`. */
  preset?: Preset | null;
  /** Readable paths, instead of the preset's. Absolute, or `~/...`. */
  readable?: string[] | null;
  /** Controls without which the session does not start, instead of the preset's. */
  required?: Control[] | null;
  /** Where the egress proxy may send secrets of the node. The hosts of these rules are allowed too. */
  secrets?: SecretRule[];
  /** Entries to remove from the preset's hidden and protected lists. */
  shown?: string[];
  /** Tools of the node's MCP servers that the code may call: `files.read`, `files.*`, `*`. Default: none. Tools that a client offers to its own sessions need no rule. */
  tools?: ToolRule[];
  /** Default: `local`. */
  unix_sockets?: UnixSockets | null;
  /** Writable paths, in addition to the preset's. */
  writable?: string[];
}

/** The pool of an environment. */
export interface PoolInfo {
  ready: number;
  size: number;
}

/** A predefined policy. */
export type Preset = "read-only" | "workspace" | "open";

/** The preparation of an interpreter: its start, and the packages loaded ahead. */
export interface Prewarm {
  how: PrewarmSource;
  /** How long the preparation took, whenever it was done. Absent if the worker does not say. */
  ms?: number | null;
}

export type PrewarmSource = "executed" | "cached";

/** The processors of a node. */
export interface ProcessorCapacity {
  count: number;
  /** The machine's load average over one minute, in hundredths. */
  load_hundredths: number;
}

/** What to remove. */
export interface PruneRequest {
  /** Only report what would be removed. */
  dry_run?: boolean;
  /** Remove only sessions that ended more than this many seconds ago, and package environments without a name that were last used before that. Default: all ended sessions, and all such environments that no live session uses. Leftovers, and sessions that the node's retention would remove, are always removed. */
  older_than_s?: number | null;
}

/** The reply of `POST /v1/node/prune`. */
export interface Pruned {
  /** Bytes that were freed, or would be. */
  bytes: number;
  /** False if not everything could be measured. A dry run may then report too little. */
  complete: boolean;
  /** True if nothing was removed, because the request was a dry run. */
  dry_run: boolean;
  /** Items that could not be removed, with the reason. */
  failed: string[];
  /** Number of further removed items. `bytes` includes them. */
  more: number;
  /** The removed items, at most 1,000, in the order of removal. */
  removed: PrunedItem[];
}

/** An item that was removed, or would be. */
export interface PrunedItem {
  bytes: number;
  kind: DiskKind;
  /** The session's id, or a path below the state directory. */
  name: string;
}

/** The pooled workers of one environment that are ready. */
export interface ReadyWorkers {
  /** The interpreter, as the node's configuration names it. */
  interpreter: string;
  ready: number;
  /** The kind of worker. */
  worker: string;
}

/** The report of a loss: what was kept and what was lost. */
export interface Receipt {
  kept: string[];
  lost: string[];
}

/** The value of a turn's last expression, as JSON. The worker that sends it is not trusted: a value over a limit counts as absent. */
export type ResultValue = unknown;

/** Names one conversation of one engine. At most one turn of a conversation runs at any time. */
export type ResumeToken = string;

/** A line that contains the text. */
export interface SearchMatch {
  /** The line around the match, cut to 512 bytes. */
  line: string;
  /** The offset of the match in the session's output. */
  offset: number;
}

export interface SearchResult {
  matches: SearchMatch[];
  /** Whether more matches follow the last one. */
  more: boolean;
}

/** A secret, without its value. */
export interface SecretInfo {
  name: string;
  /** When the value was set. */
  set_at_ms: number;
}

/** The secrets of the node, without their values. */
export interface SecretList {
  secrets: SecretInfo[];
}

/** Where a secret may go, and how. A request gets the value if its URL starts with `to` and `methods` names its method. In such a request the proxy replaces the placeholder in the header or the query parameter; if the request has no such header or parameter, the proxy adds it. */
export interface SecretRule {
  /** The user name of basic authentication, instead of a template: the value is the password. */
  basic_user?: string | null;
  /** Whether a placeholder in the body of a request to `to` is refused. `pass` is for model APIs: an agent that prints its environment sends the placeholder with every later prompt. */
  body?: BodyPlaceholder;
  /** The environment variable that holds the placeholder. Default: the secret's name. */
  env?: string | null;
  /** The header that carries the value. Default: `authorization`, unless `query` is set. */
  header?: string | null;
  /** The methods of the requests, for example `["GET"]`. Default: all. */
  methods?: string[];
  /** The secret, as in `windlass secret set NAME`. */
  name: string;
  /** The query parameter that carries the value, instead of a header. */
  query?: string | null;
  /** The header or the parameter that the proxy adds to a request without one: `{secret}` stands for the value. Default: `Bearer {secret}` in `authorization`, else `{secret}`. */
  template?: string | null;
  /** The start of the URLs: `https://api.example.com/v1/`. With `http://` the value is sent unencrypted. */
  to: string;
}

/** The sequence number of an event in its session, from 1. Clients resume from it. */
export type Seq = number;

/** The current state of a session. */
export interface Session {
  /** The capabilities that the worker declares: `stdin`, `interrupt`, `display`, `tools`, `fork`. Absent until the worker is ready. */
  capabilities?: string[] | null;
  /** The program that created the session, by the name that it gives itself in the header `Windlass-Client`. */
  client?: ClientName | null;
  /** How the policy is enforced. Absent until a worker was started under it. */
  confinement?: Confinement | null;
  /** The directory that the workspace is a copy of. */
  copied_from?: string | null;
  created_at_ms: number;
  /** The default deadline of turns that the session was created with. Absent: the node's default. */
  deadline_ms?: number | null;
  ended?: Ended | null;
  /** The package environment that the session uses. */
  environment?: string | null;
  /** The session that this session was forked from. */
  forked_from?: SessionId | null;
  hold?: Hold | null;
  id: SessionId;
  /** The idle timeout that the session was created with. 0: none. Absent: the node's default. */
  idle_s?: number | null;
  /** The keeper's process id. */
  keeper_pid?: number | null;
  /** The kind of worker. */
  kind?: string;
  /** Number of worker messages that were dropped: of an unknown kind, or for another turn. */
  messages_dropped: number;
  /** The node that has the session. Absent without a fleet. */
  node?: NodeName | null;
  /** Output bytes produced so far. */
  output_bytes: number;
  /** Output bytes that are no longer kept. */
  output_dropped_bytes: number;
  /** The owner of the session. */
  owner?: Owner | null;
  /** The session whose child this session is. */
  parent?: SessionId | null;
  /** What the session's code may access. */
  policy?: Policy | null;
  /** Number of workers started after the first. */
  restarts: number;
  /** The conversation of the session's agent. Absent until the agent has begun one. */
  resume?: ResumeToken | null;
  /** The sequence number of the last event. */
  seq: Seq;
  /** What the start of the worker cost. Only if `start_figures` is set in the node's configuration file. */
  start_figures?: StartFigures | null;
  /** How the worker was started. Absent until the worker is ready. */
  started_by?: StartedBy | null;
  state: SessionState;
  /** The tenant that the session belongs to. It is also a part of the id. */
  tenant?: TenantName | null;
  /** The size of the terminal that the code has. Absent for a session without a terminal. */
  terminal?: TerminalSize | null;
  /** The running turn. */
  turn?: TurnId | null;
  /** Number of turns accepted so far. */
  turns: number;
  /** Number of turns that wait behind the running one. */
  waiting: number;
  /** The worker's name for itself. Empty until the worker is ready. */
  worker: string;
  /** The worker's process id, in the keeper's pid namespace. */
  worker_pid?: number | null;
  workspace: string;
}

/** How many sessions a node has, and how many it takes. */
export interface SessionCapacity {
  live: number;
  max: number;
}

/** The id of a session, unique in its node. The client chooses it, or the node generates it. A directory and a socket have this name, so few characters are allowed. The id of a tenant's session is `NAME@TENANT`: the tenant is a part of the id, so it holds wherever the id is recorded. */
export type SessionId = string;

export interface SessionList {
  /** Where the next page begins. Absent on the last page. A page can have fewer sessions than the request allows, also none, and still not be the last one. */
  cursor?: string | null;
  sessions: Session[];
}

/** Some sessions as short rows, in the order of the list of sessions. */
export interface SessionOverview {
  /** Where the next page begins. Absent on the last page. A page can have fewer sessions than the request allows, also none, and still not be the last one. */
  cursor?: string | null;
  sessions: SessionRow[];
}

/** One session in the overview. Figures of use are absent for an ended session, and if no cgroup counts them. */
export interface SessionRow {
  /** The program that created the session, by the name that it gives itself. */
  client?: ClientName | null;
  /** CPU time of all processes that the session ever had, over its whole life. */
  cpu_ms?: number | null;
  /** Absent if only the fleet's directory knows the session. */
  created_at_ms?: number;
  /** The package environment that the session uses. */
  environment?: string | null;
  /** The session that this session was forked from. */
  forked_from?: SessionId | null;
  id: SessionId;
  /** The idle timeout that the session was created with. 0: none. Absent: the node's default. */
  idle_s?: number | null;
  /** The kind of worker. Absent if only the fleet's directory knows the session. */
  kind?: string;
  /** When `memory_bytes` and `cpu_ms` were read, by the clock of the session's node, which reads them at most once a second. Processors in use: the difference of two `cpu_ms` divided by that of their `measured_at_ms`. */
  measured_at_ms?: number | null;
  /** Memory of the session's processes, with the files that the kernel caches for them. */
  memory_bytes?: number | null;
  /** The node that has the session. Absent without a fleet. */
  node?: NodeName | null;
  /** Output bytes produced so far. */
  output_bytes: number;
  /** The owner of the session. */
  owner?: Owner | null;
  /** The session whose child this session is. */
  parent?: SessionId | null;
  state: SessionState;
  /** The tenant that the session belongs to. It is also a part of the id. */
  tenant?: TenantName | null;
  /** The number of the running turn. */
  turn?: TurnNo | null;
  /** Number of turns accepted so far. */
  turns: number;
  /** Number of turns that wait behind the running one. Absent: 0. */
  waiting?: number;
  /** Whether the running turn waits for input. Absent: it does not. */
  waits_for_input?: boolean;
  /** The directory that the code works in. Absent if only the fleet's directory knows the session. */
  workspace?: string;
}

/** The secret rules of a live session. */
export interface SessionSecretRules {
  /** What the session's code sends instead of each secret, by name. */
  placeholders: Record<string, string>;
  rules: SecretRule[];
}

export type SessionState = "starting" | "idle" | "busy" | "awaiting_input" | "interrupting" | "restarting" | "ended" | "unreachable" | "lost";

export interface SessionTool {
  name: string;
  /** How code calls the tool. */
  signature: string;
  summary: string;
}

/** The tools that a session's code may call. */
export interface SessionTools {
  /** Whether there are more tools. */
  more: boolean;
  tools: SessionTool[];
}

/** The request to cordon a node, or to let it take sessions again. */
export interface SetCordon {
  on: boolean;
}

/** New secret rules for a live session, instead of the ones that it has. */
export interface SetSecretRules {
  rules: SecretRule[];
}

/** What the start of a worker cost, and what was prepared for it. */
export interface StartFigures {
  /** Number of those packages. */
  package_count?: number | null;
  /** Time to load packages that code expects to find loaded, by the worker. */
  package_load_ms?: number | null;
  prewarm: Prewarm;
  /** Time until the interpreter could run code, by the worker. */
  runtime_load_ms?: number | null;
  /** Time from the start of the worker, or from its claim from a pool, until it was ready for turns. */
  startup_ms: number;
}

/** How a worker was started. The session behaves the same in every case. */
export type StartedBy = "exec" | "zygote" | "pool" | "fork";

/** The disk that holds the node's state. */
export interface StateStorage {
  /** Number of records of the audit log that were lost since the node started. 0 from nodes of earlier releases. */
  audit_records_dropped?: number;
  /** Bytes that the node can still write there. Absent if unknown. A node without disk space refuses new turns with `disk_full`. */
  free_bytes?: number | null;
  index: IndexStorage;
  /** Number of log lines that the node could not write since it started. */
  log_lines_dropped: number;
}

/** A turn's request for input. */
export interface StdinWait {
  prompt: string;
  /** Whether the input is a secret: do not show or store it. */
  secret: boolean;
}

/** Why a turn is stopped. */
export type StopCause = "client" | "deadline";

/** How the node stops. */
export interface StopNode {
  sessions: StopSessions;
}

export type StopSessions = "end" | "keep";

/** Where output came from. */
export type Stream = "stdout" | "stderr" | "result" | "traceback";

/** One stream of a turn's output within a byte budget: the head, the tail, and the number of bytes between them. */
export interface StreamView {
  /** The raw bytes in base64, if they are not UTF-8. */
  base64?: string | null;
  /** Bytes of this stream that the journal has. */
  bytes: number;
  /** Bytes between head and tail that are not shown. */
  omitted_bytes?: number;
  /** The whole text, or head, marker and tail. Bytes that are not UTF-8 are shown as U+FFFD. */
  text: string;
}

/** The request to run a turn. */
export interface SubmitTurn {
  code: string;
  /** The surroundings of the turn: arguments, directory, variables. At most 32 KiB as JSON. Only workers with the capability `context` take it. */
  context?: TurnContext | null;
  /** How long the turn may run after the worker receives it. Default: the session's deadline, else the node's. */
  deadline_ms?: number | null;
  /** An id that the client chooses. A turn that is sent twice with the same id runs once. */
  id?: TurnId | null;
  /** Maximum output bytes in the reply. */
  output_bytes_max?: number | null;
  /** Shows the standard error and the traceback on their own as `stderr`, within this many bytes. Default: 0, not shown. */
  stderr_bytes_max?: number | null;
  /** Shows the standard output on its own as `stdout`, within this many bytes. Default: 0, not shown. */
  stdout_bytes_max?: number | null;
  /** How long the reply may wait until the turn ends or asks for input. Default: 0. */
  wait_ms?: number;
}

/** The name of a tenant: clients that see and use only what is their own. */
export type TenantName = string;

/** What one tenant uses on one node. */
export interface TenantUsage {
  /** CPU time of the turns. */
  cpu_ms: number;
  /** The limits of the live sessions together. A quota counts them. */
  held: Limits;
  /** What the processes of its sessions use. */
  measured?: MeasuredUsage;
  /** Bytes that the turns printed. */
  output_bytes: number;
  /** Number of live sessions. */
  sessions: number;
  /** Absent: sessions without a tenant. */
  tenant?: TenantName | null;
  /** Number of ended turns. */
  turns: number;
}

/** The size of a session's terminal, in characters. Each is from 1 to 1000. */
export interface TerminalSize {
  columns: number;
  rows: number;
}

/** A tool rule: `files.read`, `files.*` or `*`. */
export type ToolRule = string;

/** The current state of a turn. */
export interface Turn {
  displays?: DisplayRef[];
  error?: TurnError | null;
  /** The exit status of the code. If a signal ended the worker: 128 and the signal's number. Absent until the turn ends, and for workers that report none. */
  exit_code?: number | null;
  id: TurnId;
  number: TurnNo;
  /** How the turn ended. Absent until it ends. */
  outcome?: Outcome | null;
  output: OutputView;
  receipt?: Receipt | null;
  /** What the policy refused in the turn, if that made it fail. */
  refusal?: PolicyRefusal | null;
  session: SessionId;
  state: TurnState;
  /** The standard error and the traceback on their own, if the request has `stderr_bytes_max`. */
  stderr?: StreamView | null;
  /** The input that the turn waits for, while it waits. */
  stdin_wait?: StdinWait | null;
  /** The standard output on its own, if the request has `stdout_bytes_max`. */
  stdout?: StreamView | null;
  usage?: Usage | null;
  /** The value of the last expression, if it can be written as JSON in 16 KiB. */
  value?: ResultValue | null;
}

/** The surroundings of one turn. Only workers with the capability `context` take one. */
export interface TurnContext {
  /** The arguments of the program, without its name. */
  args?: string[];
  /** The directory that the turn works in. */
  cwd?: string | null;
  /** Environment variables to set for the turn. */
  env?: Record<string, string>;
  /** The name of the code in tracebacks, usually the absolute path of its file. */
  file?: string | null;
  /** Whether the code runs as a program: as the interpreter runs a file with these arguments. */
  program?: boolean;
}

/** What went wrong in a turn. */
export interface TurnError {
  /** A stable code if Windlass ended the turn. Absent if the code itself raised the error. */
  code?: ErrorCode | null;
  message: string;
  /** The class of the exception, or a short name of the failure. */
  name: string;
}

/** The id of a turn, unique in its session. The client chooses it, or it is the turn's number in decimal. A turn that is sent twice with the same chosen id runs once. */
export type TurnId = string;

/** Input for a running turn. */
export interface TurnInput {
  /** Raw bytes in base64, for input that is not text. */
  base64?: string | null;
  /** End of input: no more input follows. */
  eof?: boolean;
  /** The text is what was typed at a terminal: a worker adds no line end to it. Only the worker `shell` has terminals. */
  keys?: boolean;
  text?: string | null;
}

/** The number of a turn in its session, from 1, in the order accepted. Workers know turns by this number. */
export type TurnNo = number;

export type TurnState = "waiting" | "running" | "awaiting_input" | "interrupting" | "ended";

/** Which Unix sockets the code can create. Connected pairs are always allowed. */
export type UnixSockets = "local" | "none";

/** The resources that a turn used. */
export interface Usage {
  /** CPU time of the worker process and, for turns over 2 ms, of its ended children. */
  cpu_ms: number;
  output_bytes: number;
  /** Peak memory of the worker process so far in the session. */
  peak_rss_bytes: number;
  wall_ms: number;
}

/** What each tenant uses on one node. */
export interface UsageList {
  /** Since when turns are counted: the start of the node. */
  since_ms: number;
  /** By name, first what belongs to no tenant. */
  tenants: TenantUsage[];
}

/** One kind of worker. */
export interface WorkerInfo {
  /** The file name extensions of the language. */
  extensions?: string[];
  /** The program that runs the code. */
  interpreter?: string | null;
  /** The name of the language. */
  language: string;
  /** What is missing on this machine, and how to get it. Absent if sessions of this kind can start. */
  missing?: string | null;
  /** The name by which a session requests this kind. */
  name: string;
  source: WorkerSource;
  /** How workers of this kind can be started. */
  starts?: StartedBy[];
}

/** The reply of `GET /v1/workers`. */
export interface WorkerList {
  /** Why the workers of the user's configuration file are not used. */
  error?: string | null;
  workers: WorkerInfo[];
}

/** Where a kind of worker comes from. */
export type WorkerSource = "built_in" | "configured";

export type WorkspaceAccess = "read" | "write";

/** The result of a write-back. Either all requested changes are done, or none. */
export interface WrittenBack {
  deleted: FileDeleted[];
  written: FileWritten[];
}

/** The process that an environment's workers are forked from. */
export interface ZygoteInfo {
  /** Why there is no zygote. */
  error?: string | null;
  /** Modules that could not be imported, with the reason. */
  missing?: string[];
  pid?: number | null;
  /** Proportional set size: memory shared with workers counts in proportion. */
  pss_kib?: number | null;
  state: ZygoteState;
}

export type ZygoteState = "none" | "starting" | "ready" | "failed";
