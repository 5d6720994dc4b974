//! The link: the messages between node and keeper over the keeper's Unix socket, in frames.
//!
//! The keeper numbers events ([`LinkSeq`]) and holds them until the node acknowledges them. The node numbers
//! commands ([`CommandSeq`]), and the keeper executes each command once. All frames of one chunked command
//! carry the same number. The command counts as seen when its last frame has arrived. The logic is in
//! `windlass_lifecycle::link`; this module only has the message types.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::event::EventKind;
use crate::policy::Limits;
use crate::turn::TurnContext;
use crate::worker::is_false;
use crate::{CallNo, Epoch, ErrorCode, LinkSeq, SessionId, TurnNo};

/// The version of the link. A node attaches to keepers of its own version and of the previous one.
pub const LINK: u32 = 1;

/// The sequence number of a command to one keeper, from 1. It continues across nodes.
#[derive(
    Debug, Clone, Copy, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize,
)]
#[serde(transparent)]
pub struct CommandSeq(pub u64);

/// Messages from node to keeper.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum ToKeeper {
    /// Always the first message, except for a prepare. The keeper answers `attached` or `refused`.
    Attach {
        link: u32,
        epoch: Epoch,
        /// The node's journal has all events up to this one.
        after: LinkSeq,
        /// What to run. Only the node that started the keeper sends it, and only in its first attach.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        launch: Option<Box<Launch>>,
    },
    /// Before an attach: start a pooled worker for a later session. The keeper answers `prepared`. The keeper
    /// exits if this connection closes before a node attaches, on this or another connection.
    Prepare(Box<Prepare>),
    /// A part of a message that is too long for one header: an attach with its launch, or a prepare. The
    /// bodies of all parts, in order, are the message's JSON text ([`crate::parts`]).
    Part {
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        more: bool,
    },
    /// The node's journal has all events up to this one.
    Ack { after: LinkSeq },
    /// Execute this command once.
    Command {
        command: CommandSeq,
        after: LinkSeq,
        #[serde(flatten)]
        act: KeeperCommand,
    },
}

/// What a node can tell a keeper to do.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "act", rename_all = "snake_case")]
pub enum KeeperCommand {
    /// Send the worker this turn. The body is the code.
    TurnStart {
        turn: TurnNo,
        #[serde(default)]
        more: bool,
        /// The surroundings of the turn, in each frame. Only for a keeper with [`AttachReply::takes_context`].
        #[serde(default, skip_serializing_if = "Option::is_none")]
        context: Option<Box<TurnContext>>,
    },
    /// Hold the body as input for the running turn, and send it to the worker when the code asks for input.
    TurnInput {
        turn: TurnNo,
        #[serde(default)]
        more: bool,
        #[serde(default)]
        eof: bool,
        #[serde(default, skip_serializing_if = "is_false")]
        keys: bool,
    },
    /// Interrupt the turn, if it is the running one.
    Interrupt { turn: TurnNo },
    /// Send the body to the worker as part of a call's result. Each part is a separate command, so that an
    /// interrupt never waits behind a large result.
    ToolResult {
        turn: TurnNo,
        call: CallNo,
        ok: bool,
        /// Whether the call's result continues in a later command.
        #[serde(default)]
        more: bool,
    },
    /// Make the idle worker fork a twin of itself, and start a keeper for the twin.
    Fork(Box<ForkOrder>),
    /// Remember that this turn has failed because the node's disk is full. Clients learn of the failure, but
    /// if the node dies now, the journal may not have it. Only for a keeper with
    /// [`AttachReply::remembers_failed`].
    TurnFailed { turn: TurnNo },
    /// End the worker and all its processes, then start a fresh worker. A connection to a zygote may come
    /// with this message as a descriptor, as with a launch.
    Restart,
    /// End the worker and all its processes, then exit.
    Shutdown { grace_ms: u64 },
}

/// Messages from keeper to node.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum FromKeeper {
    Attached(Box<AttachReply>),
    /// The pooled worker is ready.
    Prepared {
        /// The keeper's process id in the node's pid namespace.
        pid: u32,
    },
    /// The attach is refused. The keeper closes the connection.
    Refused {
        epoch: Epoch,
        reason: RefuseReason,
    },
    /// One event of the session. `command` is the last command seen.
    Event {
        link: LinkSeq,
        command: CommandSeq,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        turn: Option<TurnNo>,
        event: EventKind,
    },
    /// The last command seen. Sent if no event reports it soon.
    Seen {
        command: CommandSeq,
    },
    /// The result of a fork. Sent once: a later node does not know of the fork, and the twin's keeper exits
    /// because no node attaches to it.
    Forked {
        session: SessionId,
        #[serde(flatten)]
        end: ForkEnd,
    },
}

/// The order to fork a twin of a session. The keeper knows what the original runs, and the twin runs the
/// same.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ForkOrder {
    pub session: SessionId,
    /// The socket on which the twin's keeper listens.
    pub socket: PathBuf,
    /// The original's room, with the directories for the twin (`t`) and for later forks of the original
    /// (`o`): see [`crate::family`].
    pub room: PathBuf,
    /// The twin's cgroups.
    #[serde(default)]
    pub cgroups: Vec<PathBuf>,
}

/// The result of a fork.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "end", rename_all = "snake_case")]
pub enum ForkEnd {
    /// The twin's keeper listens.
    Done(ForkDone),
    Refused {
        code: ErrorCode,
        message: String,
    },
}

