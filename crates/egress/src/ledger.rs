//! The egress ledger of one session: its rules, its limits of connections and lookups, and a count of
//! every decision. The ledger's size is bounded whatever the session's code tries.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use futures_util::future::BoxFuture;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use windlass_protocol::api::{EgressDecision, EgressLog};
use windlass_protocol::policy::{HostRule, HostRules};

use super::meter::Flow;
use super::reach::NotReached;
use super::rules::RefusalReason;
use super::secrets::SessionSecrets;

/// Maximum number of concurrent connections of one session. Further ones are closed and counted.
pub const CONNECTIONS_MAX: usize = 64;

/// Maximum number of concurrent name lookups of one session. Further ones wait.
const LOOKUPS_MAX: usize = 8;

/// Maximum number of distinct decisions that are counted separately. Allowed and refused decisions
/// have this limit each, so a flood of refusals does not hide where bytes went. Further decisions are
/// counted together.
const DECISION_KEYS_MAX: usize = 128;

/// Stands for the host where a decision names none.
const NO_HOST: &str = "*";

/// What was decided about a connection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Decision {
    pub host: String,
    pub port: u16,
    pub allowed: bool,
    pub reason: String,
}

/// The owner of a session, as far as egress needs it.
pub trait DecisionSink: std::fmt::Debug + Send + Sync {
    /// Reports the first decision of a kind to the owner. The report is lost if the owner has ended.
    fn report(&self, decision: Decision) -> BoxFuture<'_, ()>;

    /// Counts every decision. Must not wait.
    fn count(&self, _allowed: bool) {}

    /// Returns when the owner has ended.
    fn gone(&self) -> BoxFuture<'_, ()>;
}

impl DecisionSink for mpsc::Sender<Decision> {
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
    secrets: Option<Arc<SessionSecrets>>,
    owner: Box<dyn DecisionSink>,
    now_ms: fn() -> u64,
    connections: Arc<Semaphore>,
    lookups: Arc<Semaphore>,
    since_ms: u64,
    counts: Mutex<DecisionCounts>,
}

#[derive(Debug, Default)]
struct DecisionCounts {
    entries: HashMap<DecisionKey, DecisionCount>,
    /// Number of entries for allowed decisions.
    allowed: usize,
    /// Number of entries for refused decisions.
    refused: usize,
    /// Number of decisions so far. It orders decisions within one millisecond.
    decisions: u64,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct DecisionKey {
    host: String,
    port: u16,
    allowed: bool,
    reason: String,
}

#[derive(Debug, Default)]
struct DecisionCount {
    count: u64,
    last_at_ms: u64,
    last: u64,
    flow: Arc<Flow>,
}

impl Ledger {
    /// `now_ms` is the node's clock.
    pub fn new(
        HostRules(rules): HostRules,
        owner: Box<dyn DecisionSink>,
        now_ms: fn() -> u64,
    ) -> Self {
        Self {
            rules,
            secrets: None,
            owner,
            now_ms,
            connections: Arc::new(Semaphore::new(CONNECTIONS_MAX)),
            lookups: Arc::new(Semaphore::new(LOOKUPS_MAX)),
            since_ms: now_ms(),
            counts: Mutex::default(),
        }
    }

    /// A ledger whose proxy sends secrets.
    pub fn with_secrets(self, secrets: Arc<SessionSecrets>) -> Self {
        Self { secrets: Some(secrets), ..self }
    }

    /// The secrets of the session, if it was made with secret rules.
    pub fn secrets(&self) -> Option<&Arc<SessionSecrets>> {
        self.secrets.as_ref()
    }

    pub fn rules(&self) -> &[HostRule] {
        &self.rules
    }

    /// A slot for one more connection; the connection holds it while it lives.
    pub async fn connection_slot(&self) -> Option<OwnedSemaphorePermit> {
        match self.connections.clone().try_acquire_owned() {
            Ok(slot) => Some(slot),
            Err(_) => {
                self.note_too_many_connections().await;
                None
            }
        }
    }

    /// Counts a connection that was closed because all slots were taken.
    pub async fn note_too_many_connections(&self) {
        self.note(NO_HOST, 0, Err(RefusalReason::TooMany.into())).await;
    }

    /// A slot for one name lookup.
    pub async fn lookup_slot(&self) -> Option<OwnedSemaphorePermit> {
        self.lookups.clone().acquire_owned().await.ok()
    }

    /// Returns when the session's owner has ended.
    pub async fn until_over(&self) {
        self.owner.gone().await;
    }

