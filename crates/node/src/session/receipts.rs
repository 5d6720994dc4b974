//! Receipts: what a loss cost and what is kept, in words for the person or agent that goes on from there.

use windlass_journal::Journal;
use windlass_protocol::event::{EndReason, Receipt, output_kept};
use windlass_protocol::{Seq, SessionId};

use crate::disk::is_kept_after;

const WORKSPACE_FILES: &str = "files in the workspace";

/// For a turn that was stopped in time. The session keeps its state.
pub(super) fn state_kept(session: &SessionId) -> Receipt {
    let mut kept = kept(session);
    kept.insert(0, "variables, imports and open files of the worker".into());
    Receipt { kept, lost: Vec::new() }
}

/// For a lost worker. The session goes on with a fresh one.
pub(super) fn state_lost(session: &SessionId) -> Receipt {
    Receipt {
        kept: kept(session),
        lost: vec![
            "variables, imports and open files of the worker".into(),
            "processes that the worker started".into(),
        ],
    }
}

/// For a turn that was lost before a worker could run it.
pub(super) fn never_run(session: &SessionId) -> Receipt {
    Receipt { kept: kept(session), lost: vec!["this turn, which did not run".into()] }
}

/// Whether a session's workspace is kept when the session ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum WorkspaceFate {
    Stays,
    /// It is a twin's copy, which is removed.
    Goes,
}

impl WorkspaceFate {
    /// For a session that was forked from `original` (if any), made at `made_at_ms`, and ends for `reason`.
    pub fn of(
        journal: &Journal,
        original: Option<SessionId>,
        made_at_ms: u64,
        reason: EndReason,
    ) -> Self {
        let stays =
            original.is_none_or(|original| is_kept_after(journal, reason, original, made_at_ms));
        if stays { Self::Stays } else { Self::Goes }
    }
}

/// For the end of a session. None if a client closed the session: the client asked for the loss.
pub(super) fn session_ended(
    session: &SessionId,
    reason: EndReason,
    workspace: WorkspaceFate,
) -> Option<Receipt> {
    let mut receipt = receipt_of_end(session, reason)?;
    if workspace == WorkspaceFate::Goes {
        receipt.kept.retain(|kept| kept != WORKSPACE_FILES);
        receipt.lost.push("files in the twin's copy of the workspace".into());
    }
    Some(receipt)
}

fn receipt_of_end(session: &SessionId, reason: EndReason) -> Option<Receipt> {
    match reason {
        EndReason::Closed => None,
        EndReason::WorkerExited
        | EndReason::StartFailed
        | EndReason::WallTime
        | EndReason::Disk
        | EndReason::Idle
        | EndReason::ProtocolError
        | EndReason::KeeperLost
        | EndReason::NodeGone
        | EndReason::Fenced
        | EndReason::Lost => Some(Receipt { kept: kept(session), lost: lost_with_keeper() }),
    }
}

/// For a session that was lost with its node. The fleet has a copy of its events up to `copied`, if it has any.
pub(crate) fn lost_with_node(session: &SessionId, copied: Option<Seq>) -> Receipt {
    let mut lost = lost_with_keeper();
    let kept = match copied {
        Some(last) => {
            lost.push(format!("events after event {last}"));
            vec![format!("the transcript up to event {last}, at GET /v1/sessions/{session}/events")]
        }
        None => {
            lost.push("all events".into());
            Vec::new()
        }
    };
    lost.push(format!("{WORKSPACE_FILES}, unless the node's machine comes back"));
    Receipt { kept, lost }
}

fn lost_with_keeper() -> Vec<String> {
    vec![
        "variables, imports and open files of the worker".into(),
        "processes that the worker started".into(),
        "output that the keeper had not passed on".into(),
    ]
}

fn kept(session: &SessionId) -> Vec<String> {
    vec![WORKSPACE_FILES.into(), output_kept(session)]
}
