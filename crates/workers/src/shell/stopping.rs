//! The signals of an interrupt: first SIGINT, then stronger ones for programs that ignore it, so that the turn
//! ends before the keeper's grace does. A pure table of times.

use std::time::{Duration, Instant};

/// What to do next about a turn that shall stop.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StopStep {
    /// SIGINT to the foreground and to bash.
    Interrupt,
    /// SIGTERM to the foreground, SIGINT to bash.
    Terminate,
    /// SIGKILL to the foreground, SIGINT to bash.
    KillForeground,
    /// SIGHUP to bash, which saves its state and ends.
    HangUp,
    /// SIGKILL to bash. Its state is lost.
    KillBash,
}

/// When each step is due, from the interrupt on.
const STEPS: [(u64, StopStep); 8] = [
    (0, StopStep::Interrupt),
    (100, StopStep::Interrupt),
    (400, StopStep::Interrupt),
    (1000, StopStep::Terminate),
    (1600, StopStep::KillForeground),
    (2200, StopStep::KillForeground),
    (2800, StopStep::HangUp),
    (3600, StopStep::KillBash),
];

/// A turn that shall stop.
#[derive(Debug, Clone, Copy)]
pub struct Stopping {
    since: Instant,
    next: usize,
}

impl Stopping {
    pub fn begin(now: Instant) -> Self {
        Self { since: now, next: 0 }
    }

    /// The step that is due now. Each step is returned once.
    pub fn step(&mut self, now: Instant) -> Option<StopStep> {
        let (at_ms, step) = STEPS.get(self.next)?;
        if now < self.since + Duration::from_millis(*at_ms) {
            return None;
        }
        self.next += 1;
        Some(*step)
    }

    /// When the next step is due.
    pub fn due(&self) -> Option<Instant> {
        STEPS.get(self.next).map(|(at_ms, _)| self.since + Duration::from_millis(*at_ms))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_step_comes_once_and_in_order() {
        let start = Instant::now();
        let mut stopping = Stopping::begin(start);
        let mut steps = Vec::new();
        for ms in (0..6000).step_by(50) {
            while let Some(step) = stopping.step(start + Duration::from_millis(ms)) {
                steps.push((ms, step));
            }
        }
        assert_eq!(steps, STEPS.map(|(ms, step)| (ms, step)));
        assert_eq!(stopping.due(), None);
        // The keeper kills everything after 5 s.
        assert!(steps.last().unwrap().0 < 4000);
    }
}
