//! Times of a fleet: readings of a clock, and the one timeline that all nodes share.

/// A reading of the node's own monotonic clock, in milliseconds. Two nodes never compare their readings.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct ClockMs(pub u64);

impl ClockMs {
    /// Milliseconds since an earlier reading; 0 if that reading is later.
    #[must_use]
    pub fn since(self, earlier: Self) -> u64 {
        self.0.saturating_sub(earlier.0)
    }

    #[must_use]
    pub fn after(self, span_ms: u64) -> Self {
        Self(self.0.saturating_add(span_ms))
    }
}

/// The times of leases. All nodes of a fleet have the same.
///
/// | after the last renewal | what happens |
/// |---|---|
/// | `close_ms` | the node takes no new sessions |
/// | `ttl_ms` | the store removes the lease, others tell the node's sessions as unreachable |
/// | `fence_ms()` | the node ends its sessions |
/// | `ttl_ms + lost_after_ms` | others declare the node lost, and names are free |
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LeaseTiming {
    pub ttl_ms: u64,
    pub renew_ms: u64,
    pub retry_ms: u64,
    pub close_ms: u64,
    pub lost_after_ms: u64,
}

impl Default for LeaseTiming {
    fn default() -> Self {
        Self {
            ttl_ms: 30_000,
            renew_ms: 5_000,
            retry_ms: 500,
            close_ms: 22_000,
            lost_after_ms: 300_000,
        }
    }
}

impl LeaseTiming {
    /// The times of a fleet whose leases live this long. The other times keep their proportions.
    #[must_use]
    pub fn of(lease_ms: u64, lost_after_ms: u64) -> Self {
        Self {
            ttl_ms: lease_ms,
            renew_ms: lease_ms / 6,
            retry_ms: (lease_ms / 12).min(500),
            close_ms: lease_ms.saturating_mul(22) / 30,
            lost_after_ms,
        }
    }

    /// How much earlier a node fences itself than others declare it lost. It covers two clocks that differ by 5 %, and
    /// the time to end the sessions.
    pub fn margin_ms(&self) -> u64 {
        5_000 + (self.ttl_ms + self.lost_after_ms) / 20
    }

    /// From this time after the last renewal the node accepts no turn and ends its sessions.
    pub fn fence_ms(&self) -> u64 {
        (self.ttl_ms + self.lost_after_ms).saturating_sub(self.margin_ms()).max(self.close_ms)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_of_a_lease_keep_the_order_of_the_timeline() {
        assert_eq!(LeaseTiming::of(30_000, 300_000), LeaseTiming::default());
        for lease_ms in [2_000, 3_000, 30_000, 300_000] {
            for lost_after_ms in [10_000, 300_000, 86_400_000] {
                let timing = LeaseTiming::of(lease_ms, lost_after_ms);
                assert!(timing.retry_ms > 0 && timing.retry_ms < timing.renew_ms, "{timing:?}");
                assert!(timing.renew_ms < timing.close_ms, "{timing:?}");
                assert!(timing.close_ms < timing.ttl_ms, "{timing:?}");
                assert!(timing.fence_ms() < timing.ttl_ms + timing.lost_after_ms, "{timing:?}");
            }
        }
    }
}
