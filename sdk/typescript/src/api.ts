// The JSON of the node's HTTP door, as types.
//
// Written by `cargo xtask api` from docs/openapi.json; not to be changed by hand.

/** Every answer that is not a success. */
export interface ApiError {
  code: ErrorCode;
  /** What happened, for a person. */
  message: string;
  /** What to do about it. */
  remedy: string;
  /** Whether the same request may succeed later. */
  retryable: boolean;
}

/** A host tool call's number, the worker's own. A fresh worker counts from 1 again, so only a turn and a call together name one. */
export type CallNo = number;

/** Something of the original from before a fork that the fork does not keep from the twin: it could signal the twin, and read and write the twin's memory. */
export interface CanReach {
  /** Its number in the session, and the name of its program. */
  name: string;
  /** `thread` or `process`; `more` where the list was cut off. */
  what: string;
}

/** How a session is confined. */
export interface Confinement {
  controls: ControlReport[];
  isolation: Isolation;
}

/** One thing that a policy can ask for. */
export type Control = "read" | "write" | "hidden" | "protected" | "network" | "sockets" | "processes" | "ipc" | "privileges" | "syscalls" | "devices" | "environment" | "memory" | "cpu" | "process_count" | "open_files" | "file_size" | "disk" | "wall_time";

/** A control of one session. */
export interface ControlReport {
  control: Control;
  /** By what it is enforced, or why it is not. */
  mechanism?: string;
  /** What would make it enforced here. */
  remedy?: string | null;
  state: ControlState;
  /** A canary inside the sandbox tried what is forbidden, and was refused. */
  tested?: boolean;
}

/** What became of a control. */
export type ControlState = "enforced" | "not_enforced" | "not_asked";

/** Which directories of a workspace a fork copies. */
export type CopyScope = "needed" | "all";

/** A new session. */
export interface CreateSession {
  /** How long a turn may run that has no deadline of its own. Default: the node's, a day unless it was started with another. */
  deadline_ms?: number | null;
  /** Environment variables to add. */
  env?: Record<string, string>;
  /** A name of the client's choice; made by the node when absent. */
  id?: SessionId | null;
  /** Seconds without a client and without a turn after which the session ends; 0: never. Default: the node's, a day unless it was started with another. */
  idle_s?: number | null;
  /** The interpreter, or a virtual environment's directory. Default: the nearest `.venv` at or above the workspace, then the one on PATH. */
  interpreter?: string | null;
  /** How long an interrupted turn may take to stop before its worker is killed. */
  interrupt_grace_ms?: number | null;
  /** Output bytes the journal keeps for the session. */
  output_quota_bytes?: number | null;
  /** Whose session it is: a tool host may offer its tools to all of one owner's. */
  owner?: Owner | null;
  /** What the code may touch. Default: the preset `workspace`. */
  policy?: PolicyRequest | null;
  /** The session's first turn: whoever learns the id queues behind it. */
  turn?: SubmitTurn | null;
  /** Which kind of worker. Default: `python`. */
  worker?: string | null;
  /** The directory the code works in. Default: a fresh one of the session's own. */
  workspace?: string | null;
}

/** What `POST /v1/sessions` answers. */
export interface Created {
  session: Session;
  /** The first turn, when one was given. */
  turn?: Turn | null;
}

/** What something on the disk is. */
export type DiskKind = "journals_live" | "journals_ended" | "workspaces_live" | "workspaces_ended" | "fork_copies" | "temporary" | "leftovers" | "environments" | "index" | "logs" | "other";

/** What one kind takes. */
export interface DiskShare {
  /** Blocks on the disk, not lengths of files. A file with several names counts once. */
  bytes: number;
  /** Files and directories. */
  entries: number;
  kind: DiskKind;
}

/** What `GET /v1/node/disk` answers. */
export interface DiskUse {
  /** All of them together. */
  bytes: number;
  /** False where a directory could not be read, or looking took too long: there is more then. */
  complete: boolean;
  /** Every kind, also those that take nothing. */
  kinds: DiskShare[];
  /** Seconds for which ended sessions are kept. */
  retain_age_s: number;
  /** What all journals and the workspaces of ended sessions may take together. */
  retain_bytes: number;
  state_dir: string;
}

