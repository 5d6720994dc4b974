//! What a node reports of its sessions: facts of journal records, without code, output, arguments or messages.

use std::sync::Arc;

use windlass_protocol::event::{EndReason, EventKind, StartedBy, Usage};
use windlass_protocol::{CallNo, ErrorCode, Outcome, TurnId, TurnNo};

use crate::{SessionIdentity, TraceParent};

/// Facts of one session, in the order of its journal, each with its time.
#[derive(Debug, Clone)]
pub struct SessionReport {
    pub session: Arc<SessionIdentity>,
    pub facts: Vec<(u64, Fact)>,
}

/// Something that begins or ends a span.
#[derive(Debug, Clone, PartialEq)]
pub enum Fact {
    WorkerReady {
        start: StartedBy,
        restarts: u32,
    },
    TurnAccepted {
        turn: TurnNo,
        id: TurnId,
        /// The client's span.
        parent: Option<TraceParent>,
    },
    ToolCall {
        turn: TurnNo,
        call: CallNo,
        name: String,
    },
    ToolEnded {
        turn: TurnNo,
        call: CallNo,
        ok: bool,
        code: Option<ErrorCode>,
        bytes: u64,
        wall_ms: f64,
    },
    Egress {
        turn: Option<TurnNo>,
        host: String,
        port: u16,
        allowed: bool,
    },
    TurnEnded {
        turn: TurnNo,
        outcome: Outcome,
        code: Option<ErrorCode>,
        usage: Usage,
    },
    SessionEnded {
        reason: EndReason,
    },
    /// A client has transferred a file.
    File(Box<FileTransfer>),
    /// Another node has the session from now on.
    Released,
}

/// The transfer of a file by a client.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FileTransfer {
    pub direction: FileDirection,
    /// In the workspace.
    pub path: String,
    /// Bytes of the file; absent if the transfer failed.
    pub bytes: Option<u64>,
    pub began_at_ms: u64,
    /// The client's span.
    pub parent: Option<TraceParent>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FileDirection {
    Download,
    Upload,
}

impl Fact {
    /// What a journal record says. `parent` is the client's span of a turn.
    pub fn of(
        turn: Option<TurnNo>,
        kind: &EventKind,
        parent: impl FnOnce(TurnNo) -> Option<TraceParent>,
    ) -> Option<Self> {
        match kind {
            EventKind::WorkerReady { start, restarts, .. } => {
                Some(Self::WorkerReady { start: *start, restarts: *restarts })
            }
            // Further events of the turn carry the rest of its code.
            EventKind::TurnAccepted { id, more: false, .. } => {
                let turn = turn?;
                Some(Self::TurnAccepted { turn, id: id.clone(), parent: parent(turn) })
            }
            EventKind::ToolCall { call, name, offset: 0, .. } => {
                Some(Self::ToolCall { turn: turn?, call: *call, name: name.clone() })
            }
            EventKind::ToolEnded { call, ok, code, bytes, wall_ms } => {
                let (turn, call, wall_ms) = (turn?, *call, *wall_ms);
                Some(Self::ToolEnded { turn, call, ok: *ok, code: *code, bytes: *bytes, wall_ms })
            }
            EventKind::Egress { host, port, allowed, .. } => {
                let (host, port, allowed) = (host.clone(), *port, *allowed);
                Some(Self::Egress { turn, host, port, allowed })
            }
            EventKind::TurnEnded { outcome, error, usage, .. } => {
                let code = error.as_ref().and_then(|error| error.code);
                Some(Self::TurnEnded { turn: turn?, outcome: *outcome, code, usage: *usage })
            }
            EventKind::SessionEnded { reason, .. } => Some(Self::SessionEnded { reason: *reason }),
            _ => None,
        }
    }
}
