//! Receipts: what a loss cost, in words for whoever has to set things up again.

use windlass_protocol::SessionId;
use windlass_protocol::event::{EndReason, Receipt};

/// A turn was stopped in time, and the session goes on as it was.
pub(super) fn state_kept(session: &SessionId) -> Receipt {
    let mut kept = kept(session);
    kept.insert(0, "variables, imports and open files of the worker".into());
    Receipt { kept, lost: Vec::new() }
}

/// A worker was lost, and the session goes on with a fresh one.
pub(super) fn state_lost(session: &SessionId) -> Receipt {
    Receipt {
        kept: kept(session),
        lost: vec![
            "variables, imports and open files of the worker".into(),
            "processes that the worker started".into(),
        ],
    }
}

/// What a session's end cost; nothing that its client did not ask for, when a client closed it.
pub(super) fn session_ended(session: &SessionId, reason: EndReason) -> Option<Receipt> {
    match reason {
        EndReason::Closed => None,
        EndReason::WorkerExited
        | EndReason::StartFailed
        | EndReason::WallTime
        | EndReason::ProtocolError
        | EndReason::KeeperLost
        | EndReason::NodeGone => Some(Receipt {
            kept: kept(session),
            lost: vec![
                "variables, imports and open files of the worker".into(),
                "processes that the worker started".into(),
                "output that the keeper had not passed on".into(),
            ],
        }),
    }
}

fn kept(session: &SessionId) -> Vec<String> {
    vec![
        "files in the workspace".into(),
        format!("output so far, at GET /v1/sessions/{session}/output"),
    ]
}