/** A display of a turn; its bytes are at `GET displays/{seq}`. */
export interface DisplayRef {
  bytes: number;
  id?: string | null;
  mime: string;
  /** The event that completed it. */
  seq: Seq;
}

/** Why output bytes are missing. */
export type DropReason = "quota" | "disk_full";

/** Connections to one host and port with the same decision, added up. */
export interface EgressDecision {
  allowed: boolean;
  count: number;
  /** `*` where no host is to be named: too many connections at once, or too many hosts to list. */
  host: string;
  last_at_ms: number;
  port: number;
  /** Why it was refused, or why an allowed one failed; empty when all is well. */
  reason?: string;
  received_bytes: number;
  /** Bytes from the code to the host. */
  sent_bytes: number;
}

/** Every decision about a session's network, by host. Empty where the policy has no host list. */
export interface EgressLog {
  /** The latest first. */
  decisions: EgressDecision[];
  /** Since when it counts: the session's start, or a later start of the node. */
  since_ms: number;
}

/** Why a session ended. */
export type EndReason = "closed" | "worker_exited" | "start_failed" | "wall_time" | "idle" | "protocol_error" | "keeper_lost" | "node_gone";

/** How a session ended. */
export interface Ended {
  /** The figures of the reason, such as how long nobody used it. */
  message?: string | null;
  reason: EndReason;
  receipt?: Receipt | null;
}

/** An environment as it is at this moment. */
export interface Environment {
  /** As the file names it. */
  interpreter: string;
  pool: PoolInfo;
  preload: string[];
  /** The program that this is. */
  program?: string | null;
  zygote: ZygoteInfo;
}

/** Its answer. */
export interface EnvironmentList {
  environments: Environment[];
  /** Why the user's file is not used. */
  error?: string | null;
}

/** The fencing token of a session's owner: a keeper obeys no node of a lower epoch. A node that takes a session over raises it. */
export type Epoch = number;

/** A failure's name, the same at every door and in the journal. */
export type ErrorCode = "bad_request" | "message_too_large" | "overloaded" | "session_not_found" | "session_exists" | "not_here" | "session_ended" | "session_busy" | "fork_refused" | "fork_limit" | "workspace_too_large" | "turn_not_found" | "turn_not_running" | "state_lost" | "limit_memory" | "limit_processes" | "limit_disk" | "limit_wall_time" | "not_enforceable" | "unauthorized" | "worker_failed" | "protocol_error" | "worker_died" | "keeper_lost" | "deadline_passed" | "unstoppable" | "session_closed" | "disk_full" | "file_not_found" | "file_conflict" | "path_refused" | "tool_not_found" | "tool_failed" | "tool_deadline_passed" | "tool_host_gone" | "tool_cancelled" | "would_deadlock" | "version_mismatch" | "shutting_down" | "already_running" | "not_found" | "internal";

/** An event with its bytes: as text where they are UTF-8, else in base64. Large bodies are left out and can be read from `GET output` or `GET displays`. */
export type EventItem = EventItemTurnAccepted | EventItemTakenOver | EventItemInterruptAsked | EventItemOutput | EventItemDisplay | EventItemStdinWait | EventItemToolCall | EventItemToolCancel | EventItemToolEnded | EventItemInputTaken | EventItemTurnEnded | EventItemWorkerReady | EventItemConfined | EventItemLimitReached | EventItemWorkerEnded | EventItemEgress | EventItemProtocolBroken | EventItemOutputDropped | EventItemMessagesDropped | EventItemSessionEnded;

export interface EventItemConfined {
  /** When the node took it in: milliseconds since the Unix epoch. */
  at_ms: number;
  base64?: string | null;
  /** The body's length in bytes. */
  bytes?: number;
  controls: ControlReport[];
  isolation: Isolation;
  kind: "confined";
  /** The keeper's own number for it; absent for what the node says itself. */
  link?: LinkSeq | null;
  seq: Seq;
  text?: string | null;
  /** The turn it belongs to; absent for facts of the session itself. */
  turn?: TurnNo | null;
}

