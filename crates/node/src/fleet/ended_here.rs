//! Decides whether this node answers from its journal about a session that does not live here. The end of a session is a
//! fact of its journal, with two exceptions: a session that ended because this node was fenced, and one whose end no node
//! has seen. Other nodes tell such a session as lost if this node was lost meanwhile, and may have given its name away.
//! Then this node answers from the copy as they do, so that the answer never changes.

use windlass_journal::SessionFacts;
use windlass_protocol::api::Ended;
use windlass_protocol::event::EndReason;
use windlass_protocol::{ErrorCode, NodeName, SessionId};

use super::lost::LostSession;
use super::routes::OwnEntry;
use crate::context::Context;
use crate::failure::Failure;

/// What the journal of this node says about the end of a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum JournaledEnd {
    /// The journal has no session of this name.
    Missing,
    /// The session ended because this node was fenced.
    Fenced,
    /// The session ended before this start of the node, while a node ran.
    Earlier,
    /// The session ended after this start of the node.
    Recent,
    /// The session ended while no node ran, or the journal does not say how.
    Unattended,
}

/// Who answers about a session that no other node has.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum EndedSource {
    Journal,
    /// The session was lost.
    Copy(LostSession),
    /// The copy, if the session has ended and the copy is complete. Otherwise there is no such session.
    CopyOfEnded,
    /// The fleet has not decided yet what became of the session.
    Undecided,
}

impl JournaledEnd {
    pub fn of(context: &Context, session: &SessionId) -> Self {
        if !context.journal.has_session(session) {
            return Self::Missing;
        }
        match context.journal.session(session) {
            Ok(Some(SessionFacts { ended: Some(Ended { reason, .. }), last_at_ms, .. })) => {
                Self::told(reason, last_at_ms, context.identity.started_at_ms)
            }
            // The session was not taken over, or the index cannot be read.
            Ok(_) | Err(_) => Self::Unattended,
        }
    }

    fn told(reason: EndReason, ended_at_ms: u64, started_at_ms: u64) -> Self {
        match reason {
            EndReason::Fenced => Self::Fenced,
            // The next node writes these ends. Nobody knows whether the name was given away before.
            EndReason::KeeperLost | EndReason::NodeGone | EndReason::Lost => Self::Unattended,
            EndReason::Closed
            | EndReason::WorkerExited
            | EndReason::StartFailed
            | EndReason::WallTime
            | EndReason::Disk
            | EndReason::Idle
            | EndReason::ProtocolError => {
                if ended_at_ms < started_at_ms {
                    Self::Earlier
                } else {
                    Self::Recent
                }
            }
        }
    }

    /// Who answers, if this node has the entry or no node has one.
    pub fn source(self, entry: OwnEntry) -> EndedSource {
        match (self, entry) {
            // Without the journal, this node has a new disk.
            (Self::Missing | Self::Fenced | Self::Unattended, OwnEntry::Lost(lost)) => {
                EndedSource::Copy(lost)
            }
            // A new disk, or the retention has removed the session.
            (Self::Missing, OwnEntry::Over) => EndedSource::CopyOfEnded,
            // The node has not begun its next generation. From then on the entry is one of a lost session.
            (Self::Fenced, OwnEntry::Live) => EndedSource::Undecided,
            (_, OwnEntry::Live | OwnEntry::Over | OwnEntry::Lost(_)) => EndedSource::Journal,
        }
    }

    /// Whether the journal answers while the directory does not. A node that has not reached the store since it started
    /// answers only requests that read: it does not know whether the name has a new session.
    pub fn answers_alone(self, has_joined: bool, only_reads: bool) -> bool {
        match self {
            Self::Missing | Self::Fenced => false,
            Self::Earlier => has_joined || only_reads,
            Self::Recent | Self::Unattended => has_joined,
        }
    }
}

/// The refusal of a request about a session that a node has ended because it was fenced.
pub(super) fn undecided(node: &NodeName, session: &SessionId) -> Failure {
    let message = format!(
        "node {node} had no contact with its fleet for too long and has ended session {session}; it has not joined the \
         fleet again, which says what became of the session"
    );
    Failure::new(ErrorCode::FleetUnavailable, message)
}

#[cfg(test)]
mod tests {
    use windlass_protocol::Revision;

    use super::*;

    #[test]
    fn only_ends_that_a_running_node_wrote_before_this_start_are_earlier() {
        for (reason, ended_at_ms, expected) in [
            (EndReason::Closed, 99, JournaledEnd::Earlier),
            (EndReason::Closed, 100, JournaledEnd::Recent),
            (EndReason::WorkerExited, 99, JournaledEnd::Earlier),
            (EndReason::Idle, 101, JournaledEnd::Recent),
            (EndReason::KeeperLost, 99, JournaledEnd::Unattended),
            (EndReason::NodeGone, 101, JournaledEnd::Unattended),
            (EndReason::Fenced, 99, JournaledEnd::Fenced),
            (EndReason::Fenced, 101, JournaledEnd::Fenced),
        ] {
            let found = JournaledEnd::told(reason, ended_at_ms, 100);
            assert_eq!(found, expected, "{reason:?} at {ended_at_ms}");
        }
    }

    #[test]
    fn the_directory_decides_about_a_session_that_the_fence_ended() {
        let lost = || LostSession {
            session: SessionId::parse("s1").unwrap(),
            node: NodeName::parse("n1").unwrap(),
            incarnation: Revision(7),
        };
        let copy = || EndedSource::Copy(lost());
        for (end, entry, expected) in [
            (JournaledEnd::Missing, OwnEntry::Lost(lost()), copy()),
            (JournaledEnd::Missing, OwnEntry::Live, EndedSource::Journal),
            (JournaledEnd::Missing, OwnEntry::Over, EndedSource::CopyOfEnded),
            (JournaledEnd::Fenced, OwnEntry::Lost(lost()), copy()),
            (JournaledEnd::Fenced, OwnEntry::Live, EndedSource::Undecided),
            (JournaledEnd::Fenced, OwnEntry::Over, EndedSource::Journal),
            (JournaledEnd::Earlier, OwnEntry::Lost(lost()), EndedSource::Journal),
            (JournaledEnd::Recent, OwnEntry::Lost(lost()), EndedSource::Journal),
            (JournaledEnd::Recent, OwnEntry::Live, EndedSource::Journal),
            (JournaledEnd::Unattended, OwnEntry::Lost(lost()), copy()),
            (JournaledEnd::Unattended, OwnEntry::Live, EndedSource::Journal),
            (JournaledEnd::Unattended, OwnEntry::Over, EndedSource::Journal),
        ] {
            let what = format!("{end:?} {entry:?}");
            assert_eq!(end.source(entry), expected, "{what}");
        }
    }

    #[test]
    fn without_the_directory_no_node_speaks_for_a_session_that_the_fence_ended() {
        for (end, has_joined, only_reads, expected) in [
            (JournaledEnd::Missing, true, true, false),
            (JournaledEnd::Fenced, true, true, false),
            (JournaledEnd::Fenced, false, true, false),
            (JournaledEnd::Earlier, false, true, true),
            (JournaledEnd::Earlier, false, false, false),
            (JournaledEnd::Earlier, true, false, true),
            (JournaledEnd::Recent, false, true, false),
            (JournaledEnd::Recent, true, false, true),
            (JournaledEnd::Unattended, false, true, false),
            (JournaledEnd::Unattended, true, false, true),
        ] {
            let found = end.answers_alone(has_joined, only_reads);
            assert_eq!(found, expected, "{end:?} {has_joined} {only_reads}");
        }
    }
}
