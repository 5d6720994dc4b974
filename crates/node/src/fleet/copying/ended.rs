//! Copies the sessions further that had ended before this node joined its fleet, and whose copy stopped before the end:
//! the store was away, or the node stopped. The oldest session comes first. At most a few sessions are copied at a time,
//! with one batch each. A session that the retention removes is left as it is.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures_util::future::join_all;
use windlass_fleet::copies::{CopyProgress, EventCopyError, SessionCopy};
use windlass_fleet::directory::FoundEntry;
use windlass_fleet::store::FleetStoreError;
use windlass_journal::{EndedSession, Journal};
use windlass_lifecycle::fleet::SessionFate;
use windlass_protocol::fleet::EntryState;
use windlass_protocol::{NodeName, Revision, SessionId};

use super::{COPIES_KEPT, JournalEvents, PAUSE, back_off};
use crate::clock::now_ms;
use crate::context::Context;
use crate::fleet::{FleetNode, JoinedFleet};

/// Maximum number of ended sessions that are copied at the same time. Live sessions have most of the batches.
const ENDED_AT_ONCE: usize = 2;

/// The ended sessions that are left to copy.
struct EndedCopies<'a> {
    fleet: &'a Arc<FleetNode>,
    joined: &'a Arc<JoinedFleet>,
    journal: &'a Journal,
    left: Mutex<VecDeque<SessionId>>,
}

/// Copies all ended sessions to their end, as long as the node stays joined.
pub(in crate::fleet) async fn copy_ended(context: Arc<Context>, joined: Arc<JoinedFleet>) {
    let Some(fleet) = context.fleet() else { return };
    let journal = context.journal.clone();
    let ended = match tokio::task::spawn_blocking(move || journal.ended()).await {
        Ok(Ok((ended, _))) => ended,
        Ok(Err(error)) => {
            tracing::warn!(%error, "the ended sessions are not copied further: they cannot be listed");
            return;
        }
        // The node stops.
        Err(_) => return,
    };
    let copies = EndedCopies {
        fleet,
        joined: &joined,
        journal: &context.journal,
        left: Mutex::new(due(&ended, now_ms(), COPIES_KEPT)),
    };
    join_all((0..ENDED_AT_ONCE).map(|_| copies.copy_all())).await;
}

/// The ended sessions whose events the store does not remove yet, the oldest first.
fn due(ended: &[EndedSession], now_ms: u64, kept: Duration) -> VecDeque<SessionId> {
    let kept_ms = u64::try_from(kept.as_millis()).unwrap_or(u64::MAX);
    let is_kept = |session: &&EndedSession| now_ms.saturating_sub(session.ended_at_ms) < kept_ms;
    let mut due: Vec<&EndedSession> = ended.iter().filter(is_kept).collect();
    due.sort_by_key(|session| session.ended_at_ms);
    due.into_iter().map(|session| session.id.clone()).collect()
}

/// The incarnation of a session whose copy is this node's to complete. A copy of a lost session stays as it was told.
fn incarnation_of(found: Option<FoundEntry>, node: &NodeName) -> Option<Revision> {
    let FoundEntry { entry, revision, fate } = found?;
    if entry.owner != *node {
        return None;
    }
    match (fate, entry.state) {
        // The directory does not know the end yet.
        (SessionFate::Live, _) => Some(revision),
        (SessionFate::Ended, EntryState::Ended { incarnation }) => incarnation,
        (SessionFate::Ended | SessionFate::Lost, _) => None,
    }
}

