//! The idle timeout of a session: which clients are connected, when the session was last used, and when to
//! check next. The lifecycle decides whether the session is idle.
//!
//! A use only stores its time. The owner's alarm rings at most once per idle timeout, and the owner then
//! checks the time of the last use. A node that takes a session over counts from that moment, because it
//! does not know earlier clients.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use crate::clock::in_words;

/// The longest idle timeout. A longer one is cut to this.
const IDLE_S_MAX: u64 = 100 * 365 * 24 * 3600;

/// Counts the clients that are connected to a session without a request in its inbox: followers of its
/// events, watchers of its files, its tool hosts.
#[derive(Debug, Clone)]
pub(crate) struct ClientPresence {
    shared: Arc<PresenceShared>,
}

#[derive(Debug)]
struct PresenceShared {
    born: Instant,
    connected: AtomicUsize,
    /// When a client was last connected, in milliseconds after `born`.
    seen_ms: AtomicU64,
}

/// A connected client. It counts as connected until this is dropped.
#[derive(Debug)]
pub(crate) struct PresentClient {
    presence: ClientPresence,
}

impl Default for ClientPresence {
    fn default() -> Self {
        let shared = PresenceShared {
            born: Instant::now(),
            connected: AtomicUsize::new(0),
            seen_ms: AtomicU64::new(0),
        };
        Self { shared: Arc::new(shared) }
    }
}

impl ClientPresence {
    pub fn enter(&self) -> PresentClient {
        self.shared.connected.fetch_add(1, Ordering::Relaxed);
        PresentClient { presence: self.clone() }
    }

    /// A client was connected at this moment.
    pub fn noticed(&self) {
        let passed = self.shared.born.elapsed().as_millis();
        let seen_ms = u64::try_from(passed).unwrap_or(u64::MAX);
        self.shared.seen_ms.store(seen_ms, Ordering::Relaxed);
    }

    /// When a client was last connected: `now`, if one is connected.
    fn last_seen(&self, now: Instant) -> Instant {
        if self.shared.connected.load(Ordering::Relaxed) > 0 {
            return now;
        }
        self.shared.born + Duration::from_millis(self.shared.seen_ms.load(Ordering::Relaxed))
    }
}

impl Drop for PresentClient {
    fn drop(&mut self) {
        self.presence.noticed();
        self.presence.shared.connected.fetch_sub(1, Ordering::Relaxed);
    }
}

/// A session's idle timeout.
#[derive(Debug)]
pub(super) struct IdleWatch {
    clients: ClientPresence,
    last_use: Instant,
    timeout: Option<IdleTimeout>,
}

#[derive(Debug)]
struct IdleTimeout {
    limit: Duration,
    /// The next check. The session cannot be idle before this moment.
    due: Instant,
}

impl IdleWatch {
    /// `session_s` is the session's own timeout, 0 for none. Without it the `node` default counts.
    pub fn new(session_s: Option<u64>, node: Option<Duration>, clients: ClientPresence) -> Self {
        let limit = match session_s {
            Some(0) => None,
            Some(seconds) => Some(Duration::from_secs(seconds)),
            None => node,
        };
        let now = Instant::now();
        let timeout = limit.map(|limit| {
            let limit = limit.min(Duration::from_secs(IDLE_S_MAX));
            IdleTimeout { limit, due: now + limit }
        });
        Self { clients, last_use: now, timeout }
    }

    /// The session is used now.
    pub fn used(&mut self) {
        self.last_use = Instant::now();
    }

    /// When to check whether the session is idle. None: the session has no idle timeout.
    pub fn due(&self) -> Option<Instant> {
        self.timeout.as_ref().map(|timeout| timeout.due)
    }

    /// Whether the idle timeout has passed since the last use. If not, sets the next check.
    pub fn has_passed(&mut self, now: Instant) -> bool {
        let last_use = self.last_use.max(self.clients.last_seen(now));
        let Some(timeout) = &mut self.timeout else { return false };
        timeout.due = last_use + timeout.limit;
        timeout.due <= now
    }

    /// The session is in use at `now`: the timeout starts again.
    pub fn put_off(&mut self, now: Instant) {
        self.last_use = now;
        self.has_passed(now);
    }

    /// Why the session ended, for its receipt.
    pub fn in_words(&self) -> String {
        let limit = self.timeout.as_ref().map_or(Duration::ZERO, |timeout| timeout.limit);
        format!("it had no client and no turn for {}, its idle timeout", in_words(limit))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: Duration = Duration::from_secs(60);

    fn watch() -> IdleWatch {
        IdleWatch::new(None, Some(LIMIT), ClientPresence::default())
    }

    #[test]
    fn an_unused_session_is_idle_when_its_timeout_has_passed() {
        let mut idle = watch();
        let due = idle.due().unwrap();
        assert!(!idle.has_passed(due - Duration::from_millis(1)));
        assert!(idle.has_passed(due));
    }

    #[test]
    fn the_check_finds_the_last_use_and_counts_from_it() {
        let mut idle = watch();
        let due = idle.due().unwrap();
        let used = due - LIMIT / 2;
        idle.last_use = used;
        assert_eq!(idle.due(), Some(due), "a use does not move the check");
        assert!(!idle.has_passed(due));
        assert_eq!(idle.due(), Some(used + LIMIT));
        assert!(idle.has_passed(used + LIMIT));
        idle.put_off(used + LIMIT);
        assert_eq!(idle.due(), Some(used + LIMIT + LIMIT));
    }

    #[test]
    fn a_connected_client_keeps_the_session_and_its_disconnect_is_the_last_use() {
        let mut idle = watch();
        let (client, other) = (idle.clients.enter(), idle.clients.enter());
        let much_later = idle.due().unwrap() + 10 * LIMIT;
        assert!(!idle.has_passed(much_later));
        assert_eq!(idle.due(), Some(much_later + LIMIT));
        drop(client);
        assert!(!idle.has_passed(much_later), "the other client is connected");
        let before = Instant::now();
        drop(other);
        // The time of the disconnect is kept in whole milliseconds.
        let left = before - Duration::from_millis(1);
        assert!(!idle.has_passed(left + LIMIT - Duration::from_millis(1)));
        assert!(idle.has_passed(Instant::now() + LIMIT));
    }

    #[test]
    fn a_session_may_have_another_timeout_than_the_node_or_none() {
        let clients = ClientPresence::default;
        let limit = |idle: &IdleWatch| idle.timeout.as_ref().map(|timeout| timeout.limit);
        for (session_s, node, expected) in [
            (None, Some(LIMIT), Some(LIMIT)),
            (Some(7), Some(LIMIT), Some(Duration::from_secs(7))),
            (Some(0), Some(LIMIT), None),
            (Some(7), None, Some(Duration::from_secs(7))),
            (None, None, None),
            (Some(u64::MAX), None, Some(Duration::from_secs(IDLE_S_MAX))),
        ] {
            assert_eq!(limit(&IdleWatch::new(session_s, node, clients())), expected);
        }
        let idle = IdleWatch::new(Some(90), None, clients());
        assert_eq!(idle.in_words(), "it had no client and no turn for 90 s, its idle timeout");
    }
}
