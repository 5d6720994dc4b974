//! Which ended sessions are kept, by age and by size. Pure: the caller has the clock and removes sessions.

use std::time::Duration;

use windlass_protocol::SessionId;

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

/// The sessions to remove now, in the order in which they ended. `total_bytes` is the size of everything that
/// counts, including live sessions.
pub fn sessions_to_remove(
    ended: &[EndedSession],
    total_bytes: u64,
    options: RetentionOptions,
    now_ms: u64,
) -> Vec<SessionId> {
    let max_age_ms = u64::try_from(options.max_age.as_millis()).unwrap_or(u64::MAX);
    let mut oldest_first: Vec<&EndedSession> = ended.iter().collect();
    oldest_first.sort_by(|one, other| {
        one.ended_at_ms.cmp(&other.ended_at_ms).then_with(|| one.id.cmp(&other.id))
    });
    let mut total = total_bytes;
    let mut due = Vec::new();
    for session in oldest_first {
        let is_old = now_ms.saturating_sub(session.ended_at_ms) > max_age_ms;
        if is_old || total > options.max_total_bytes {
            total = total.saturating_sub(session.bytes);
            due.push(session.id.clone());
        }
    }
    due
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOUR_MS: u64 = 3_600_000;

    #[test]
    fn the_oldest_sessions_go_first_and_only_as_many_as_necessary() {
        // Sessions that ended one, two and three hours ago, with 10, 20 and 30 bytes. Live ones have 40.
        let now_ms = 100 * HOUR_MS;
        let ended: Vec<_> = [("c", 1, 10), ("b", 2, 20), ("a", 3, 30)]
            .map(|(id, hours, bytes)| EndedSession {
                id: SessionId::parse(id).unwrap(),
                ended_at_ms: now_ms - hours * HOUR_MS,
                bytes,
            })
            .into();
        let hours = |hours: u64| Duration::from_secs(hours * 3600);
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
            let found: String = sessions_to_remove(&ended, 100, options, now_ms)
                .iter()
                .map(SessionId::as_str)
                .collect();
            assert_eq!(found, expected, "{options:?}");
        }
        // A clock that was set back makes no session old.
        let options = RetentionOptions { max_age: hours(1), max_total_bytes: 100 };
        assert!(sessions_to_remove(&ended, 100, options, HOUR_MS).is_empty());
    }
}
