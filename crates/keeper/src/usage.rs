//! Measures what a turn uses. The kernel counts; the worker's word is not trusted.

use std::time::{Duration, Instant};

use nix::time::{ClockId, clock_getcpuclockid};
use nix::unistd::Pid;
use windlass_procs::process_file;
use windlass_protocol::event::Usage;

/// For shorter turns `/proc` is not read: reading would take longer than the turn.
const BRIEF_TURN: Duration = Duration::from_millis(2);

/// The usage counters of a worker process.
#[derive(Debug)]
pub(crate) struct Meter {
    pid: u32,
    clock: Option<ClockId>,
    peak_rss_bytes: u64,
    children_ms: f64,
}

/// The counters when a turn began.
#[derive(Debug)]
pub(crate) struct UsageMark {
    at: Instant,
    cpu: Duration,
}

impl UsageMark {
    /// Milliseconds since the mark was made.
    pub fn age_ms(&self) -> u64 {
        u64::try_from(self.at.elapsed().as_millis()).unwrap_or(u64::MAX)
    }
}

impl Meter {
    pub fn of(pid: u32) -> Self {
        let clock = clock_getcpuclockid(Pid::from_raw(pid.cast_signed())).ok();
        Self { pid, clock, peak_rss_bytes: 0, children_ms: 0.0 }
    }

    /// Reads the counters before the first turn, so that no turn is charged for earlier usage. The peak
    /// memory that is read here is reported for turns that are too short to read `/proc`. Without this call,
    /// the first turn reads `/proc` even if it is short.
    pub fn begin(&mut self) {
        if self.peak_rss_bytes == 0 {
            self.read_proc();
        }
    }

    pub fn mark(&self) -> UsageMark {
        UsageMark { at: Instant::now(), cpu: self.cpu() }
    }

    /// The usage since `mark`.
    pub fn since(&mut self, mark: &UsageMark, output_bytes: u64) -> Usage {
        let wall = mark.at.elapsed();
        let cpu = self.cpu().saturating_sub(mark.cpu);
        let mut cpu_ms = cpu.as_secs_f64() * 1e3;
        if wall >= BRIEF_TURN || self.peak_rss_bytes == 0 {
            cpu_ms += self.read_proc();
        }
        Usage {
            wall_ms: round(wall.as_secs_f64() * 1e3),
            cpu_ms: round(cpu_ms),
            peak_rss_bytes: self.peak_rss_bytes,
            output_bytes,
        }
    }

    fn cpu(&self) -> Duration {
        self.clock.and_then(|clock| clock.now().ok()).map_or(Duration::ZERO, Into::into)
    }

    /// Updates the peak memory. Returns the processor time of children that have ended since the last call.
    fn read_proc(&mut self) -> f64 {
        if let Some(peak) = peak_rss(self.pid) {
            self.peak_rss_bytes = peak;
        }
        let Some(total) = children_ms(self.pid) else { return 0.0 };
        let new = (total - self.children_ms).max(0.0);
        self.children_ms = total;
        new
    }
}

fn round(ms: f64) -> f64 {
    (ms * 1e3).round() / 1e3
}

fn peak_rss(pid: u32) -> Option<u64> {
    let status = process_file::read(pid, "status").ok()?;
    let line = status.lines().find(|line| line.starts_with("VmHWM:"))?;
    let kib: u64 = line.split_ascii_whitespace().nth(1)?.parse().ok()?;
    Some(kib * 1024)
}

fn children_ms(pid: u32) -> Option<f64> {
    let stat = process_file::read(pid, "stat").ok()?;
    // After the command in parentheses: cutime and cstime are the 14th and 15th fields.
    let fields: Vec<&str> = stat[stat.rfind(')')? + 1..].split_ascii_whitespace().collect();
    let ticks: u64 = fields.get(13)?.parse::<u64>().ok()? + fields.get(14)?.parse::<u64>().ok()?;
    Some(ticks as f64 * 1e3 / rustix::param::clock_ticks_per_second() as f64)
}
