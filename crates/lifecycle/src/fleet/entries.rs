//! Who owns a session, as the directory says, and what a node repairs when it comes back.

use std::collections::BTreeMap;

use windlass_protocol::fleet::{EntryState, MemberRecord, SessionEntry};
use windlass_protocol::{Generation, NodeName, Revision, Seq, SessionId};

use super::write::Current;

/// What has become of a session, from its entry and its owner's member record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SessionFate {
    /// The owner has the session, or will have it again.
    Live,
    Ended,
    Lost,
}

impl SessionFate {
    /// `owner` is the owner's member record. It may be old: a generation that was lost stays lost.
    pub fn of(entry: &SessionEntry, owner: Option<&MemberRecord>) -> Self {
        match entry.state {
            EntryState::Ended { .. } => Self::Ended,
            EntryState::Lost { .. } => Self::Lost,
            EntryState::Live if owner.is_some_and(|owner| has_lost(owner, entry.generation)) => {
                Self::Lost
            }
            EntryState::Live => Self::Live,
        }
    }
}

/// Whether all sessions of that generation are lost: it was declared lost, or the node has begun anew since.
fn has_lost(owner: &MemberRecord, generation: Generation) -> bool {
    generation < owner.generation || (generation == owner.generation && owner.lost)
}

/// The incarnation of a lost session, whose entry has this revision.
pub fn lost_incarnation(entry: &SessionEntry, revision: Revision) -> Revision {
    match entry.state {
        EntryState::Lost { incarnation: Some(incarnation), .. } => incarnation,
        EntryState::Live | EntryState::Ended { .. } | EntryState::Lost { .. } => revision,
    }
}

/// The entry that stands again if the session whose entry replaces it is not made. `None` if there was none, or if it is
/// left over from a claim. A lost session has its incarnation in this entry, because the revision is another one then.
pub fn former(
    current: &Current<SessionEntry>,
    owner: Option<&MemberRecord>,
) -> Option<SessionEntry> {
    let entry = current.record.as_ref()?;
    let state = match (entry.state, SessionFate::of(entry, owner)) {
        (state @ EntryState::Ended { .. }, _) => state,
        (EntryState::Lost { copied, incarnation }, _) => {
            EntryState::Lost { copied, incarnation: incarnation.or(Some(current.revision)) }
        }
        (EntryState::Live, SessionFate::Lost) => {
            EntryState::Lost { copied: Seq(0), incarnation: Some(current.revision) }
        }
        (EntryState::Live, SessionFate::Live | SessionFate::Ended) => return None,
    };
    Some(SessionEntry { state, ..entry.clone() })
}

/// Whether a session may be created under a name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NameClaim {
    /// The name is free: write the entry if the record still has this revision.
    Free { expected: Revision },
    /// A session has the name.
    Taken { owner: NodeName },
}

impl NameClaim {
    /// `current` is what the leader of the store has, `owner` the member record of the entry's owner.
    pub fn on(current: &Current<SessionEntry>, owner: Option<&MemberRecord>) -> Self {
        match &current.record {
            Some(entry) if SessionFate::of(entry, owner) == SessionFate::Live => {
                Self::Taken { owner: entry.owner.clone() }
            }
            Some(_) | None => Self::Free { expected: current.revision },
        }
    }
}

/// A session that a node has, when it compares itself with the directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LocalSession {
    Live,
    /// The session is being created, or was created after the entries were asked for. It is left alone.
    New,
    /// The session has ended here. The directory may not know yet.
    Ended,
}

/// What a node does to a session so that the node and the directory agree.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum EntryRepair {
    /// The entry says live, but there is no such session here: write that it has ended.
    WriteEnd { entry: SessionEntry, expected: Revision },
    /// The session lives here, but the name is not this node's any more: end the session.
    EndSession { session: SessionId },
}

/// Compares a node with the directory. `entries` are all entries of which this node is the owner, and those of its
/// sessions, from the leader of the store.
pub fn repairs(
    node: &NodeName,
    generation: Generation,
    local: &BTreeMap<SessionId, LocalSession>,
    entries: &BTreeMap<SessionId, Current<SessionEntry>>,
) -> Vec<EntryRepair> {
    let own = |entry: &SessionEntry| {
        entry.owner == *node && entry.generation == generation && entry.state == EntryState::Live
    };
    let ended = entries.iter().filter_map(|(session, current)| {
        let entry = current.record.as_ref().filter(|entry| own(entry))?;
        let kept = matches!(local.get(session), Some(LocalSession::Live | LocalSession::New));
        (!kept).then(|| EntryRepair::WriteEnd {
            entry: SessionEntry {
                state: EntryState::Ended { incarnation: Some(current.revision) },
                ..entry.clone()
            },
            expected: current.revision,
        })
    });
    let foreign = local.iter().filter_map(|(session, state)| {
        let entry = entries.get(session).and_then(|current| current.record.as_ref());
        let mine = entry.is_some_and(own);
        (*state == LocalSession::Live && !mine)
            .then(|| EntryRepair::EndSession { session: session.clone() })
    });
    ended.chain(foreign).collect()
}
