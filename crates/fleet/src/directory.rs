//! The entries of sessions: who has which session. A session's entry is written when the session is created and when it
//! ends.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use futures_util::future::try_join_all;
use windlass_lifecycle::fleet::{
    ConditionalWrite, Current, EntryRepair, LeaseStanding, LocalSession, NameClaim, SessionFate,
    WriteEnd, WriteStep, entries,
};
use windlass_protocol::fleet::{EntryState, FLEET_RECORDS, MemberRecord, SessionEntry};
use windlass_protocol::{Generation, NodeName, Revision, SessionId, TenantName};

use crate::membership::Membership;
use crate::store::{FleetStore, FleetStoreError};

/// Why a session cannot have an entry.
#[derive(Debug, thiserror::Error)]
pub enum NameClaimError {
    #[error("the node {owner} has a session of the name {session}")]
    Taken { session: SessionId, owner: NodeName },
    #[error("this node takes no new sessions: it has not renewed its lease")]
    NotServing,
    #[error("the fleet's store did not say whether the session's entry was written; try again")]
    Unanswered,
    #[error(transparent)]
    Store(#[from] FleetStoreError),
}

/// How often a claim looks at a name that others claim and give up at the same time.
const CLAIM_TRIES_MAX: u32 = 4;

/// A session's entry, with what has become of the session.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FoundEntry {
    pub entry: SessionEntry,
    pub revision: Revision,
    pub fate: SessionFate,
}

/// A name that a node has claimed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClaimedName {
    /// The revision of the entry.
    pub incarnation: Revision,
    /// The entry that stands again if the session is not made.
    pub former: Option<SessionEntry>,
}

/// Some sessions of a node, in the order of their ids.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EntryPage {
    pub entries: Vec<FoundEntry>,
    /// The node has more sessions behind this one.
    pub more_after: Option<SessionId>,
}

/// How many entries of a page are read at the same time.
const ENTRIES_AT_ONCE: usize = 16;

/// The directory, as one node uses it.
#[derive(Debug, Clone)]
pub struct FleetDirectory {
    store: FleetStore,
    membership: Arc<Membership>,
}

impl FleetDirectory {
    pub fn new(store: FleetStore, membership: Arc<Membership>) -> Self {
        Self { store, membership }
    }

    /// Claims a name for a session of this node, which has no session of that name. If the store already has an entry of
    /// this node under the name, an earlier claim wrote it and got no answer. The session may be made once this has returned its incarnation. If the
    /// node dies first, its next comparison ends the entry.
    pub async fn claim(&self, session: &SessionId) -> Result<ClaimedName, NameClaimError> {
        let generation = self.serving()?;
        // Most names were never used: the first write is without a look.
        let mut expected = Revision(0);
        let mut former = None;
        let mut tries = 0;
        let incarnation = loop {
            let entry = SessionEntry {
                version: FLEET_RECORDS,
                session: session.clone(),
                owner: self.membership.node().clone(),
                generation,
                stamp: self.membership.stamp(),
                state: EntryState::Live,
            };
            tries += 1;
            match self.write(entry, expected).await {
                WriteEnd::Stored(revision) => break revision,
                WriteEnd::Conflict(current) if tries < CLAIM_TRIES_MAX => {
                    (expected, former) = self.free(session, &current).await?;
                }
                WriteEnd::Conflict(_) | WriteEnd::Unavailable => {
                    return Err(NameClaimError::Unanswered);
                }
            }
        };
        // The node may have been fenced meanwhile, and begun another generation.
        match self.membership.standing() {
            LeaseStanding::Serving | LeaseStanding::Closed
                if self.membership.generation() == Some(generation) =>
            {
                Ok(ClaimedName { incarnation, former })
            }
            _ => Err(NameClaimError::NotServing),
        }
    }

    /// The revision at which the name is free, and the entry that a claim replaces.
    async fn free(
        &self,
        session: &SessionId,
        current: &Current<SessionEntry>,
    ) -> Result<(Revision, Option<SessionEntry>), NameClaimError> {
        let owner = match &current.record {
            Some(entry) => self.member(entry).await?,
            None => None,
        };
        match NameClaim::on(current, owner.as_ref()) {
            NameClaim::Free { expected } => {
                Ok((expected, entries::former(current, owner.as_ref())))
            }
            NameClaim::Taken { owner } if owner == *self.membership.node() => {
                Ok((current.revision, None))
            }
            NameClaim::Taken { owner } => {
                Err(NameClaimError::Taken { session: session.clone(), owner })
            }
        }
    }

