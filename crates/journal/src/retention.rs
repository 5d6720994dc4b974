//! Which ended sessions are kept: by age, by size, and by the share of each tenant. Pure: the caller has the clock and
//! removes sessions.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use windlass_protocol::{SessionId, TenantName};

/// Which ended sessions to keep.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RetentionOptions {
    /// Keep sessions that ended at most this long ago.
    pub max_age: Duration,
    /// Keep as many sessions as fit into this many bytes, together with everything else that counts.
    pub max_total_bytes: u64,
}

/// An ended session, and the bytes that its removal frees.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EndedSession {
    pub id: SessionId,
    pub ended_at_ms: u64,
    pub bytes: u64,
}

/// The bytes of the live sessions of each tenant, and of the live sessions without a tenant.
pub type LiveBytes = BTreeMap<Option<TenantName>, u64>;

/// What the sessions of one tenant keep, or the sessions without a tenant.
#[derive(Default)]
struct TenantStock<'a> {
    /// The bytes of all its sessions, and of the ended ones.
    bytes: u64,
    ended_bytes: u64,
    ended_oldest_first: VecDeque<&'a EndedSession>,
}

/// The sessions to remove now, in the order in which they ended:
///
/// 1. sessions that ended too long ago;
/// 2. the oldest sessions of a tenant that keeps more than its quota (`quota_of`) in ended sessions;
/// 3. if all sessions keep too much together: the oldest sessions of the tenant that keeps most. The sessions without a
///    tenant count as those of one more tenant. A tenant that keeps at most its share of the total loses nothing to the
///    others. All shares are equal.
pub fn sessions_to_remove(
    ended: &[EndedSession],
    live: &LiveBytes,
    quota_of: impl Fn(&TenantName) -> Option<u64>,
    options: RetentionOptions,
    now_ms: u64,
) -> Vec<SessionId> {
    let max_age_ms = u64::try_from(options.max_age.as_millis()).unwrap_or(u64::MAX);
    let is_old = |session: &EndedSession| now_ms.saturating_sub(session.ended_at_ms) > max_age_ms;
    let mut oldest_first: Vec<&EndedSession> = ended.iter().collect();
    oldest_first.sort_by(|one, other| {
        one.ended_at_ms.cmp(&other.ended_at_ms).then_with(|| one.id.cmp(&other.id))
    });
    let mut stocks = stocks(&oldest_first, live);
    let share = options.max_total_bytes / (stocks.len() as u64).max(1);
    let mut due: BTreeSet<&SessionId> = BTreeSet::new();
    for (tenant, stock) in &mut stocks {
        let quota = tenant.as_ref().and_then(&quota_of).unwrap_or(u64::MAX);
        while let Some(oldest) = stock.ended_oldest_first.front().copied() {
            if !is_old(oldest) && stock.ended_bytes <= quota {
                break;
            }
            stock.remove_oldest();
            due.insert(&oldest.id);
        }
    }
    let mut total = stocks.values().fold(0, |total: u64, stock| total.saturating_add(stock.bytes));
    while total > options.max_total_bytes {
        let beyond = stocks.values_mut().filter(|stock| stock.bytes > share);
        let most = beyond
            .filter(|stock| !stock.ended_oldest_first.is_empty())
            .max_by_key(|stock| stock.bytes);
        let Some(removed) = most.and_then(|stock| stock.remove_oldest()) else { break };
        total = total.saturating_sub(removed.bytes);
        due.insert(&removed.id);
    }
    let ids = oldest_first.into_iter().map(|session| &session.id);
    ids.filter(|id| due.contains(id)).cloned().collect()
}

/// What each tenant keeps. `oldest_first` has the ended sessions of all tenants.
fn stocks<'a>(
    oldest_first: &[&'a EndedSession],
    live: &LiveBytes,
) -> BTreeMap<Option<TenantName>, TenantStock<'a>> {
    let mut stocks: BTreeMap<Option<TenantName>, TenantStock<'a>> = BTreeMap::new();
    for (tenant, bytes) in live {
        stocks.entry(tenant.clone()).or_default().bytes = *bytes;
    }
    for session in oldest_first.iter().copied() {
        let stock = stocks.entry(session.id.tenant()).or_default();
        stock.bytes = stock.bytes.saturating_add(session.bytes);
        stock.ended_bytes = stock.ended_bytes.saturating_add(session.bytes);
        stock.ended_oldest_first.push_back(session);
    }
    stocks
}

