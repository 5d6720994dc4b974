//! The link: what node and keeper say to each other over the keeper's unix socket, in frames.
//!
//! Events are numbered by the keeper ([`LinkSeq`]) and held until acknowledged; commands are
//! numbered by the node ([`CommandSeq`]) and done once. All frames of one chunked command carry
//! one number, and it counts as seen when the last of them came. The logic is in
//! `windlass_lifecycle::link`; these are only its words.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::event::EventKind;
use crate::policy::Limits;
use crate::{CallNo, Epoch, ErrorCode, LinkSeq, SessionId, TurnNo};

/// The link's version. A node attaches to keepers of its own and the previous version.
pub const LINK: u32 = 1;

/// A command's place in what nodes have told one keeper, from 1; it goes on across nodes.
#[derive(
    Debug, Clone, Copy, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize,
)]
#[serde(transparent)]
pub struct CommandSeq(pub u64);

/// Node to keeper.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum ToKeeper {
    /// Always first, but for a prepare. The keeper answers `attached` or `refused`.
    Attach {
        link: u32,
        epoch: Epoch,
        /// Everything up to here is in the node's journal.
        after: LinkSeq,
        /// What to run: from the node that started the keeper, and only the first time.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        launch: Option<Box<Launch>>,
    },
    /// Before an attach: have a worker waiting for a session that is still to come. The keeper answers
    /// `prepared`, and ends if this connection does before a node attaches, here or on another.
    Prepare(Box<Prepare>),
    /// A part of a message that is too long for one header: an attach with its launch, or a prepare.
    /// The bodies of all its parts, in order, are its JSON text ([`crate::parts`]).
    Part {
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        more: bool,
    },
    /// Everything up to here is in the node's journal.
    Ack { after: LinkSeq },
    /// Do this, once.
    Command {
        command: CommandSeq,
        after: LinkSeq,
        #[serde(flatten)]
        act: KeeperCommand,
    },
}

/// What a node can have a keeper do.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "act", rename_all = "snake_case")]
pub enum KeeperCommand {
    /// Give the worker this turn; the body is the code.
    TurnStart {
        turn: TurnNo,
        #[serde(default)]
        more: bool,
    },
    /// Hold the body as input for the running turn and give it to the worker when it asks.
    TurnInput {
        turn: TurnNo,
        #[serde(default)]
        more: bool,
        #[serde(default)]
        eof: bool,
    },
    /// Interrupt the turn, if it is the running one.
    Interrupt { turn: TurnNo },
    /// Pass the body on to the worker as part of a call's answer. Each part is a command of its
    /// own, so that an interrupt never waits behind a large answer.
    ToolResult {
        turn: TurnNo,
        call: CallNo,
        ok: bool,
        /// The call's answer goes on in a later command.
        #[serde(default)]
        more: bool,
    },
    /// Have the idle worker fork a twin of itself, and start a keeper for it.
    Fork(Box<ForkOrder>),
    /// Remember that this turn has failed, because the node's disk is full: its end is told to clients and may
    /// not be in the journal when the node dies. Only for a keeper that says [`AttachReply::remembers_failed`].
    TurnFailed { turn: TurnNo },
    /// End the worker and everything below it, then start a fresh one. A connection to a zygote may
    /// come with it, as with a launch.
    Restart,
    /// End the worker and everything below it, then exit.
    Shutdown { grace_ms: u64 },
}

/// Keeper to node.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum FromKeeper {
    Attached(Box<AttachReply>),
    /// A worker waits.
    Prepared {
        /// The keeper's process id, as the node sees it.
        pid: u32,
    },
    /// The attach was not accepted; the keeper closes the connection.
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
    /// The last command seen, where no event says so soon.
    Seen {
        command: CommandSeq,
    },
    /// What became of a fork. Said once: a node that comes later does not know of the fork, and its
    /// keeper ends for want of one.
    Forked {
        session: SessionId,
        #[serde(flatten)]
        end: ForkEnd,
    },
}

/// A twin to be made of a session. What it runs is what the original does, which its keeper knows.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ForkOrder {
    pub session: SessionId,
    /// Where the twin's keeper is to listen.
    pub socket: PathBuf,
    /// Where the places are, for the twin (`t`) and for what the original forks later (`o`): see
    /// [`crate::family`].
    pub room: PathBuf,
    /// The twin's cgroups.
    #[serde(default)]
    pub cgroups: Vec<PathBuf>,
}

/// What became of a fork.
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

