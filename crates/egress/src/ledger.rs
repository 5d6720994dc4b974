//! What one session may reach, and what it reached for: its rules, its share of the node, and
//! every decision about it, counted. Bounded, whatever the code tries.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use futures_util::future::BoxFuture;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use windlass_protocol::api::{EgressDecision, EgressLog};
use windlass_protocol::policy::{HostRule, HostRules};

use super::meter::Flow;
use super::reach::NotReached;
use super::rules::Refused;

/// Connections of one session at once; more are closed and counted.
pub const CONNECTIONS_MAX: usize = 64;

/// Names of one session that are looked up at once; more wait.
const LOOKUPS_MAX: usize = 8;

/// Different decisions that are told apart, of allowed ones and of refused ones each: so that no
/// flood of refusals hides where bytes went. Further ones are counted together.
const KEYS_MAX: usize = 128;

/// The host where none is named.
const NO_HOST: &str = "*";

/// What was decided about a connection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Decision {
    pub host: String,
    pub port: u16,
    pub allowed: bool,
    pub reason: String,
}

/// Who owns a session, as far as its connections need it.
pub trait SessionOwner: std::fmt::Debug + Send + Sync {
    /// Tells the owner of the first decision of a kind. An owner that has gone has said its last word.
    fn report(&self, decision: Decision) -> BoxFuture<'_, ()>;

    /// Returns when the owner has gone.
    fn gone(&self) -> BoxFuture<'_, ()>;
}

impl SessionOwner for mpsc::Sender<Decision> {
    fn report(&self, decision: Decision) -> BoxFuture<'_, ()> {
        Box::pin(async move { drop(self.send(decision).await) })
    }

    fn gone(&self) -> BoxFuture<'_, ()> {
        Box::pin(self.closed())
    }
}

/// One session's rules and decisions.
#[derive(Debug)]
pub struct Ledger {
    rules: Vec<HostRule>,
    owner: Box<dyn SessionOwner>,
    now_ms: fn() -> u64,
    connections: Arc<Semaphore>,
    lookups: Arc<Semaphore>,
    since_ms: u64,
    counts: Mutex<Counts>,
}

#[derive(Debug, Default)]
struct Counts {
    entries: HashMap<Key, Entry>,
    /// How many of them are of allowed and of refused ones.
    allowed: usize,
    refused: usize,
    /// Decisions so far: many fall into one millisecond, and the latest comes first.
    decisions: u64,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Key {
    host: String,
    port: u16,
    allowed: bool,
    reason: String,
}

#[derive(Debug, Default)]
struct Entry {
    count: u64,
    last_at_ms: u64,
    last: u64,
    flow: Arc<Flow>,
}

impl Ledger {
    /// `now_ms` is the node's clock.
    pub fn new(
        HostRules(rules): HostRules,
        owner: Box<dyn SessionOwner>,
        now_ms: fn() -> u64,
    ) -> Self {
        Self {
            rules,
            owner,
            now_ms,
            connections: Arc::new(Semaphore::new(CONNECTIONS_MAX)),
            lookups: Arc::new(Semaphore::new(LOOKUPS_MAX)),
            since_ms: now_ms(),
            counts: Mutex::default(),
        }
    }

    pub fn rules(&self) -> &[HostRule] {
        &self.rules
    }

    /// A place for one more connection, held as long as it lives.
    pub async fn connection(&self) -> Option<OwnedSemaphorePermit> {
        match self.connections.clone().try_acquire_owned() {
            Ok(place) => Some(place),
            Err(_) => {
                self.turn_away().await;
                None
            }
        }
    }

    /// Counts a connection that there was no place for.
    pub async fn turn_away(&self) {
        self.note(NO_HOST, 0, Err(Refused::TooMany.into())).await;
    }

    /// A place to look a name up.
    pub async fn lookup(&self) -> Option<OwnedSemaphorePermit> {
        self.lookups.clone().acquire_owned().await.ok()
    }

    /// Returns when the session's owner has gone.
    pub async fn until_over(&self) {
        self.owner.gone().await;
    }

    /// Counts a decision; the first of its kind is also an event of the session. Bytes that then
    /// pass are counted by what it returns.
    pub async fn note(&self, host: &str, port: u16, decided: Result<(), NotReached>) -> Arc<Flow> {
        let allowed = !matches!(decided, Err(NotReached::Refused(_)));
        let reason = decided.err().map(|why| why.to_string()).unwrap_or_default();
        let key = Key { host: host.to_owned(), port, allowed, reason };
        let (first, flow) = self.count(key);
        if let Some(Key { host, port, allowed, reason }) = first {
            tracing::debug!(host, port, allowed, reason, "egress");
            self.owner.report(Decision { host, port, allowed, reason }).await;
        }
        flow
    }