impl<'a> TenantStock<'a> {
    fn remove_oldest(&mut self) -> Option<&'a EndedSession> {
        let oldest = self.ended_oldest_first.pop_front()?;
        self.bytes = self.bytes.saturating_sub(oldest.bytes);
        self.ended_bytes = self.ended_bytes.saturating_sub(oldest.bytes);
        Some(oldest)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOUR_MS: u64 = 3_600_000;

    fn hours(count: u64) -> Duration {
        Duration::from_secs(count * 3600)
    }

    /// Sessions with the hours since they ended, and with their bytes.
    fn ended(now_ms: u64, sessions: &[(&str, u64, u64)]) -> Vec<EndedSession> {
        let session = |(id, hours, bytes): &(&str, u64, u64)| EndedSession {
            id: SessionId::parse(*id).unwrap(),
            ended_at_ms: now_ms - hours * HOUR_MS,
            bytes: *bytes,
        };
        sessions.iter().map(session).collect()
    }

    #[test]
    fn the_oldest_sessions_go_first_and_only_as_many_as_necessary() {
        // Sessions that ended one, two and three hours ago, with 10, 20 and 30 bytes. Live ones have 40.
        let now_ms = 100 * HOUR_MS;
        let ended = ended(now_ms, &[("c", 1, 10), ("b", 2, 20), ("a", 3, 30)]);
        let live = LiveBytes::from([(None, 40)]);
        for (max_age, max_total_bytes, expected) in [
            (hours(4), 100, ""),
            (hours(3), 100, ""),
            (hours(2), 100, "a"),
            (hours(0), 100, "abc"),
            (hours(4), 99, "a"),
            (hours(4), 70, "a"),
            (hours(4), 69, "ab"),
            // Live sessions stay, even if they alone exceed the limit.
            (hours(4), 0, "abc"),
            (hours(2), 50, "ab"),
        ] {
            let options = RetentionOptions { max_age, max_total_bytes };
            let due = sessions_to_remove(&ended, &live, |_| None, options, now_ms);
            let found: String = due.iter().map(SessionId::as_str).collect();
            assert_eq!(found, expected, "{options:?}");
        }
        // A clock that was set back makes no session old.
        let options = RetentionOptions { max_age: hours(1), max_total_bytes: 100 };
        assert!(sessions_to_remove(&ended, &live, |_| None, options, HOUR_MS).is_empty());
    }

    #[test]
    fn a_tenant_loses_its_own_sessions_and_not_those_of_others() {
        let now_ms = 100 * HOUR_MS;
        let tenant = |name: &str| Some(TenantName::parse(name).unwrap());
        // The ended sessions, the live bytes, the quota of the tenant `t`, and what goes. All may keep 100 bytes.
        for (sessions, live, quota, expected) in [
            (vec![("old", 9, 40), ("a@t", 2, 40), ("b@t", 1, 40)], vec![], None, "a@t"),
            (vec![("old", 9, 50), ("a@t", 2, 60), ("b@t", 1, 60)], vec![], None, "a@t b@t"),
            (vec![("a", 9, 30), ("b", 8, 30), ("a@t", 9, 50)], vec![], None, "a"),
            // Three shares of 33 bytes.
            (
                vec![("a", 9, 30), ("a@t", 8, 30), ("a@u", 2, 20), ("b@u", 1, 30)],
                vec![],
                None,
                "a@u",
            ),
            // Live sessions count for the share of their tenant. They evict nobody else.
            (vec![("a", 9, 40), ("a@t", 1, 10)], vec![(tenant("t"), 200)], None, "a@t"),
            (vec![("a", 9, 40)], vec![(tenant("t"), 200)], None, ""),
            (vec![("a", 9, 40), ("a@t", 1, 10)], vec![(None, 200)], None, "a"),
            // The quota holds although there is room for all.
            (vec![("a@t", 3, 10), ("b@t", 2, 10), ("c@t", 1, 10)], vec![], Some(20), "a@t"),
            (vec![("a@t", 3, 10), ("b@t", 2, 10)], vec![(tenant("t"), 90)], Some(20), "a@t"),
            (vec![("a@t", 3, 30), ("a@u", 3, 30), ("a", 3, 30)], vec![], Some(0), "a@t"),
        ] {
            let (sessions, live) = (ended(now_ms, &sessions), LiveBytes::from_iter(live));
            let options = RetentionOptions { max_age: hours(10), max_total_bytes: 100 };
            let quota_of = |of: &TenantName| quota.filter(|_| of.as_str() == "t");
            let due = sessions_to_remove(&sessions, &live, quota_of, options, now_ms);
            let found: Vec<&str> = due.iter().map(SessionId::as_str).collect();
            assert_eq!(found.join(" "), expected, "{sessions:?} {live:?} {quota:?}");
        }
    }
}
