//! One live session: its owner task ([`actor`]), its link to the keeper, its open turns. The rest
//! of the node sends requests through a [`SessionHandle`]. The owner serves them in the order sent.

pub(crate) mod actor;
mod alarm;
mod branch;
pub(crate) mod calls;
pub(crate) mod children;
mod copying;
mod deadlines;
mod effects;
pub(crate) mod fork;
pub(crate) mod idle;
pub(crate) mod ids;
mod journal_side;
mod keeper_events;
mod keeper_link;
mod keeper_side;
mod leaving;
mod lifetime;
mod limits;
pub(crate) mod output_ends;
mod preparing;
mod public_view;
pub(crate) mod receipts;
mod refusals;
mod requests;
mod round;
pub(crate) mod spec;
pub(crate) mod start;
pub(crate) mod take_over;
mod trace;
mod turn_queue;
pub(crate) mod turns;
pub(crate) mod writable_roots;

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::BoxFuture;
use tokio::sync::{mpsc, oneshot, watch};
use windlass_journal::SessionReader;
use windlass_protocol::api::Durability;
use windlass_protocol::host::Within;
use windlass_protocol::link::{ForkDone, ForkOrder};
use windlass_protocol::turn::TurnContext;
use windlass_protocol::{CallNo, ErrorCode, Seq, SessionId, TurnId, TurnNo, api};

use crate::audit::AuditNote;
use crate::failure::Failure;
use crate::metrics::{EgressMetrics, kind_label};
use crate::tenant_usage::MeasuredCgroups;
use turns::Snapshot;
use windlass_egress::{Decision, DecisionSink, Ledger};
use windlass_telemetry::{FileTransfer, TraceParent};
use windlass_tools::HostId;

/// Maximum number of requests in an owner's inbox. A sender waits while the inbox is full.
const INBOX_MAX: usize = 256;

/// Through this the egress proxy reports its decisions to a session's owner.
#[derive(Debug)]
struct OwnerInbox {
    inbox: mpsc::Sender<Request>,
    decisions: EgressMetrics,
}

impl DecisionSink for OwnerInbox {
    fn report(&self, Decision { host, port, allowed, reason }: Decision) -> BoxFuture<'_, ()> {
        let request = Request::Egress { host, port, allowed, reason };
        Box::pin(async move { drop(self.inbox.send(request).await) })
    }

    fn count(&self, allowed: bool) {
        self.decisions.count(allowed);
    }

    fn gone(&self) -> BoxFuture<'_, ()> {
        Box::pin(self.inbox.closed())
    }
}

/// A timer that rings later than this shows that the node itself was stopped (SIGSTOP, suspend). The worker
/// or the keeper then gets its whole time again, because the node may have sent its request only now.
const LATE: Duration = Duration::from_millis(500);

/// How the node reaches a live session.
#[derive(Debug, Clone)]
pub(crate) struct SessionHandle {
    pub id: SessionId,
    inbox: mpsc::Sender<Request>,
    info: Arc<public_view::PublicInfo>,
    /// The number of the last event that clients may see.
    pub seen: watch::Receiver<Seq>,
    pub reader: SessionReader,
    /// The allowed hosts and the connections so far, if the policy is a list of hosts.
    pub egress: Option<Arc<Ledger>>,
    /// The first session of the family: this session, if it is not a twin.
    pub family: SessionId,
    /// The session's first room, in which its twins' directories are made (`windlass_protocol::family`).
    pub room: Option<std::path::PathBuf>,
    /// The session whose child this session is.
    pub parent: Option<SessionId>,
    /// When acceptance and end of its turns are told.
    pub durability: Durability,
    /// Clients that are connected without a request in the inbox.
    pub clients: idle::ClientPresence,
    /// The cgroups of its processes.
    pub cgroups: Arc<MeasuredCgroups>,
}

/// What the metrics count of a session at one moment.
#[derive(Debug, Clone, Copy)]
pub(crate) struct SessionLoad {
    /// The label of the kind of worker.
    pub kind: &'static str,
    pub state: api::SessionState,
    pub waiting_turns: usize,
    pub waiting_requests: usize,
}

/// Input of a client for a running turn.
#[derive(Debug)]
pub(crate) struct InputRequest {
    pub bytes: Bytes,
    pub eof: bool,
    /// The bytes were typed at a terminal.
    pub keys: bool,
}