    /// The key that is new, and its bytes.
    fn count(&self, mut key: Key) -> (Option<Key>, Arc<Flow>) {
        let mut counts = self.counts.lock().expect("no holder of this lock can panic");
        if !counts.entries.contains_key(&key) {
            let told_apart = if key.allowed { &mut counts.allowed } else { &mut counts.refused };
            if *told_apart < KEYS_MAX {
                *told_apart += 1;
            } else {
                let reason = format!("further ones, after {KEYS_MAX} different ones");
                key = Key { host: NO_HOST.to_owned(), port: 0, allowed: key.allowed, reason };
            }
        }
        let first = (!counts.entries.contains_key(&key)).then(|| key.clone());
        counts.decisions += 1;
        let last = counts.decisions;
        let entry = counts.entries.entry(key).or_default();
        entry.count += 1;
        entry.last = last;
        entry.last_at_ms = (self.now_ms)();
        (first, entry.flow.clone())
    }

    pub fn log(&self) -> EgressLog {
        let counts = self.counts.lock().expect("no holder of this lock can panic");
        let mut entries: Vec<_> = counts.entries.iter().collect();
        entries.sort_by_key(|(_, entry)| Reverse(entry.last));
        let decisions = entries.into_iter().map(decision).collect();
        EgressLog { since_ms: self.since_ms, decisions }
    }
}

fn decision((key, entry): (&Key, &Entry)) -> EgressDecision {
    EgressDecision {
        host: key.host.clone(),
        port: key.port,
        allowed: key.allowed,
        reason: key.reason.clone(),
        count: entry.count,
        sent_bytes: entry.flow.written(),
        received_bytes: entry.flow.read(),
        last_at_ms: entry.last_at_ms,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ledger() -> (Ledger, mpsc::Receiver<Decision>) {
        let (inbox, events) = mpsc::channel(4 * KEYS_MAX);
        (Ledger::new(HostRules::default(), Box::new(inbox), || 0), events)
    }

    fn said(events: &mut mpsc::Receiver<Decision>) -> usize {
        std::iter::from_fn(|| events.try_recv().ok()).count()
    }

    #[tokio::test]
    async fn the_latest_decision_comes_first_also_within_a_millisecond() {
        let (ledger, _events) = ledger();
        for host in ["b.org", "c.org", "a.org", "b.org"] {
            ledger.note(host, 443, Ok(())).await;
        }
        let log = ledger.log();
        let hosts: Vec<_> = log.decisions.iter().map(|one| &*one.host).collect();
        assert_eq!(hosts, ["b.org", "a.org", "c.org"]);
    }

    #[tokio::test]
    async fn the_same_decision_is_counted_and_said_once() {
        let (ledger, mut events) = ledger();
        for _ in 0..3 {
            ledger.note("a.org", 443, Ok(())).await;
        }
        ledger.note("a.org", 80, Err(Refused::NotNamed.into())).await;
        assert_eq!(said(&mut events), 2);
        let log = ledger.log();
        let of = |port| log.decisions.iter().find(|decision| decision.port == port).unwrap();
        assert_eq!((of(443).count, of(443).allowed), (3, true));
        assert_eq!((of(80).count, of(80).allowed), (1, false));
        assert!(of(80).reason.contains("no rule"), "{}", of(80).reason);
    }

    #[tokio::test]
    async fn a_flood_of_refusals_is_bounded_and_hides_nothing() {
        let (ledger, mut events) = ledger();
        for number in 0..KEYS_MAX + 50 {
            let host = format!("h{number}.org");
            ledger.note(&host, 443, Err(Refused::NotNamed.into())).await;
        }
        assert_eq!(said(&mut events), KEYS_MAX + 1);
        ledger.note("leak.org", 443, Ok(())).await;
        assert_eq!(said(&mut events), 1, "an allowed host is still told apart");
        let log = ledger.log();
        assert_eq!(log.decisions.len(), KEYS_MAX + 2);
        let others = log.decisions.iter().find(|decision| decision.host == NO_HOST).unwrap();
        assert_eq!(others.count, 50);
    }
}
