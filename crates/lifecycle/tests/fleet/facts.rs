//! What the clients of the simulated fleet were told, and what must follow from it.

use std::collections::BTreeMap;

use windlass_protocol::fleet::{EntryState, MemberRecord, SessionEntry};
use windlass_protocol::{Generation, NodeName, Revision, Seq, SessionId};

#[derive(Debug, Default)]
pub struct Facts {
    /// The first broken promise.
    pub problem: Option<String>,
    /// The highest generation of each node that was declared lost or left behind.
    lost: BTreeMap<NodeName, Generation>,
    /// The newest incarnation of each name for which a turn was accepted or a creation was told.
    newest: BTreeMap<SessionId, Revision>,
    /// Creations that clients were told of.
    pub created: Vec<(SessionId, Revision)>,
    /// Events that clients were told to be in the copy.
    pub copied: Vec<(SessionId, Revision, Seq)>,
    /// Entries of live sessions that another write replaced without an end or a loss.
    entries: BTreeMap<SessionId, (SessionEntry, Revision)>,
}

impl Facts {
    pub fn broken(&mut self, problem: String) {
        self.problem.get_or_insert(problem);
    }

    pub fn member_stored(&mut self, record: &MemberRecord) {
        let lost = self.lost.entry(record.node.clone()).or_default();
        let left = if record.lost { record.generation.0 } else { record.generation.0 - 1 };
        *lost = (*lost).max(Generation(left));
    }

    pub fn entry_stored(&mut self, record: &SessionEntry, revision: Revision) {
        if let Some((before, _)) = self.entries.get(&record.session) {
            let lost = self.lost.get(&before.owner).is_some_and(|lost| before.generation <= *lost);
            let same = before.owner == record.owner && before.generation == record.generation;
            if before.state == EntryState::Live
                && !lost
                && !(same && record.state != EntryState::Live)
            {
                self.broken(format!("{} lost its live entry to {record:?}", record.session));
            }
        }
        self.entries.insert(record.session.clone(), (record.clone(), revision));
    }

    /// A node told a client that the session exists.
    pub fn told_created(&mut self, at: u64, session: &SessionId, incarnation: Revision) {
        self.created.push((session.clone(), incarnation));
        self.newer(at, session, incarnation, "was told to be created");
    }

    /// A node accepted a turn.
    pub fn accepted(
        &mut self,
        at: u64,
        node: &NodeName,
        generation: Generation,
        session: &SessionId,
        incarnation: Revision,
    ) {
        if self.lost.get(node).is_some_and(|lost| generation <= *lost) {
            self.broken(format!(
                "{at}: {node} accepted a turn for {session} in generation {generation}, which is lost"
            ));
        }
        self.newer(at, session, incarnation, "accepted a turn");
    }

    fn newer(&mut self, at: u64, session: &SessionId, incarnation: Revision, act: &str) {
        let newest = self.newest.entry(session.clone()).or_default();
        let before = *newest;
        *newest = before.max(incarnation);
        if incarnation < before {
            self.broken(format!(
                "{at}: {session} of revision {incarnation} {act} after its successor {before} had"
            ));
        }
    }
}