impl EndedCopies<'_> {
    async fn copy_all(&self) {
        while let Some(session) = self.next() {
            // A session that has ended a moment ago may still have the task of its live time.
            if self.fleet.watermark(&session).is_none() {
                self.copy(session).await;
            }
        }
    }

    fn next(&self) -> Option<SessionId> {
        self.left.lock().unwrap_or_else(PoisonError::into_inner).pop_front()
    }

    async fn copy(&self, session: SessionId) {
        let Some(incarnation) = self.incarnation(&session).await else { return };
        let (journal, id) = (self.journal.clone(), session.clone());
        let reader = tokio::task::spawn_blocking(move || journal.reader(&id)).await;
        // The retention may have removed the session.
        let Ok(Ok(reader)) = reader else { return };
        let last = reader.last_seq();
        let reads = self.fleet.copies.reads.clone();
        let mut source = JournalEvents::new(reader, self.journal.clone(), reads);
        let store = self.joined.store.clone();
        let mut copy = SessionCopy::new(store, session.clone(), incarnation, last);
        let mut pause = PAUSE;
        while self.fleet.may_copy(self.joined) {
            let Ok(permit) = self.fleet.copies.batches.acquire().await else { return };
            let step = copy.step(self.joined.membership.stamp(), &mut source).await;
            drop(permit);
            match step {
                Ok(CopyProgress::Moved) => pause = PAUSE,
                Ok(CopyProgress::Complete) => return,
                Ok(CopyProgress::Unanswered)
                | Err(EventCopyError::Store(FleetStoreError::Unavailable(_))) => {
                    back_off(&mut pause).await;
                }
                Err(error) => {
                    tracing::debug!(%session, %error, "the events of the ended session are not copied further");
                    return;
                }
            }
        }
    }

    /// The incarnation from the directory, as soon as the store answers.
    async fn incarnation(&self, session: &SessionId) -> Option<Revision> {
        let mut pause = PAUSE;
        while self.fleet.may_copy(self.joined) {
            match self.joined.directory.find(session).await {
                Ok(found) => return incarnation_of(found, self.fleet.name()),
                Err(FleetStoreError::Unavailable(_)) => back_off(&mut pause).await,
                Err(FleetStoreError::Unreadable { .. }) => return None,
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use windlass_protocol::fleet::{BootNonce, FLEET_RECORDS, SessionEntry, WriteStamp};
    use windlass_protocol::{Generation, Seq};

    use super::*;

    #[test]
    fn sessions_are_due_from_the_oldest_on_while_the_store_keeps_copies() {
        let session = |(id, ended_at_ms): (&str, u64)| EndedSession {
            id: SessionId::parse(id).unwrap(),
            ended_at_ms,
            bytes: 1,
        };
        let ended = [("new", 900), ("old", 300), ("gone", 100), ("middle", 500)].map(session);
        let due = due(&ended, 1_100, Duration::from_millis(1_000));
        let due: Vec<&str> = due.iter().map(SessionId::as_str).collect();
        assert_eq!(due, ["old", "middle", "new"]);
    }

    #[test]
    fn only_a_session_of_this_node_that_is_not_lost_is_copied_further() {
        let (live, ended) = (EntryState::Live, |incarnation| EntryState::Ended { incarnation });
        for (owner, state, fate, expected) in [
            ("n1", live, SessionFate::Live, Some(Revision(9))),
            ("n1", ended(Some(Revision(4))), SessionFate::Ended, Some(Revision(4))),
            ("n1", ended(None), SessionFate::Ended, None),
            ("n1", live, SessionFate::Lost, None),
            ("n1", EntryState::Lost { copied: Seq(3), incarnation: None }, SessionFate::Lost, None),
            ("n2", live, SessionFate::Live, None),
            ("n2", ended(Some(Revision(4))), SessionFate::Ended, None),
        ] {
            let entry = SessionEntry {
                version: FLEET_RECORDS,
                session: SessionId::parse("s1").unwrap(),
                owner: NodeName::parse(owner).unwrap(),
                generation: Generation(1),
                stamp: WriteStamp { boot: BootNonce(1), write: 1 },
                state,
            };
            let found = Some(FoundEntry { entry, revision: Revision(9), fate });
            let node = NodeName::parse("n1").unwrap();
            assert_eq!(incarnation_of(found, &node), expected, "{owner} {state:?} {fate:?}");
        }
        assert_eq!(incarnation_of(None, &NodeName::parse("n1").unwrap()), None);
    }
}