export interface EventItemDisplay {
  /** When the node took it in: milliseconds since the Unix epoch. */
  at_ms: number;
  base64?: string | null;
  /** The body's length in bytes. */
  bytes?: number;
  id?: string | null;
  kind: "display";
  /** The keeper's own number for it; absent for what the node says itself. */
  link?: LinkSeq | null;
  mime: string;
  more?: boolean;
  seq: Seq;
  text?: string | null;
  /** The turn it belongs to; absent for facts of the session itself. */
  turn?: TurnNo | null;
  /** Replaces the display with the same `id`. */
  update?: boolean;
}

export interface EventItemEgress {
  allowed: boolean;
  /** When the node took it in: milliseconds since the Unix epoch. */
  at_ms: number;
  base64?: string | null;
  /** The body's length in bytes. */
  bytes?: number;
  host: string;
  kind: "egress";
  /** The keeper's own number for it; absent for what the node says itself. */
  link?: LinkSeq | null;
  port: number;
  reason?: string;
  seq: Seq;
  text?: string | null;
  /** The turn it belongs to; absent for facts of the session itself. */
  turn?: TurnNo | null;
}

export interface EventItemInputTaken {
  /** When the node took it in: milliseconds since the Unix epoch. */
  at_ms: number;
  base64?: string | null;
  bytes: number;
  kind: "input_taken";
  /** The keeper's own number for it; absent for what the node says itself. */
  link?: LinkSeq | null;
  seq: Seq;
  text?: string | null;
  /** The turn it belongs to; absent for facts of the session itself. */
  turn?: TurnNo | null;
}

export interface EventItemInterruptAsked {
  /** When the node took it in: milliseconds since the Unix epoch. */
  at_ms: number;
  base64?: string | null;
  /** The body's length in bytes. */
  bytes?: number;
  cause: StopCause;
  kind: "interrupt_asked";
  /** The keeper's own number for it; absent for what the node says itself. */
  link?: LinkSeq | null;
  seq: Seq;
  text?: string | null;
  /** The turn it belongs to; absent for facts of the session itself. */
  turn?: TurnNo | null;
}

export interface EventItemLimitReached {
  /** When the node took it in: milliseconds since the Unix epoch. */
  at_ms: number;
  base64?: string | null;
  /** The body's length in bytes. */
  bytes?: number;
  kind: "limit_reached";
  limit: Limit;
  /** The keeper's own number for it; absent for what the node says itself. */
  link?: LinkSeq | null;
  message: string;
  seq: Seq;
  text?: string | null;
  /** The turn it belongs to; absent for facts of the session itself. */
  turn?: TurnNo | null;
}

export interface EventItemMessagesDropped {
  /** When the node took it in: milliseconds since the Unix epoch. */
  at_ms: number;
  base64?: string | null;
  /** The body's length in bytes. */
  bytes?: number;
  count: number;
  kind: "messages_dropped";
  /** The keeper's own number for it; absent for what the node says itself. */
  link?: LinkSeq | null;
  reason: string;
  seq: Seq;
  text?: string | null;
  /** The turn it belongs to; absent for facts of the session itself. */
  turn?: TurnNo | null;
}

export interface EventItemOutput {
  /** When the node took it in: milliseconds since the Unix epoch. */
  at_ms: number;
  /** Written by something that outlived its own turn. */
  background?: boolean;
  base64?: string | null;
  /** The body's length in bytes. */
  bytes?: number;
  kind: "output";
  /** The keeper's own number for it; absent for what the node says itself. */
  link?: LinkSeq | null;
  seq: Seq;
  stream: Stream;
  text?: string | null;
  /** The turn it belongs to; absent for facts of the session itself. */
  turn?: TurnNo | null;
}

export interface EventItemOutputDropped {
  /** When the node took it in: milliseconds since the Unix epoch. */
  at_ms: number;
  base64?: string | null;
  bytes: number;
  kind: "output_dropped";
  /** The keeper's own number for it; absent for what the node says itself. */
  link?: LinkSeq | null;
  reason: DropReason;
  seq: Seq;
  text?: string | null;
  /** The turn it belongs to; absent for facts of the session itself. */
  turn?: TurnNo | null;
}

export interface EventItemProtocolBroken {
  /** When the node took it in: milliseconds since the Unix epoch. */
  at_ms: number;
  base64?: string | null;
  /** The body's length in bytes. */
  bytes?: number;
  kind: "protocol_broken";
  /** The keeper's own number for it; absent for what the node says itself. */
  link?: LinkSeq | null;
  message: string;
  seq: Seq;
  text?: string | null;
  /** The turn it belongs to; absent for facts of the session itself. */
  turn?: TurnNo | null;
}

