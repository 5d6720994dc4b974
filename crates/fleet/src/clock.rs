//! The clock of leases. It counts while the machine sleeps, and it begins with the machine's start.

use rustix::time::{ClockId, clock_gettime};
use windlass_lifecycle::fleet::ClockMs;

/// Reads the machine's clock since its start.
#[derive(Debug, Clone, Copy, Default)]
pub struct FleetClock;

impl FleetClock {
    pub fn now(self) -> ClockMs {
        let time = clock_gettime(ClockId::Boottime);
        // The clock begins with 0 and never goes back, so neither part is negative.
        let seconds = u64::try_from(time.tv_sec).unwrap_or_default();
        let milliseconds = u64::try_from(time.tv_nsec).unwrap_or_default() / 1_000_000;
        ClockMs(seconds * 1_000 + milliseconds)
    }
}
