//! Whether another node still answers. A connection to a machine that is gone looks open for minutes. So while a request
//! waits for another node, this node connects to that node anew from time to time. All requests that wait for one node
//! share the result. Never decides who owns a session.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::{Instant, timeout};
use windlass_fleet::membership::PeerReport;
use windlass_lifecycle::fleet::PeerStatus;
use windlass_protocol::NodeName;

use super::JoinedFleet;
use super::peers::PeerConnections;

/// How long a request waits for another node before that node is tried.
const SHORT_PAUSE: Duration = Duration::from_secs(1);
const LONG_PAUSE: Duration = Duration::from_secs(4);

/// How long a node with a lease may fail to answer before a request is given up that may wait long. It covers a node
/// that is stopped for a moment.
const LONG_ALLOWANCE: Duration = Duration::from_secs(5);

/// How long a new connection to a node without a lease may take.
const WITHOUT_LEASE_WAIT: Duration = Duration::from_millis(500);

/// How long the answer to a request may take.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum AnswerWait {
    /// The answer does not wait for anything.
    Short,
    /// The answer waits for an event, is a stream, or comes after a large body.
    Long,
}

impl AnswerWait {
    /// The pause before the node is tried, and between two tries that succeed.
    fn pause(self) -> Duration {
        match self {
            Self::Short => SHORT_PAUSE,
            Self::Long => LONG_PAUSE,
        }
    }

    fn allowance(self) -> Duration {
        match self {
            Self::Short => Duration::ZERO,
            Self::Long => LONG_ALLOWANCE,
        }
    }
}

/// See the module documentation.
#[derive(Debug, Clone)]
pub(super) struct PeerLiveness {
    pub connections: PeerConnections,
    joined: watch::Receiver<Option<Arc<JoinedFleet>>>,
    trials: Arc<Mutex<HashMap<NodeName, Arc<NodeTrial>>>>,
}

/// The last trial of a node. The lock is held during a trial, so that others wait for its result.
type NodeTrial = tokio::sync::Mutex<Option<TrialResult>>;

#[derive(Debug, Clone, Copy)]
struct TrialResult {
    at: Instant,
    answered: bool,
}

impl PeerLiveness {
    pub fn new(
        connections: PeerConnections,
        joined: watch::Receiver<Option<Arc<JoinedFleet>>>,
    ) -> Self {
        Self { connections, joined, trials: Arc::default() }
    }

    /// Whether the node has no lease and does not answer. Does not try a node that has a lease.
    pub async fn is_gone(&self, node: &NodeName) -> bool {
        !self.has_lease(node) && !self.answers(node, SHORT_PAUSE).await
    }

    /// Returns once the node no longer answers. A node without a lease that answers is not gone: it may have lost the
    /// store only.
    pub async fn until_gone(&self, node: &NodeName, wait: AnswerWait) {
        let mut failing_since: Option<Instant> = None;
        loop {
            let pause = if failing_since.is_some() { SHORT_PAUSE } else { wait.pause() };
            tokio::time::sleep(pause).await;
            if self.answers(node, pause).await {
                failing_since = None;
                continue;
            }
            let since = *failing_since.get_or_insert_with(Instant::now);
            if since.elapsed() >= wait.allowance() || !self.has_lease(node) {
                return;
            }
        }
    }

    /// Whether the node answers. A result of another request counts if it is at most this old.
    async fn answers(&self, node: &NodeName, age_max: Duration) -> bool {
        let trial = self.trial_of(node);
        let mut last = trial.lock().await;
        if let Some(known) = last.filter(|known| known.at.elapsed() <= age_max) {
            return known.answered;
        }
        let answered = self.try_to_connect(node).await;
        if !answered {
            self.connections.forget(node);
        }
        *last = Some(TrialResult { at: Instant::now(), answered });
        answered
    }

    async fn try_to_connect(&self, node: &NodeName) -> bool {
        // Nothing is known of the node without the store, or its lease has not come by since this node joined. The caller
        // finds out where the node is.
        let Some(peer) = self.report(node) else { return true };
        let Some(address) = peer.address else { return true };
        let opening = self.connections.open(node, &address);
        if peer.status == PeerStatus::Alive {
            return opening.await.is_ok();
        }
        timeout(WITHOUT_LEASE_WAIT, opening).await.is_ok_and(|opened| opened.is_ok())
    }

    fn has_lease(&self, node: &NodeName) -> bool {
        self.report(node).is_none_or(|peer| peer.status == PeerStatus::Alive)
    }

    fn report(&self, node: &NodeName) -> Option<PeerReport> {
        let joined = self.joined.borrow().clone()?;
        joined.membership.peer(node)
    }

    fn trial_of(&self, node: &NodeName) -> Arc<NodeTrial> {
        let mut trials = self.trials.lock().unwrap_or_else(PoisonError::into_inner);
        trials.entry(node.clone()).or_default().clone()
    }
}

/// What is known of a node's lease: what its judge says, or whether the store has the lease if the node is not judged.
pub(super) fn status_with(judged: Option<PeerStatus>, has_lease: Option<bool>) -> PeerStatus {
    match (judged, has_lease) {
        (Some(status), _) => status,
        // Nodes forget a lost node after a day.
        (None, Some(false)) => PeerStatus::Unreachable,
        (None, Some(true) | None) => PeerStatus::Alive,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_that_nobody_judges_and_that_has_no_lease_is_not_waited_for() {
        for (judged, has_lease, expected) in [
            (None, Some(true), PeerStatus::Alive),
            (None, Some(false), PeerStatus::Unreachable),
            (None, None, PeerStatus::Alive),
            (Some(PeerStatus::Alive), Some(false), PeerStatus::Alive),
            (Some(PeerStatus::Unreachable), None, PeerStatus::Unreachable),
        ] {
            assert_eq!(status_with(judged, has_lease), expected, "{judged:?} {has_lease:?}");
        }
    }
}