export interface EventItemSessionEnded {
  /** When the node took it in: milliseconds since the Unix epoch. */
  at_ms: number;
  base64?: string | null;
  /** The body's length in bytes. */
  bytes?: number;
  kind: "session_ended";
  /** The keeper's own number for it; absent for what the node says itself. */
  link?: LinkSeq | null;
  /** The figures of the reason, such as how long nobody used it. */
  message?: string | null;
  reason: EndReason;
  receipt?: Receipt | null;
  seq: Seq;
  text?: string | null;
  /** The turn it belongs to; absent for facts of the session itself. */
  turn?: TurnNo | null;
}

export interface EventItemStdinWait {
  /** When the node took it in: milliseconds since the Unix epoch. */
  at_ms: number;
  base64?: string | null;
  /** The body's length in bytes. */
  bytes?: number;
  kind: "stdin_wait";
  /** The keeper's own number for it; absent for what the node says itself. */
  link?: LinkSeq | null;
  prompt: string;
  secret: boolean;
  seq: Seq;
  text?: string | null;
  /** The turn it belongs to; absent for facts of the session itself. */
  turn?: TurnNo | null;
}

export interface EventItemTakenOver {
  /** When the node took it in: milliseconds since the Unix epoch. */
  at_ms: number;
  base64?: string | null;
  /** The body's length in bytes. */
  bytes?: number;
  epoch: Epoch;
  kind: "taken_over";
  /** The keeper's own number for it; absent for what the node says itself. */
  link?: LinkSeq | null;
  seq: Seq;
  text?: string | null;
  /** The turn it belongs to; absent for facts of the session itself. */
  turn?: TurnNo | null;
}

export interface EventItemToolCall {
  /** When the node took it in: milliseconds since the Unix epoch. */
  at_ms: number;
  base64?: string | null;
  bytes?: number;
  call: CallNo;
  /** How long the code wants to wait for it. */
  deadline_ms?: number | null;
  kind: "tool_call";
  /** The keeper's own number for it; absent for what the node says itself. */
  link?: LinkSeq | null;
  more?: boolean;
  name: string;
  /** Bytes of arguments in the events before this one, and in this one. */
  offset?: number;
  seq: Seq;
  text?: string | null;
  /** The turn it belongs to; absent for facts of the session itself. */
  turn?: TurnNo | null;
}

export interface EventItemToolCancel {
  /** When the node took it in: milliseconds since the Unix epoch. */
  at_ms: number;
  base64?: string | null;
  /** The body's length in bytes. */
  bytes?: number;
  call: CallNo;
  kind: "tool_cancel";
  /** The keeper's own number for it; absent for what the node says itself. */
  link?: LinkSeq | null;
  seq: Seq;
  text?: string | null;
  /** The turn it belongs to; absent for facts of the session itself. */
  turn?: TurnNo | null;
}

export interface EventItemToolEnded {
  /** When the node took it in: milliseconds since the Unix epoch. */
  at_ms: number;
  base64?: string | null;
  /** Bytes of the answer. */
  bytes: number;
  call: CallNo;
  /** Why it failed; absent when the tool itself did. */
  code?: ErrorCode | null;
  kind: "tool_ended";
  /** The keeper's own number for it; absent for what the node says itself. */
  link?: LinkSeq | null;
  ok: boolean;
  seq: Seq;
  text?: string | null;
  /** The turn it belongs to; absent for facts of the session itself. */
  turn?: TurnNo | null;
  wall_ms: number;
}

export interface EventItemTurnAccepted {
  /** When the node took it in: milliseconds since the Unix epoch. */
  at_ms: number;
  base64?: string | null;
  /** The body's length in bytes. */
  bytes?: number;
  deadline_ms?: number | null;
  id: TurnId;
  kind: "turn_accepted";
  /** The keeper's own number for it; absent for what the node says itself. */
  link?: LinkSeq | null;
  /** More of the code follows in the next event. */
  more?: boolean;
  seq: Seq;
  text?: string | null;
  /** The turn it belongs to; absent for facts of the session itself. */
  turn?: TurnNo | null;
}