/// What the node can ask of a live session.
#[derive(Debug)]
pub(crate) enum Request {
    Submit(SubmitRequest),
    /// Get a turn's snapshot: now, or when the turn ends or asks for input.
    Look {
        turn: TurnRef,
        until: Until,
        reply: ReplySender<Snapshot>,
    },
    /// Interrupt this turn, or the running one.
    Interrupt {
        turn: Option<TurnId>,
        reply: ReplySender<Snapshot>,
    },
    Input {
        turn: TurnId,
        input: InputRequest,
        reply: ReplySender<Snapshot>,
    },
    Reset {
        reply: ReplySender<()>,
    },
    /// Start no turn until the sender of `until` is dropped: a twin is about to be made.
    Hold {
        until: oneshot::Receiver<()>,
        reply: ReplySender<fork::HeldOriginal>,
    },
    /// Have the worker fork.
    Fork {
        fork: Box<ForkOrder>,
        reply: ReplySender<ForkDone>,
    },
    Close {
        grace_ms: u64,
        reply: ReplySender<()>,
    },
    /// End the session, because the node has lost its lease in the fleet.
    Fence {
        reply: ReplySender<()>,
    },
    /// The egress proxy allowed or refused a connection.
    Egress {
        host: String,
        port: u16,
        allowed: bool,
        reason: String,
    },
    /// A tool host sent the answer to a call, or a part of the answer.
    ToolResult(calls::ResultPart),
    /// A tool host that this session has called has disconnected.
    ToolHostGone {
        host: HostId,
    },
    /// The session's turn holds the conversation for which its call waited.
    ClaimGranted {
        turn: TurnNo,
        call: CallNo,
        changed: bool,
    },
    /// The MCP door has answered a request of the session's agent.
    DoorAnswer {
        turn: TurnNo,
        call: CallNo,
        body: Bytes,
    },
    /// A client has transferred a file. Only on a node with telemetry.
    Transferred(Box<FileTransfer>),
    /// The node stops and leaves the session to its keeper.
    Release {
        reply: oneshot::Sender<()>,
    },
}

impl Request {
    /// Whether a client sent this request. Only such a request restarts the idle timeout; connections and
    /// tool calls of the session's own code do not.
    fn is_from_client(&self) -> bool {
        match self {
            Self::Submit(_)
            | Self::Look { .. }
            | Self::Interrupt { .. }
            | Self::Input { .. }
            | Self::Reset { .. }
            | Self::Hold { .. }
            | Self::Fork { .. }
            | Self::Close { .. } => true,
            Self::Egress { .. }
            | Self::ToolResult(_)
            | Self::ToolHostGone { .. }
            | Self::ClaimGranted { .. }
            | Self::DoorAnswer { .. }
            | Self::Transferred(_)
            | Self::Fence { .. }
            | Self::Release { .. } => false,
        }
    }
}

#[derive(Debug)]
pub(crate) struct SubmitRequest {
    pub id: Option<TurnId>,
    pub code: Bytes,
    pub deadline_ms: Option<u64>,
    pub context: Option<Box<TurnContext>>,
    /// The host tool call during which the turn was submitted.
    pub within: Option<Within>,
    /// The client's span. Only on a node with telemetry.
    pub trace: Option<TraceParent>,
    pub until: Until,
    /// Set as soon as the turn has a number. A caller that stops waiting for the reply uses the number to ask
    /// again.
    pub number: Arc<OnceLock<TurnNo>>,
    /// Recorded when the turn is accepted.
    pub note: AuditNote,
    pub reply: ReplySender<Snapshot>,
}

/// A turn by its id or by its number.
#[derive(Debug, Clone)]
pub(crate) enum TurnRef {
    Id(TurnId),
    Number(TurnNo),
}

/// When a reply about a turn is due.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Until {
    Now,
    /// When the turn has ended or asks for input.
    Settled,
}

pub(crate) type ReplySender<T> = oneshot::Sender<Result<T, Failure>>;

/// Sends a reply. The receiver may be gone, which is no error.
fn answer<T>(reply: ReplySender<T>, value: Result<T, Failure>) {
    let _ = reply.send(value);
}

impl SessionHandle {
    pub fn info(&self) -> api::Session {
        self.info.session().clone()
    }

    /// The session as a row of the overview, without its node and without figures of use.
    pub fn row(&self) -> api::SessionRow {
        self.info.row()
    }

    pub fn state(&self) -> api::SessionState {
        self.info.session().state
    }

    /// What the metrics count of the session now.
    pub fn load(&self) -> SessionLoad {
        let info = self.info.session();
        SessionLoad {
            kind: kind_label(&info.kind),
            state: info.state,
            waiting_turns: info.waiting,
            waiting_requests: self.inbox.max_capacity() - self.inbox.capacity(),
        }
    }

    /// Whether the session has ended. It stays listed until its end is written.
    pub fn has_ended(&self) -> bool {
        self.state() == api::SessionState::Ended
    }

    /// Sends a request and waits for its answer. Fails with `session_ended` if the session ends first.
    pub async fn ask<T>(
        &self,
        request: impl FnOnce(ReplySender<T>) -> Request,
    ) -> Result<T, Failure> {
        let (reply, answer) = oneshot::channel();
        self.send(request(reply)).await?;
        answer.await.unwrap_or_else(|_| Err(self.gone()))
    }

    pub async fn send(&self, request: Request) -> Result<(), Failure> {
        self.inbox.send(request).await.map_err(|_| self.gone())
    }

    /// Sends a request that nothing depends on: it is dropped if the inbox is full.
    pub fn try_send(&self, request: Request) {
        drop(self.inbox.try_send(request));
    }

    /// Why the owner does not answer: the session has ended, or this node stops and leaves the session to the
    /// next node.
    pub fn gone(&self) -> Failure {
        match self.state() {
            api::SessionState::Ended => {
                Failure::new(ErrorCode::SessionEnded, format!("session {} has ended", self.id))
            }
            _ => Failure::new(ErrorCode::ShuttingDown, "the node is about to stop"),
        }
    }
}
