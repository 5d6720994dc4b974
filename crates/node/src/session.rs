//! One live session: its owner task ([`actor`]), its link to the keeper, its open turns. The rest
//! of the node talks to it through a [`Handle`], whose requests are served in the order sent.

pub(crate) mod actor;
mod alarm;
pub(crate) mod calls;
mod deadlines;
mod effects;
pub(crate) mod fork;
pub(crate) mod idle;
mod journal_side;
mod keeper_events;
mod keeper_link;
mod keeper_side;
mod leaving;
mod lifetime;
mod limits;
mod public_view;
mod receipts;
mod requests;
pub(crate) mod roots;
mod round;
pub(crate) mod start;
pub(crate) mod take_over;
mod turn_queue;
pub(crate) mod turns;
pub(crate) mod view;

use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::BoxFuture;
use tokio::sync::{mpsc, oneshot, watch};
use windlass_journal::SessionReader;
use windlass_protocol::host::Within;
use windlass_protocol::link::{ForkDone, ForkOrder};
use windlass_protocol::{ErrorCode, Seq, SessionId, TurnId, TurnNo, api};

use crate::failure::Failure;
use turns::Snapshot;
use windlass_egress::{Decision, Ledger, SessionOwner};
use windlass_tools::HostId;

/// Requests that may wait for a session's owner; a sender waits for room.
const INBOX_MAX: usize = 256;

/// The owner of a session, to what serves its connections.
#[derive(Debug)]
struct Inbox(mpsc::Sender<Request>);

impl SessionOwner for Inbox {
    fn report(&self, Decision { host, port, allowed, reason }: Decision) -> BoxFuture<'_, ()> {
        let request = Request::Egress { host, port, allowed, reason };
        Box::pin(async move { drop(self.0.send(request).await) })
    }

    fn gone(&self) -> BoxFuture<'_, ()> {
        Box::pin(self.0.closed())
    }
}

/// How late a timer may ring before it is taken that this node itself did not run: then what the worker or
/// the keeper had to do gets its time again, because the node may have asked for it only now.
const LATE: Duration = Duration::from_millis(500);

/// How the node reaches a live session.
#[derive(Debug, Clone)]
pub(crate) struct Handle {
    pub id: SessionId,
    inbox: mpsc::Sender<Request>,
    info: Arc<Mutex<api::Session>>,
    /// The last event that clients may see.
    pub seen: watch::Receiver<Seq>,
    pub reader: SessionReader,
    /// What it may reach and has reached for, where its policy is a list of hosts.
    pub egress: Option<Arc<Ledger>>,
    /// The first session of its family: itself, or what it was forked from, and so on.
    pub family: SessionId,
    /// Its first room for twins.
    pub room: Option<std::path::PathBuf>,
    /// Who is there beside those whose requests its owner serves.
    pub clients: idle::ClientPresence,
}

/// What the node can ask of a live session.
#[derive(Debug)]
pub(crate) enum Request {
    Submit(Submit),
    /// The turn as it is, or as it is once it ends or asks for input.
    Look {
        turn: Which,
        until: Until,
        reply: Reply<Snapshot>,
    },
    /// Interrupt this turn, or the running one.
    Interrupt {
        turn: Option<TurnId>,
        reply: Reply<Snapshot>,
    },
    Input {
        turn: TurnId,
        bytes: Bytes,
        eof: bool,
        reply: Reply<Snapshot>,
    },
    Reset {
        reply: Reply<()>,
    },
    /// Stay idle until `until` is over: a twin is about to be made.
    Hold {
        until: oneshot::Receiver<()>,
        reply: Reply<fork::Original>,
    },
    /// Have the worker fork.
    Fork {
        fork: Box<ForkOrder>,
        reply: Reply<ForkDone>,
    },
    Close {
        grace_ms: u64,
        reply: Reply<()>,
    },
    /// The code reached for a host, or tried to.
    Egress {
        host: String,
        port: u16,
        allowed: bool,
        reason: String,
    },
    /// A tool host answered a call, or a part of its answer came.
    ToolResult(calls::ResultPart),
    /// A tool host that was called by this session is gone.
    ToolHostGone {
        host: HostId,
    },
    /// The node stops and leaves the session to its keeper.
    Release {
        reply: oneshot::Sender<()>,
    },
}

impl Request {
    /// Whether a client asks. What the code's own connections and calls bring is no use of the session.
    fn is_of_client(&self) -> bool {
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
            | Self::Release { .. } => false,
        }
    }
}

#[derive(Debug)]
pub(crate) struct Submit {
    pub id: Option<TurnId>,
    pub code: Bytes,
    pub deadline_ms: Option<u64>,
    /// The host tool call in which it was submitted.
    pub within: Option<Within>,
    pub until: Until,
    /// The turn's number, as soon as it has one: whoever stops waiting asks by it.
    pub number: Arc<OnceLock<TurnNo>>,
    pub reply: Reply<Snapshot>,
}

/// A turn by either of its names.
#[derive(Debug, Clone)]
pub(crate) enum Which {
    Id(TurnId),
    Number(TurnNo),
}

/// When a reply about a turn is due.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Until {
    Now,
    /// It ended or asks for input.
    Settled,
}

pub(crate) type Reply<T> = oneshot::Sender<Result<T, Failure>>;

impl Handle {
    pub fn info(&self) -> api::Session {
        self.info.lock().expect("no holder of this lock can panic").clone()
    }

    /// Sends a request and waits for its answer. A session that ended meanwhile answers so.
    pub async fn ask<T>(&self, request: impl FnOnce(Reply<T>) -> Request) -> Result<T, Failure> {
        let (reply, answer) = oneshot::channel();
        self.send(request(reply)).await?;
        answer.await.unwrap_or_else(|_| Err(self.gone()))
    }

    pub async fn send(&self, request: Request) -> Result<(), Failure> {
        self.inbox.send(request).await.map_err(|_| self.gone())
    }

    /// Why its owner does not answer: the session has ended, or this node has let go of it, and the next node
    /// has it.
    pub fn gone(&self) -> Failure {
        let state = self.info.lock().expect("no holder of this lock can panic").state;
        match state {
            api::SessionState::Ended => {
                Failure::new(ErrorCode::SessionEnded, format!("session {} has ended", self.id))
            }
            _ => Failure::new(ErrorCode::ShuttingDown, "the node is about to stop"),
        }
    }
}
