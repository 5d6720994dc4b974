//! How long a server that has ended waits before its restart. Pure.
//!
//! Restarts never stop: a missing network, package or file may appear later, and one start per
//! minute does no harm.

use std::time::Duration;

/// The first pause. Each further pause is twice as long, up to `PAUSE_MAX`.
pub(crate) const PAUSE_FIRST: Duration = Duration::from_secs(1);
pub(crate) const PAUSE_MAX: Duration = Duration::from_secs(60);

/// A server that ran this long was healthy: the next pause is `PAUSE_FIRST` again.
const HEALTHY_AFTER: Duration = Duration::from_secs(60);

#[derive(Debug, Default)]
pub(crate) struct RestartPauses {
    last: Option<Duration>,
}

impl RestartPauses {
    /// The pause after a run that lasted `lived`.
    pub fn after(&mut self, lived: Duration) -> Duration {
        let last = self.last.filter(|_| lived < HEALTHY_AFTER);
        let next = last.map_or(PAUSE_FIRST, |last| (last * 2).min(PAUSE_MAX));
        self.last = Some(next);
        next
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_to_a_minute_and_begin_again_after_a_minute_of_life() {
        let mut pauses = RestartPauses::default();
        let lives = [0, 0, 0, 30, 0, 0, 59, 0, 60, 0];
        let made: Vec<u64> =
            lives.map(|lived| pauses.after(Duration::from_secs(lived)).as_secs()).to_vec();
        assert_eq!(made, [1, 2, 4, 8, 16, 32, 60, 60, 1, 2]);
    }
}