    /// Writes that a session of this node has ended. It is enough to try: the next comparison tries again.
    pub async fn end(
        &self,
        session: &SessionId,
        incarnation: Revision,
    ) -> Result<(), FleetStoreError> {
        let current = self.store.read_entry(session).await?;
        let Some(entry) = current.record.filter(|_| current.revision == incarnation) else {
            return Ok(());
        };
        self.write_end(entry, incarnation).await;
        Ok(())
    }

    /// Writes that the session of a claimed name was not made: the entry that the claim has replaced stands again. If the
    /// node dies first, its next comparison ends the entry, and the former session cannot be found.
    pub async fn give_back(
        &self,
        session: &SessionId,
        claimed: ClaimedName,
    ) -> Result<(), FleetStoreError> {
        let ClaimedName { incarnation, former } = claimed;
        let Some(former) = former else { return self.end(session, incarnation).await };
        let current = self.store.read_entry(session).await?;
        let Some(entry) = current.record.filter(|_| current.revision == incarnation) else {
            return Ok(());
        };
        let state = self.with_copied(session, former.state).await?;
        // With this write, the index of this node forgets the session.
        let WriteEnd::Stored(ended) = self.write_end(entry, incarnation).await else {
            return Ok(());
        };
        let stamp = self.membership.stamp();
        if self.write(SessionEntry { state, stamp, ..former }, ended).await == WriteEnd::Unavailable
        {
            tracing::warn!(%session, "the entry of the former session is not in the directory again");
        }
        Ok(())
    }

    /// The state of a former session, with the last event of its copy if the session is lost.
    async fn with_copied(
        &self,
        session: &SessionId,
        state: EntryState,
    ) -> Result<EntryState, FleetStoreError> {
        let EntryState::Lost { incarnation, .. } = state else { return Ok(state) };
        let head = self.store.read_copy_head(session).await?.record;
        let own = head.filter(|head| Some(head.incarnation) == incarnation);
        Ok(EntryState::Lost { copied: own.map(|head| head.last).unwrap_or_default(), incarnation })
    }

    /// Writes that this node has no session of this name any more. An entry of another node stays as it is.
    pub async fn end_own(&self, session: &SessionId) -> Result<(), FleetStoreError> {
        let current = self.store.read_entry(session).await?;
        let own = |entry: &SessionEntry| {
            entry.owner == *self.membership.node()
                && Some(entry.generation) == self.membership.generation()
                && entry.state == EntryState::Live
        };
        if let Some(entry) = current.record.filter(own) {
            self.write_end(entry, current.revision).await;
        }
        Ok(())
    }

    /// The entry of a session, from the leader of the store.
    pub async fn find(&self, session: &SessionId) -> Result<Option<FoundEntry>, FleetStoreError> {
        let Current { record, revision } = self.store.read_entry(session).await?;
        let Some(entry) = record else { return Ok(None) };
        let owner = self.member(&entry).await?;
        let fate = SessionFate::of(&entry, owner.as_ref());
        Ok(Some(FoundEntry { entry, revision, fate }))
    }

    /// The entries of a node's sessions behind an id, from the leader of the store: those of a tenant, or of all. Of
    /// sessions that have just ended, the page may have the entries too.
    pub async fn sessions_of(
        &self,
        node: &NodeName,
        tenant: Option<&TenantName>,
        after: Option<&SessionId>,
        limit: usize,
    ) -> Result<EntryPage, FleetStoreError> {
        let all = self.store.sessions_of(node).await?;
        let (sessions, more_after) = page(all, tenant, after, limit);
        let owner = self.store.read_member(node).await?.record;
        let mut entries = Vec::new();
        for some in sessions.chunks(ENTRIES_AT_ONCE) {
            let reads = some.iter().map(|session| self.store.read_entry(session));
            for Current { record, revision } in try_join_all(reads).await? {
                // Another node may have the name since.
                if let Some(entry) = record.filter(|entry| entry.owner == *node) {
                    let fate = SessionFate::of(&entry, owner.as_ref());
                    entries.push(FoundEntry { entry, revision, fate });
                }
            }
        }
        Ok(EntryPage { entries, more_after })
    }

