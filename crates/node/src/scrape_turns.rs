//! Keeps many scrapes of the metrics from slowing turns: one scrape runs at a time, and all share the measurements of
//! the last second. Knows no metric.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::{AcquireError, OwnedSemaphorePermit, Semaphore};

/// How long a measurement of the sessions' processes is given to other scrapes too.
const MEASUREMENT_LASTS: Duration = Duration::from_secs(1);

/// The order of scrapes.
#[derive(Debug)]
pub(crate) struct ScrapeTurns {
    one: Arc<Semaphore>,
    measured_at: Mutex<Option<Instant>>,
}

impl Default for ScrapeTurns {
    fn default() -> Self {
        Self { one: Arc::new(Semaphore::new(1)), measured_at: Mutex::default() }
    }
}

impl ScrapeTurns {
    /// Waits for the scrapes that came before. The next one starts when the permit is dropped.
    pub async fn next(&self) -> Result<OwnedSemaphorePermit, AcquireError> {
        self.one.clone().acquire_owned().await
    }

    /// Whether the processes of sessions are to be measured. The caller measures them then.
    pub fn takes_measurement(&self, now: Instant) -> bool {
        let mut measured_at = self.measured_at.lock().unwrap_or_else(PoisonError::into_inner);
        let is_due =
            measured_at.is_none_or(|at| now.saturating_duration_since(at) >= MEASUREMENT_LASTS);
        if is_due {
            *measured_at = Some(now);
        }
        is_due
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processes_are_measured_once_a_second() {
        let (turns, start) = (ScrapeTurns::default(), Instant::now());
        for (at_ms, expected) in
            [(0, true), (0, false), (999, false), (1000, true), (1500, false), (9000, true)]
        {
            let now = start + Duration::from_millis(at_ms);
            assert_eq!(turns.takes_measurement(now), expected, "{at_ms}");
        }
    }

    #[tokio::test]
    async fn a_scrape_starts_when_the_one_before_it_has_ended() {
        let turns = ScrapeTurns::default();
        let first = turns.next().await.unwrap();
        assert_eq!(turns.one.available_permits(), 0);
        drop(first);
        drop(turns.next().await.unwrap());
    }
}
