//! What a turn cost, read from the kernel and not from the worker.

use std::time::{Duration, Instant};

use nix::time::{ClockId, clock_getcpuclockid};
use nix::unistd::Pid;
use windlass_procs::process_file;
use windlass_protocol::event::Usage;

/// Turns shorter than this are not worth reading `/proc` for: it would cost more than they did.
const BRIEF: Duration = Duration::from_millis(2);

/// The worker process's counters.
#[derive(Debug)]
pub(crate) struct Meter {
    pid: u32,
    clock: Option<ClockId>,
    peak_rss_bytes: u64,
    children_ms: f64,
}

/// The counters when a turn began.
#[derive(Debug)]
pub(crate) struct Mark {
    at: Instant,
    cpu: Duration,
}

impl Mark {
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

    /// What the worker has taken until now is no turn's, and its peak so far stands for turns that are
    /// too brief to look. Without this, the first turn looks however brief it is.
    pub fn begin(&mut self) {
        if self.peak_rss_bytes == 0 {
            self.read_proc();
        }
    }

    pub fn mark(&self) -> Mark {
        Mark { at: Instant::now(), cpu: self.cpu() }
    }

    /// What has been used since `mark`.
    pub fn since(&mut self, mark: &Mark, output_bytes: u64) -> Usage {
        let wall = mark.at.elapsed();
        let cpu = self.cpu().saturating_sub(mark.cpu);
        let mut cpu_ms = cpu.as_secs_f64() * 1e3;
        if wall >= BRIEF || self.peak_rss_bytes == 0 {
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

    /// Refreshes the peak and gives the processor time of children that ended since the last look.
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
