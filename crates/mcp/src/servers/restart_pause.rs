//! How long a server that has ended waits until it is started again. Pure.
//!
//! It is never given up: what keeps it from running (a network, a package, a file) may be there
//! later, and one start a minute harms nobody.

use std::time::Duration;

/// The first pause; each further one is twice as long, up to the longest.
pub(crate) const PAUSE_FIRST: Duration = Duration::from_secs(1);
pub(crate) const PAUSE_MAX: Duration = Duration::from_secs(60);

/// A server that has run for so long is well: the next pause is the first again.
const LIVED: Duration = Duration::from_secs(60);

#[derive(Debug, Default)]
pub(crate) struct RestartPauses {
    last: Option<Duration>,
}

impl RestartPauses {
    /// The pause after a life that lasted so long.
    pub fn after(&mut self, lived: Duration) -> Duration {
        let last = self.last.filter(|_| lived < LIVED);
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