    /// Compares this node's sessions with the directory, and writes the ends that the directory does not know. Returns
    /// the sessions that this node has to end. `local` is asked after the directory was read.
    pub async fn compare(
        &self,
        local: impl FnOnce() -> BTreeMap<SessionId, LocalSession>,
        known: &[SessionId],
    ) -> Result<Vec<SessionId>, FleetStoreError> {
        let Some(generation) = self.membership.generation() else { return Ok(Vec::new()) };
        let node = self.membership.node();
        let mut sessions = self.store.sessions_of(node).await?;
        sessions.extend_from_slice(known);
        sessions.sort();
        sessions.dedup();
        let mut found = BTreeMap::new();
        let mut unreadable = BTreeSet::new();
        for session in sessions {
            match self.store.read_entry(&session).await {
                Ok(current) => {
                    found.insert(session, current);
                }
                // One record of a newer release must not keep the others from being compared.
                Err(error @ FleetStoreError::Unreadable { .. }) => {
                    tracing::warn!(%session, %error, "the entry of a session was passed over");
                    unreadable.insert(session);
                }
                Err(error) => return Err(error),
            }
        }
        let mut local = local();
        local.retain(|session, _| !unreadable.contains(session));
        let mut to_end = Vec::new();
        for repair in entries::repairs(node, generation, &local, &found) {
            match repair {
                EntryRepair::EndSession { session } => to_end.push(session),
                EntryRepair::WriteEnd { entry, expected } => {
                    self.write_end(entry, expected).await;
                }
            }
        }
        Ok(to_end)
    }

    async fn write_end(&self, entry: SessionEntry, expected: Revision) -> WriteEnd<SessionEntry> {
        let session = entry.session.clone();
        let stamp = self.membership.stamp();
        let state = EntryState::Ended { incarnation: Some(expected) };
        let ended = SessionEntry { state, stamp, ..entry };
        let written = self.write(ended, expected).await;
        if written == WriteEnd::Unavailable {
            tracing::debug!(%session, "the end of the session is not in the directory yet");
        }
        written
    }

    /// The owner's member record, as far as it matters for the entry.
    async fn member(&self, entry: &SessionEntry) -> Result<Option<MemberRecord>, FleetStoreError> {
        match entry.state {
            EntryState::Live => Ok(self.store.read_member(&entry.owner).await?.record),
            EntryState::Ended { .. } | EntryState::Lost { .. } => Ok(None),
        }
    }

    fn serving(&self) -> Result<Generation, NameClaimError> {
        match (self.membership.standing(), self.membership.generation()) {
            (LeaseStanding::Serving, Some(generation)) => Ok(generation),
            _ => Err(NameClaimError::NotServing),
        }
    }

    async fn write(&self, entry: SessionEntry, expected: Revision) -> WriteEnd<SessionEntry> {
        let session = entry.session.clone();
        let (mut write, mut step) = ConditionalWrite::start(entry, expected);
        loop {
            step = match step {
                WriteStep::Write { record, expected } => {
                    write.written(self.store.write_entry(&record, expected).await)
                }
                WriteStep::Read => match self.store.read_entry(&session).await {
                    Ok(current) => write.read(current),
                    Err(_) => write.unanswered(),
                },
                WriteStep::Done(end) => return end,
            };
        }
    }
}

/// The sessions of a tenant, or of all, behind an id, in the order of their ids; and the last one of the page if there
/// are more. Sessions of other tenants are left out first: a client sees the last id of a page.
fn page(
    mut sessions: Vec<SessionId>,
    tenant: Option<&TenantName>,
    after: Option<&SessionId>,
    limit: usize,
) -> (Vec<SessionId>, Option<SessionId>) {
    sessions.retain(|session| {
        let is_listed = tenant.is_none() || session.is_of(tenant);
        is_listed && after.is_none_or(|after| session > after)
    });
    sessions.sort();
    let has_more = sessions.len() > limit;
    sessions.truncate(limit);
    let more_after = sessions.last().filter(|_| has_more).cloned();
    (sessions, more_after)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_for_a_tenant_names_no_session_of_another_tenant() {
        let id = |text: &str| SessionId::parse(text).unwrap();
        for (tenant, after, limit, expected, more_after) in [
            (None, None, 2, vec!["a@acme", "b@other"], Some("b@other")),
            (None, Some("b@other"), 9, vec!["c", "d@acme", "e@other"], None),
            (Some("acme"), None, 1, vec!["a@acme"], Some("a@acme")),
            (Some("acme"), None, 2, vec!["a@acme", "d@acme"], None),
            (Some("acme"), Some("a@acme"), 1, vec!["d@acme"], None),
            (Some("other"), None, 1, vec!["b@other"], Some("b@other")),
            (Some("nobody"), None, 1, vec![], None),
        ] {
            let all = ["c", "e@other", "a@acme", "d@acme", "b@other"].map(id).to_vec();
            let of = tenant.map(|name| TenantName::parse(name).unwrap());
            let (listed, last) = page(all, of.as_ref(), after.map(id).as_ref(), limit);
            let listed: Vec<&str> = listed.iter().map(SessionId::as_str).collect();
            assert_eq!(listed, expected, "{tenant:?} {after:?} {limit}");
            assert_eq!(last.as_ref().map(SessionId::as_str), more_after, "{tenant:?}");
        }
    }
}