/// What is said of a twin beyond that there is one.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ForkDone {
    /// By the word of the worker.
    pub not_carried: Vec<NotCarried>,
    /// By what the keeper has seen. Keepers of earlier releases do not look.
    #[serde(default)]
    pub can_reach: Vec<CanReach>,
}

/// Something of the original from before a fork that the fork does not keep from the twin: it could
/// signal the twin, and read and write the twin's memory.
#[derive(
    Debug, Clone, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema, utoipa::ToSchema,
)]
pub struct CanReach {
    /// `thread` or `process`; `more` where the list was cut off.
    pub what: String,
    /// Its number in the session, and the name of its program.
    pub name: String,
}

/// Something that a fork leaves with the original.
#[derive(
    Debug, Clone, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema, utoipa::ToSchema,
)]
pub struct NotCarried {
    /// `thread`, `process`, `socket`, `pipe`, `gpu`, `descriptor`; `file`, which the copy of the
    /// workspace does not have; or `shared_memory`, which both have in common from then on.
    pub what: String,
    /// Its name, as far as it has one.
    pub name: String,
}

/// The keeper's answer to an attach it accepts; held events follow it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct AttachReply {
    pub link: u32,
    pub epoch: Epoch,
    /// The keeper's process id, as the node sees it; 0 where the keeper cannot know it, and the
    /// node asks the kernel.
    pub pid: u32,
    /// The last event the keeper has made.
    pub last: LinkSeq,
    /// The last command it has seen, from any node.
    pub command: CommandSeq,
    /// The newest turn that it was given.
    pub last_turn: TurnNo,
    /// The turn in flight.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub running: Option<TurnNo>,
    /// How long that turn has run, by a clock that nobody sets. Absent where the keeper is of a release
    /// that does not say.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub running_ms: Option<u64>,
    /// Host tool calls of that turn that were not answered to their end.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub calls: Vec<CallNo>,
    /// Fresh workers it has started after the first.
    pub restarts: u32,
    /// How the session's processes are held together.
    pub hold: Hold,
    /// Whether it knows [`KeeperCommand::Fork`].
    #[serde(default)]
    pub forks: bool,
    /// Whether it knows [`KeeperCommand::TurnFailed`].
    #[serde(default)]
    pub remembers_failed: bool,
    /// The last turns that nodes told to have failed.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub failed: Vec<TurnNo>,
    /// The room in which the next twin's place is to be made ([`crate::family`]). Absent where the
    /// keeper is of a release that does not say, or its session was started without a room.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub room: Option<PathBuf>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RefuseReason {
    /// A newer node has this keeper.
    StaleEpoch,
    /// The first message was not an attach, or a second launch came.
    BadAttach,
    /// It was never told what it keeps, and this attach does not say so either. The keeper ends.
    NotLaunched,
}

/// How the keeper holds its process tree.
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
    /// The keeper is pid 1 of a pid namespace: the kernel ends everything with it.
    PidNamespace,
    /// The keeper is a subreaper below a guard that ends what the keeper leaves.
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
    /// How long the keeper stays without a node.
    pub node_grace_ms: u64,
    /// How long a worker may take to say `worker_ready`.
    pub start_timeout_ms: u64,
    /// How the worker is confined: the sandbox's plan as JSON text, which only the keeper and the
    /// worker's process read.
    pub plan: String,
    /// Where connections out of the sandbox go: the node's socket for them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub egress: Option<PathBuf>,
    /// What the session may use.
    #[serde(default)]
    pub limits: Limits,
    /// The session's cgroups, made by the node: the worker joins each before it runs.
    #[serde(default)]
    pub cgroups: Vec<PathBuf>,
    /// A connection to a zygote comes with this message, as a descriptor: the zygote has what the
    /// worker's program would load, and forks one worker for it. Absent, and in a launch of an older
    /// node, the worker's program is run; so it is if the zygote does not answer.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub from_zygote: bool,
    /// The keeper's own socket, where it was given another name since it was made.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub socket: Option<PathBuf>,
    /// Where the places of its twins are made ([`crate::family`]).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub family: Option<PathBuf>,
}

/// What a keeper needs to have a worker waiting. A connection to a zygote comes with it, as a
/// descriptor.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Prepare {
    /// What must be known of the worker before it is forked; the sandbox's, as in the plan.
    pub shape: serde_json::Value,
    /// The plan whose view it builds while it waits, where there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub plan: Option<String>,
    pub cgroups: Vec<PathBuf>,
}