    /// Counts a decision. The first decision of its kind is also reported to the session's owner. The
    /// returned counter counts the bytes of the connection.
    pub async fn note(&self, host: &str, port: u16, decided: Result<(), NotReached>) -> Arc<Flow> {
        let allowed = !matches!(decided, Err(NotReached::Refused(_)));
        self.owner.count(allowed);
        let reason = decided.err().map(|why| why.to_string()).unwrap_or_default();
        let key = DecisionKey { host: host.to_owned(), port, allowed, reason };
        let (first, flow) = self.count(key);
        if let Some(DecisionKey { host, port, allowed, reason }) = first {
            tracing::debug!(host, port, allowed, reason, "egress");
            self.owner.report(Decision { host, port, allowed, reason }).await;
        }
        flow
    }

    /// Counts one decision. Returns the key if it is new, and the key's byte counter.
    fn count(&self, mut key: DecisionKey) -> (Option<DecisionKey>, Arc<Flow>) {
        let mut counts = self.counts.lock().expect("no holder of this lock can panic");
        if !counts.entries.contains_key(&key) {
            let keys = if key.allowed { &mut counts.allowed } else { &mut counts.refused };
            if *keys < DECISION_KEYS_MAX {
                *keys += 1;
            } else {
                let reason =
                    format!("other hosts, counted together after {DECISION_KEYS_MAX} decisions");
                key =
                    DecisionKey { host: NO_HOST.to_owned(), port: 0, allowed: key.allowed, reason };
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

    /// The number of decisions so far, for [`Self::refused_since`].
    pub fn decisions(&self) -> u64 {
        self.counts.lock().expect("no holder of this lock can panic").decisions
    }

    /// The last refusal after the first `decisions` decisions.
    pub fn refused_since(&self, decisions: u64) -> Option<EgressDecision> {
        let counts = self.counts.lock().expect("no holder of this lock can panic");
        let refused = counts.entries.iter().filter(|(key, _)| !key.allowed);
        let last = refused.max_by_key(|(_, entry)| entry.last)?;
        (last.1.last > decisions).then(|| decision(last))
    }

    pub fn log(&self) -> EgressLog {
        let counts = self.counts.lock().expect("no holder of this lock can panic");
        let mut entries: Vec<_> = counts.entries.iter().collect();
        entries.sort_by_key(|(_, entry)| Reverse(entry.last));
        let decisions = entries.into_iter().map(decision).collect();
        EgressLog { since_ms: self.since_ms, decisions, from_journal: false }
    }
}

fn decision((key, entry): (&DecisionKey, &DecisionCount)) -> EgressDecision {
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
        let (inbox, events) = mpsc::channel(4 * DECISION_KEYS_MAX);
        (Ledger::new(HostRules::default(), Box::new(inbox), || 0), events)
    }

    fn reports(events: &mut mpsc::Receiver<Decision>) -> usize {
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
    async fn the_same_decision_is_counted_and_reported_once() {
        let (ledger, mut events) = ledger();
        for _ in 0..3 {
            ledger.note("a.org", 443, Ok(())).await;
        }
        ledger.note("a.org", 80, Err(RefusalReason::NotNamed.into())).await;
        assert_eq!(reports(&mut events), 2);
        let log = ledger.log();
        let of = |port| log.decisions.iter().find(|decision| decision.port == port).unwrap();
        assert_eq!((of(443).count, of(443).allowed), (3, true));
        assert_eq!((of(80).count, of(80).allowed), (1, false));
        assert!(of(80).reason.contains("no rule"), "{}", of(80).reason);
    }

    #[tokio::test]
    async fn the_last_refusal_is_found_also_if_its_kind_was_reported_before() {
        let (ledger, _events) = ledger();
        for host in ["a.org", "b.org"] {
            ledger.note(host, 443, Err(RefusalReason::NotNamed.into())).await;
        }
        let before = ledger.decisions();
        assert_eq!(ledger.refused_since(before), None);
        ledger.note("c.org", 443, Ok(())).await;
        assert_eq!(ledger.refused_since(before), None, "an allowed connection is no refusal");
        ledger.note("a.org", 443, Err(RefusalReason::NotNamed.into())).await;
        assert_eq!(ledger.refused_since(before).unwrap().host, "a.org");
    }

    #[tokio::test]
    async fn a_flood_of_refusals_is_bounded_and_hides_nothing() {
        let (ledger, mut events) = ledger();
        for number in 0..DECISION_KEYS_MAX + 50 {
            let host = format!("h{number}.org");
            ledger.note(&host, 443, Err(RefusalReason::NotNamed.into())).await;
        }
        assert_eq!(reports(&mut events), DECISION_KEYS_MAX + 1);
        ledger.note("leak.org", 443, Ok(())).await;
        assert_eq!(reports(&mut events), 1, "an allowed host still has a count of its own");
        let log = ledger.log();
        assert_eq!(log.decisions.len(), DECISION_KEYS_MAX + 2);
        let others = log.decisions.iter().find(|decision| decision.host == NO_HOST).unwrap();
        assert_eq!(others.count, 50);
    }
}
