//! Finds the node that has a session. The directory decides; a cache saves the question. A route of the cache that is
//! old leads to a node that refuses the request, and the directory is asked again.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use windlass_fleet::directory::FoundEntry;
use windlass_lifecycle::fleet::{PeerStatus, SessionFate, entries};
use windlass_protocol::fleet::{EntryState, SessionEntry};
use windlass_protocol::{ErrorCode, NodeName, SessionId};

use super::FleetNode;
use super::lost::LostSession;
use crate::failure::Failure;

/// Maximum number of routes in the cache. When it is full, it begins anew.
const ROUTES_MAX: usize = 65_536;

/// How long a client waits for the directory.
const LOOK_WAIT: Duration = Duration::from_millis(1_500);

/// Where a request about a session is served.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum SessionRoute {
    /// In this node: it has the session, or had it, or no node has it.
    Here(OwnEntry),
    There(NodeName),
    /// The session was lost with its node. Its copy can be read.
    Lost(LostSession),
    /// The directory does not answer.
    Unknown(Failure),
}

/// What the directory says about a session that no other node has.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum OwnEntry {
    /// This node has the session.
    Live,
    /// The session has ended, or has no entry.
    Over,
    /// This node had the session in a generation that is lost.
    Lost(LostSession),
}

/// The nodes of sessions that live elsewhere.
#[derive(Debug, Default)]
pub(super) struct RouteCache(Mutex<HashMap<SessionId, NodeName>>);

impl RouteCache {
    fn lock(&self) -> MutexGuard<'_, HashMap<SessionId, NodeName>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn get(&self, session: &SessionId) -> Option<NodeName> {
        self.lock().get(session).cloned()
    }

    fn keep(&self, session: SessionId, node: NodeName) {
        let mut routes = self.lock();
        if routes.len() >= ROUTES_MAX {
            routes.clear();
        }
        routes.insert(session, node);
    }

    fn forget(&self, session: &SessionId) {
        self.lock().remove(session);
    }
}

impl FleetNode {
    /// The route from the cache, or from the directory.
    pub async fn route(&self, session: &SessionId) -> SessionRoute {
        match self.routes.get(session) {
            Some(node) => SessionRoute::There(node),
            None => self.look_up(session).await,
        }
    }

    /// The route from the directory, after the node of the cache has refused the request.
    pub async fn route_anew(&self, session: &SessionId) -> SessionRoute {
        self.routes.forget(session);
        self.look_up(session).await
    }

    /// A session that has ended, with what tells its copy from those of others of its name.
    pub(super) async fn find_ended(&self, session: &SessionId) -> Option<LostSession> {
        let joined = self.joined()?;
        let found = tokio::time::timeout(LOOK_WAIT, joined.directory.find(session)).await;
        let FoundEntry { entry, .. } = found.ok()?.ok()??;
        let EntryState::Ended { incarnation: Some(incarnation) } = entry.state else { return None };
        Some(LostSession { session: entry.session, node: entry.owner, incarnation })
    }

    /// A session that was lost, also if its node is back.
    pub(super) async fn find_lost(&self, session: &SessionId) -> Option<LostSession> {
        let joined = self.joined()?;
        let found = tokio::time::timeout(LOOK_WAIT, joined.directory.find(session)).await;
        let FoundEntry { entry, fate, revision } = found.ok()?.ok()??;
        let incarnation = entries::lost_incarnation(&entry, revision);
        let SessionEntry { session, owner: node, .. } = entry;
        (fate == SessionFate::Lost).then_some(LostSession { session, node, incarnation })
    }

    pub(super) async fn look_up(&self, session: &SessionId) -> SessionRoute {
        let Some(joined) = self.joined() else { return SessionRoute::Unknown(self.not_joined()) };
        let found = match tokio::time::timeout(LOOK_WAIT, joined.directory.find(session)).await {
            Ok(Ok(found)) => found,
            Ok(Err(error)) => return unknown(session, &error.to_string()),
            Err(_) => return unknown(session, "the fleet's store does not answer"),
        };
        let Some(FoundEntry { entry, fate, revision }) = found else {
            return SessionRoute::Here(OwnEntry::Over);
        };
        let incarnation = entries::lost_incarnation(&entry, revision);
        let lost = |node: NodeName| LostSession { session: session.clone(), node, incarnation };
        if entry.owner == *self.name() {
            return SessionRoute::Here(match fate {
                SessionFate::Live => OwnEntry::Live,
                SessionFate::Ended => OwnEntry::Over,
                SessionFate::Lost => OwnEntry::Lost(lost(entry.owner)),
            });
        }
        match fate {
            SessionFate::Live => {
                self.routes.keep(session.clone(), entry.owner.clone());
                SessionRoute::There(entry.owner)
            }
            // Its journal is where it was.
            SessionFate::Ended => SessionRoute::There(entry.owner),
            SessionFate::Lost => {
                let status = joined.membership.peer(&entry.owner).map(|peer| peer.status);
                if asks_former_owner(status, self.removed().has(&entry.owner)) {
                    SessionRoute::There(entry.owner)
                } else {
                    SessionRoute::Lost(lost(entry.owner))
                }
            }
        }
    }
}

/// Whether the former owner of a lost session is asked about it. A node that is back answers if its journal says how the
/// session ended. A node that was removed gets no requests.
fn asks_former_owner(status: Option<PeerStatus>, is_removed: bool) -> bool {
    status == Some(PeerStatus::Alive) && !is_removed
}

fn unknown(session: &SessionId, why: &str) -> SessionRoute {
    let message = format!("which node has session {session} is not known: {why}");
    SessionRoute::Unknown(Failure::new(ErrorCode::FleetUnavailable, message))
}

#[cfg(test)]
mod tests {
    use windlass_protocol::Generation;

    use super::*;

    #[test]
    fn only_a_node_that_is_back_and_not_removed_is_asked_about_its_lost_sessions() {
        for (status, is_removed, expected) in [
            (Some(PeerStatus::Alive), false, true),
            (Some(PeerStatus::Alive), true, false),
            (Some(PeerStatus::Unreachable), false, false),
            (Some(PeerStatus::Lost(Generation(1))), false, false),
            (None, false, false),
        ] {
            let found = asks_former_owner(status, is_removed);
            assert_eq!(found, expected, "{status:?} {is_removed}");
        }
    }

    #[test]
    fn the_cache_holds_a_bounded_number_of_routes() {
        let cache = RouteCache::default();
        let node = NodeName::parse("n1").unwrap();
        for number in 0..=ROUTES_MAX {
            cache.keep(SessionId::parse(format!("s{number}")).unwrap(), node.clone());
        }
        assert_eq!(cache.lock().len(), 1);
        let last = SessionId::parse(format!("s{ROUTES_MAX}")).unwrap();
        assert_eq!(cache.get(&last), Some(node));
        cache.forget(&last);
        assert_eq!(cache.get(&last), None);
    }
}