/// The report of a successful fork.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ForkDone {
    /// What the twin does not have, as the worker reports it.
    pub not_carried: Vec<NotCarried>,
    /// What can still reach the twin, as the keeper found it. Keepers of earlier releases do not check.
    #[serde(default)]
    pub can_reach: Vec<CanReach>,
}

/// A thread or process of the original from before a fork that the fork does not separate from the twin. It
/// can signal the twin, and read and write the twin's memory.
#[derive(
    Debug, Clone, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema, utoipa::ToSchema,
)]
pub struct CanReach {
    /// `thread` or `process`; `more` if the list was cut.
    pub what: String,
    /// The thread or process id in the session, and the name of the program.
    pub name: String,
}

/// An item that a fork leaves with the original.
#[derive(
    Debug, Clone, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema, utoipa::ToSchema,
)]
pub struct NotCarried {
    /// `thread`, `process`, `socket`, `pipe`, `gpu`, `descriptor`; `file`, which the copy of the workspace
    /// does not have; or `shared_memory`, which original and twin share after the fork.
    pub what: String,
    /// The name of the item, if it has one.
    pub name: String,
}

/// The keeper's reply to an attach that it accepts. The held events follow it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct AttachReply {
    pub link: u32,
    pub epoch: Epoch,
    /// The keeper's process id in the node's pid namespace. 0 if the keeper cannot know it; the node then
    /// asks the kernel.
    pub pid: u32,
    /// The keeper's last event.
    pub last: LinkSeq,
    /// The last command that the keeper has seen, from any node.
    pub command: CommandSeq,
    /// The newest turn that the keeper received.
    pub last_turn: TurnNo,
    /// The turn in flight.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub running: Option<TurnNo>,
    /// How long that turn has run, by a monotonic clock. Absent if the keeper is of an earlier release.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub running_ms: Option<u64>,
    /// Host tool calls of that turn without a complete result.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub calls: Vec<CallNo>,
    /// Number of workers that the keeper started after the first.
    pub restarts: u32,
    /// How the session's processes are held together.
    pub hold: Hold,
    /// Whether the keeper supports [`KeeperCommand::Fork`].
    #[serde(default)]
    pub forks: bool,
    /// Whether the keeper supports [`KeeperCommand::TurnFailed`].
    #[serde(default)]
    pub remembers_failed: bool,
    /// Whether the keeper passes on the context of a turn.
    #[serde(default)]
    pub takes_context: bool,
    /// The last turns that nodes reported with [`KeeperCommand::TurnFailed`].
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub failed: Vec<TurnNo>,
    /// The room for the session's next fork ([`crate::family`]). Absent if the keeper is of an earlier
    /// release, or if its session was started without a room.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub room: Option<PathBuf>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RefuseReason {
    /// A newer node has attached to this keeper.
    StaleEpoch,
    /// The first message is not an attach, or the attach has a second launch.
    BadAttach,
    /// The keeper has no launch, and this attach has none either. The keeper exits.
    NotLaunched,
}

/// How the keeper holds the processes of its session together.
#[derive(
    Debug,
    Clone,
    Copy,
    PartialEq,
    Eq,
    Serialize,
    Deserialize,
    schemars::JsonSchema,
    utoipa::ToSchema,
)]
#[serde(rename_all = "snake_case")]
pub enum Hold {
    /// The keeper is pid 1 of a pid namespace. When it exits, the kernel kills all processes in it.
    PidNamespace,
    /// The keeper is a subreaper below a guard process. The guard kills the processes that the keeper leaves.
    Subreaper,
}

/// What a keeper runs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Launch {
    pub session: SessionId,
    /// The worker's program and arguments.
    pub argv: Vec<String>,
    /// The worker's whole environment.
    pub env: Vec<(String, String)>,
    pub cwd: PathBuf,
    /// How long the keeper lives without a node.
    pub node_grace_ms: u64,
    /// How long a worker may take to send `worker_ready`.
    pub start_timeout_ms: u64,
    /// The sandbox's plan for the worker, as JSON text. Only the keeper and the worker's process read it.
    pub plan: String,
    /// The node's egress socket, which takes connections out of the sandbox.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub egress: Option<PathBuf>,
    /// The resource limits of the session.
    #[serde(default)]
    pub limits: Limits,
    /// The session's cgroups, which the node created. The worker joins each of them before it runs.
    #[serde(default)]
    pub cgroups: Vec<PathBuf>,
    /// Whether a connection to a zygote comes with this message as a descriptor. The zygote has the worker's
    /// program already loaded, and forks one worker over this connection. Without a zygote, or if it does not
    /// answer, the keeper executes the worker's program. Launches of older nodes do not have this field.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub from_zygote: bool,
    /// The path of the keeper's own socket, if the socket was renamed after it was created.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub socket: Option<PathBuf>,
    /// The session's first room: the directory for its forks ([`crate::family`]).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub family: Option<PathBuf>,
    /// A directory outside the workspace whose growth the session's disk limit limits too.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scratch: Option<PathBuf>,
}

/// What a keeper needs to start a pooled worker. A connection to a zygote comes with this message as a
/// descriptor.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Prepare {
    /// The part of the sandbox's plan that is needed before the worker is forked.
    pub shape: serde_json::Value,
    /// The plan for which the pooled worker builds its view of the file system in advance, if there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub plan: Option<String>,
    pub cgroups: Vec<PathBuf>,
}