export interface EventItemTurnEnded {
  /** When the node took it in: milliseconds since the Unix epoch. */
  at_ms: number;
  base64?: string | null;
  /** The body's length in bytes. */
  bytes?: number;
  error?: TurnError | null;
  kind: "turn_ended";
  /** The keeper's own number for it; absent for what the node says itself. */
  link?: LinkSeq | null;
  outcome: Outcome;
  receipt?: Receipt | null;
  seq: Seq;
  text?: string | null;
  /** The turn it belongs to; absent for facts of the session itself. */
  turn?: TurnNo | null;
  usage?: Usage;
}

export interface EventItemWorkerEnded {
  /** When the node took it in: milliseconds since the Unix epoch. */
  at_ms: number;
  base64?: string | null;
  /** The body's length in bytes. */
  bytes?: number;
  cause: string;
  kind: "worker_ended";
  /** The limit that ended it. */
  limit?: Limit | null;
  /** The keeper's own number for it; absent for what the node says itself. */
  link?: LinkSeq | null;
  /** The node had it replaced. The turn that was running on it, if any, is the event's turn. */
  replaced?: boolean;
  seq: Seq;
  text?: string | null;
  /** The turn it belongs to; absent for facts of the session itself. */
  turn?: TurnNo | null;
}

export interface EventItemWorkerReady {
  /** When the node took it in: milliseconds since the Unix epoch. */
  at_ms: number;
  base64?: string | null;
  /** The body's length in bytes. */
  bytes?: number;
  /** What it can do, as it says. Absent in events of earlier releases. */
  capabilities?: string[] | null;
  kind: "worker_ready";
  /** The keeper's own number for it; absent for what the node says itself. */
  link?: LinkSeq | null;
  pid: number;
  restarts: number;
  seq: Seq;
  start?: StartedBy;
  text?: string | null;
  /** The turn it belongs to; absent for facts of the session itself. */
  turn?: TurnNo | null;
  worker: string;
}

/** Some events of a session, in order. */
export interface Events {
  /** Ask for events after this one next. */
  after: Seq;
  /** No event will follow these. */
  ended: boolean;
  events: EventItem[];
}

/** What was removed. */
export interface FileDeleted {
  path: string;
}

export interface FileEntry {
  bytes: number;
  /** Of plain files: changes with every change of the file. */
  etag?: string | null;
  kind: FileKind;
  modified_ms: number;
  /** In the workspace, whatever directory was asked for. */
  path: string;
}

/** Something happened to a file or directory below a watched one. */
export interface FileEvent {
  kind: FileEventKind;
  path: string;
}

export type FileEventKind = "made" | "changed" | "removed" | "overflow";

export type FileKind = "file" | "directory" | "link" | "other";

/** Some of the files in a workspace, in order: a directory comes before what is in it, and names are compared byte by byte. */
export interface FileList {
  entries: FileEntry[];
  /** There are more: ask again with `after`, the last of these. */
  more: boolean;
}

/** A file as it was put in place. */
export interface FileWritten {
  bytes: number;
  etag: string;
  path: string;
}

/** A twin of a session. */
export interface ForkSession {
  /** Which directories of the workspace are copied. Default: all but those that can be made or installed again. */
  copy?: CopyScope;
  /** A name of the client's choice; made by the node when absent. */
  id?: SessionId | null;
  /** Whose session the twin is. Default: the original's owner. */
  owner?: Owner | null;
}

/** What `POST /v1/sessions/{session}/fork` answers. */
export interface ForkedSession {
  /** Threads and processes from before the fork that could still reach the twin. Empty for most forks, and where nothing confines the session. */
  can_reach?: CanReach[];
  /** Directories of the workspace that the copy does not have, at most 64. `copy` with `all` copies them. */
  left_out?: LeftOutDirectory[];
  /** How many more of these there are. */
  left_out_more?: number;
  /** What the twin does not have, or has in common with the original. */
  not_carried: NotCarried[];
  /** The twin. Its workspace is a copy, at another path than the original's. */
  session: Session;
}

export interface Health {
  status: string;
}

/** How the keeper holds its process tree. */
export type Hold = "pid_namespace" | "subreaper";

/** Rules, any of which lets a host through. */
export type HostRules = string[];

/** Where the journal's index is. It is made of the journal, so nothing is lost with it. */
export type IndexStorage = "file" | "memory";

/** How strongly a session is confined. */
export type Isolation = "full" | "landlock" | "none";

/** A directory of the workspace that the twin's copy does not have. */
export interface LeftOutDirectory {
  /** Whether the copy has a link to the original's, which the twin can read and not write. */
  linked: boolean;
  /** Relative to the workspace. */
  path: string;
  why: LeftOutReason;
}

/** Why a fork does not copy a directory. */
export type LeftOutReason = "environment" | "packages" | "cache";

/** A limit that a session ran into. */
export type Limit = "memory" | "processes" | "disk" | "wall_time";

/** What a session may use. Absent: no limit of Windlass's own. */
export interface Limits {
  /** Processor time: 100 is one core. */
  cpu_percent?: number | null;
  /** What the workspace may grow by. */
  disk_bytes?: number | null;
  /** The largest file that it can write. */
  file_bytes?: number | null;
  /** Memory of all its processes together, its private `/tmp` included. */
  memory_bytes?: number | null;
  /** Open files of one process. */
  open_files?: number | null;
  /** Processes and threads at once. */
  processes?: number | null;
  /** The private `/tmp`, and as much again for `/dev/shm`. */
  tmp_bytes?: number | null;
  /** How long the session may live. */
  wall_s?: number | null;
}

/** An event's place in what one keeper has said, from 1. What node and keeper acknowledge by. */
export type LinkSeq = number;

/** What of the network can be reached. */
export type Network = "none" | "open" | NetworkHosts;

/** These hosts, through the node's proxy. */
export interface NetworkHosts {
  /** These hosts, through the node's proxy. */
  hosts: HostRules;
}

/** The node as it is now. */
export interface NodeStatus {
  api: string;
  epoch: number;
  /** Where its TCP door is, if it is open. */
  listen?: string | null;
  pid: number;
  runtime_dir: string;
  sessions: number;
  started_at_ms: number;
  state_dir: string;
  /** Absent where the node is of a release that does not say. */
  storage?: StateStorage | null;
  version: string;
}

/** Something that a fork leaves with the original. */
export interface NotCarried {
  /** Its name, as far as it has one. */
  name: string;
  /** `thread`, `process`, `socket`, `pipe`, `gpu`, `descriptor`; `file`, which the copy of the workspace does not have; or `shared_memory`, which both have in common from then on. */
  what: string;
}

/** How a turn ended. */
export type Outcome = "ok" | "error" | "interrupted" | "timed_out" | "lost";

/** A turn's output within a byte budget: its head, its tail, and what is between. */
export interface OutputView {
  /** The raw bytes in base64, where they are not UTF-8. */
  base64?: string | null;
  /** Bytes of output in all. */
  bytes: number;
  /** Where the turn's output starts in the session's, for `GET output?from=`. */
  from: number;
  /** Bytes between head and tail that are not shown. */
  omitted_bytes?: number;
  /** The shown text: all of it, or head, marker and tail. Bytes that are not UTF-8 show as U+FFFD. */
  text: string;
}

/** Whose sessions these are: a name that a client gives to those it makes, so that it can offer tools to all of them. */
export type Owner = string;

/** A whole policy: nothing in it is left to a default. */
export interface Policy {
  /** Variables of the node's own environment that the code gets, besides the usual. */
  environment: string[];
  /** What cannot be seen, wherever else it would be readable. */
  hidden: string[];
  /** Absent: the strongest that the machine can do. */
  isolation?: Isolation | null;
  limits: Limits;
  network: Network;
  preset: Preset;
  /** Names directly below a writable root that can be read, and neither written, replaced nor made. */
  protected: string[];
  /** What can be read, the workspace besides. `/` is the whole system. */
  readable: string[];
  /** Controls without which the session does not start. */
  required: Control[];
  /** Tools of the node's MCP servers that the code may call. */
  tools?: ToolRule[];
  unix_sockets?: UnixSockets;
  workspace: WorkspaceAccess;
  /** What can be written besides the workspace and the private directories. */
  writable: string[];
}

/** What a client asks for: a preset, and what differs from it. */
export interface PolicyRequest {
  /** Besides the usual: variables of the node's own environment that the code gets. */
  environment?: string[];
  /** Besides the preset's: what cannot be seen. */
  hidden?: string[];
  /** Default: the strongest that the machine can do; never `none` unless it is named. */
  isolation?: Isolation | null;
  limits?: Limits;
  /** Instead of the preset's. */
  network?: Network | null;
  /** Default: `workspace`. */
  preset?: Preset | null;
  /** Instead of the preset's: what can be read. Absolute paths, or `~/...`. */
  readable?: string[] | null;
  /** Instead of the preset's: controls without which the session does not start. */
  required?: Control[] | null;
  /** Paths of the preset's hidden or protected lists that are not to be hidden or protected. */
  shown?: string[];
  /** Tools of the node's MCP servers that the code may call: `files.read`, `files.*`, `*`. Default: none. Tools that a client offers to its own sessions need no leave. */
  tools?: ToolRule[];
  /** Default: `local`. */
  unix_sockets?: UnixSockets | null;
  /** Besides the preset's: what can be written. */
  writable?: string[];
}

/** Workers that wait. */
export interface PoolInfo {
  ready: number;
  size: number;
}

/** A policy to start from. */
export type Preset = "read-only" | "workspace" | "open";

/** What to remove. */
export interface PruneRequest {
  /** Only say what would be removed. */
  dry_run?: boolean;
  /** Of ended sessions only those that ended longer ago, in seconds; all of them when absent. What the node's own retention would remove goes in any case, and so do leftovers. */
  older_than_s?: number | null;
}

/** What `POST /v1/node/prune` answers. */
export interface Pruned {
  /** What the disk got back, or would get back. */
  bytes: number;
  /** False where not all could be measured: a dry run may then have said too little. */
  complete: boolean;
  /** Nothing was removed. */
  dry_run: boolean;
  /** What could not be removed, with the reason. */
  failed: string[];
  /** How many more there are. `bytes` counts them. */
  more: number;
  /** At most 1,000 of them, in the order in which they went. */
  removed: PrunedItem[];
}

/** Something that was removed, or would be. */
export interface PrunedItem {
  bytes: number;
  kind: DiskKind;
  /** The session's id, or a path below the state directory. */
  name: string;
}

/** What a loss cost: what was kept and what is gone. */
export interface Receipt {
  kept: string[];
  lost: string[];
}

/** A line that holds the text. */
export interface SearchMatch {
  /** The line around it, cut to 512 bytes. */
  line: string;
  /** Where the match is in the session's output. */
  offset: number;
}

export interface SearchResult {
  matches: SearchMatch[];
  /** More matches follow the last one. */
  more: boolean;
}

/** An event's place in its session, from 1. What clients see and resume from. */
export type Seq = number;

/** A session as it is now. */
export interface Session {
  /** What the worker can do, as it says: `stdin`, `interrupt`, `display`, `tools`, `fork`. Absent until it is up. */
  capabilities?: string[] | null;
  /** How the policy is enforced, once a worker was started under it. */
  confinement?: Confinement | null;
  created_at_ms: number;
  /** The deadline of its turns that have none of their own, where it was made with one. */
  deadline_ms?: number | null;
  ended?: Ended | null;
  /** The session that it was forked from. */
  forked_from?: SessionId | null;
  hold?: Hold | null;
  id: SessionId;
  /** Its idle timeout, where it was made with one; 0: it has none. */
  idle_s?: number | null;
  /** The keeper's process. */
  keeper_pid?: number | null;
  /** Which kind of worker it has. */
  kind?: string;
  /** Worker messages that were not understood or came for another turn. */
  messages_dropped: number;
  /** Output bytes produced so far. */
  output_bytes: number;
  /** Output bytes produced and no longer kept. */
  output_dropped_bytes: number;
  /** Whose session it is. */
  owner?: Owner | null;
  /** What its code may touch. */
  policy?: Policy | null;
  /** Fresh workers started after a loss. */
  restarts: number;
  /** The last event. */
  seq: Seq;
  /** How the worker was started, once it is up. */
  started_by?: StartedBy | null;
  state: SessionState;
  /** The running turn. */
  turn?: TurnId | null;
  /** Turns accepted so far. */
  turns: number;
  /** Turns that wait behind it. */
  waiting: number;
  /** What the worker calls itself; empty until it is up. */
  worker: string;
  /** The worker's process, as the keeper numbers it. */
  worker_pid?: number | null;
  workspace: string;
}

/** A session's name, unique in its node: chosen by the client or made by the node. It names a directory and a socket, so its characters are few. */
export type SessionId = string;

export interface SessionList {
  sessions: Session[];
}

export type SessionState = "starting" | "idle" | "busy" | "awaiting_input" | "interrupting" | "restarting" | "ended";

export interface SessionTool {
  name: string;
  /** How code calls it. */
  signature: string;
  summary: string;
}

/** What the code of a session may call. */
export interface SessionTools {
  /** There are more than these. */
  more: boolean;
  tools: SessionTool[];
}

/** How a worker came to be. Its session is the same, whichever it was. */
export type StartedBy = "exec" | "zygote" | "pool" | "fork";

/** The disk with the node's state. */
export interface StateStorage {
  /** Bytes that the node can still write there, if that can be found out. A node without room refuses new turns with `disk_full`. */
  free_bytes?: number | null;
  index: IndexStorage;
  /** Lines of the node's log that could not be written since the node started. */
  log_lines_dropped: number;
}

/** What a turn asks for. */
export interface StdinWait {
  prompt: string;
  /** Do not show or store the answer. */
  secret: boolean;
}

/** Who wants a turn stopped. */
export type StopCause = "client" | "deadline";

/** How the node is to stop. */
export interface StopNode {
  sessions: StopSessions;
}

export type StopSessions = "end" | "keep";

/** Where output came from. */
export type Stream = "stdout" | "stderr" | "result" | "traceback";

/** A turn to run. */
export interface SubmitTurn {
  code: string;
  /** How long the turn may run, from when the worker gets it. Default: the session's, or the node's. */
  deadline_ms?: number | null;
  /** A name of the client's choice: sending it twice runs it once. */
  id?: TurnId | null;
  /** The most output bytes in the reply. */
  output_bytes_max?: number | null;
  /** How long the reply may wait for the turn to end or ask for input. Default 0. */
  wait_ms?: number;
}

/** `files.read`, `files.*` or `*`. */
export type ToolRule = string;

/** A turn as it is now. */
export interface Turn {
  displays?: DisplayRef[];
  error?: TurnError | null;
  id: TurnId;
  number: TurnNo;
  /** How it ended, once it has. */
  outcome?: Outcome | null;
  output: OutputView;
  receipt?: Receipt | null;
  session: SessionId;
  state: TurnState;
  /** What it waits for, while it does. */
  stdin_wait?: StdinWait | null;
  usage?: Usage | null;
}

/** What went wrong in a turn. */
export interface TurnError {
  /** A stable code when Windlass ended the turn; absent when the code itself raised. */
  code?: ErrorCode | null;
  message: string;
  /** The exception's class, or a short name of what happened. */
  name: string;
}

/** A turn's name, unique in its session: chosen by the client (then sending it twice runs it once) or its number in decimal. */
export type TurnId = string;

/** Input for a running turn. */
export interface TurnInput {
  /** Raw bytes, for what is not text. */
  base64?: string | null;
  /** No input follows. */
  eof?: boolean;
  text?: string | null;
}

/** A turn's place in its session, from 1, in the order accepted. Workers know turns by it. */
export type TurnNo = number;

export type TurnState = "waiting" | "running" | "awaiting_input" | "interrupting" | "ended";

/** Which unix sockets the code can make. Connected pairs it always can. */
export type UnixSockets = "local" | "none";

/** What a turn cost. */
export interface Usage {
  /** Processor time of the worker process (and, for turns over 2 ms, of its ended children). */
  cpu_ms: number;
  output_bytes: number;
  /** The most memory the worker process has held so far in the session. */
  peak_rss_bytes: number;
  wall_ms: number;
}

export type WorkspaceAccess = "read" | "write";

/** What a write-back did: all that it was asked for. */
export interface WrittenBack {
  deleted: FileDeleted[];
  written: FileWritten[];
}

/** The process that an environment's workers are forked from. */
export interface ZygoteInfo {
  /** Why there is none. */
  error?: string | null;
  /** Modules that could not be imported, and why. */
  missing?: string[];
  pid?: number | null;
  /** What it takes, counting what it shares with its workers as its share. */
  pss_kib?: number | null;
  state: ZygoteState;
}

export type ZygoteState = "none" | "starting" | "ready" | "failed";
