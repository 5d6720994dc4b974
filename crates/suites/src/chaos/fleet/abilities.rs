//! What this machine can do for a run. A fault that it cannot do is reported as skipped with the reason.

use std::fs;
use std::process::Command;

use anyhow::{Context as _, Result, ensure};

use super::disk::PowerDisk;
use super::network::{DELAY, LOW_RATE, has_discipline};
use super::schedule::FleetFault;
use crate::workspace::output_of;

/// How far the clocks are ahead that are tried.
const CLOCK_TRIAL_S: u64 = 100_000;

const UPTIME: &str = "/proc/uptime";

/// The options of `unshare` for a process whose clocks are ahead by this many seconds.
pub fn clocks_ahead(seconds: u64) -> [String; 5] {
    let seconds = seconds.to_string();
    ["--time", "--monotonic", &seconds, "--boottime", &seconds].map(str::to_owned)
}

#[derive(Debug, Clone, Copy)]
pub struct Abilities {
    /// The options of `tc` that slow a link.
    pub slow_link: Option<&'static [&'static str]>,
    /// Disks that can lose their power.
    pub has_disks: bool,
    /// Monotonic clocks that differ between nodes.
    pub has_clocks: bool,
}

impl Abilities {
    /// Tries each ability, and prints what is missing.
    pub fn find() -> Self {
        let slow_link = if has_discipline(DELAY) {
            Some(DELAY)
        } else if has_discipline(LOW_RATE) {
            println!(
                "skipped: slow link by delay: the kernel has no netem; slow links have a low rate \
                 instead"
            );
            Some(LOW_RATE)
        } else {
            println!("skipped: slow link: the kernel has neither netem nor tbf");
            None
        };
        let disks = try_disk();
        if let Err(error) = &disks {
            println!("skipped: power loss: cannot use a disk in a file: {error:#}");
        }
        let clocks = try_clocks();
        if let Err(error) = &clocks {
            println!("skipped: clocks that differ: {error:#}");
        }
        Self { slow_link, has_disks: disks.is_ok(), has_clocks: clocks.is_ok() }
    }

    /// Whether a fault can be done.
    pub fn allow(self, fault: &FleetFault) -> bool {
        match fault {
            FleetFault::SlowLink(_) => self.slow_link.is_some(),
            FleetFault::ServerPowerLoss(_) | FleetFault::AllServersPowerLoss => self.has_disks,
            _ => true,
        }
    }
}

/// Compares the uptime that a program sees with that of this process. On a kernel before 6.1 only the children of the
/// program would have other clocks.
fn try_clocks() -> Result<()> {
    let own = uptime_in(&fs::read_to_string(UPTIME)?)?;
    let mut command = Command::new("unshare");
    command.args(clocks_ahead(CLOCK_TRIAL_S)).args(["--", "cat", UPTIME]);
    let ahead = uptime_in(&output_of(&mut command).context("no time namespaces")?)?;
    ensure!(
        ahead >= own + CLOCK_TRIAL_S,
        "in a time namespace that is {CLOCK_TRIAL_S} s ahead, the uptime is {ahead} s after {own} s"
    );
    Ok(())
}

/// The whole seconds in the text of `/proc/uptime`.
fn uptime_in(text: &str) -> Result<u64> {
    let whole = text.split('.').next().unwrap_or_default();
    whole.trim().parse().with_context(|| format!("{text:?} is not an uptime"))
}

/// Makes a disk, and lets it lose its power.
fn try_disk() -> Result<()> {
    let directory = tempfile::tempdir()?;
    PowerDisk::make(directory.path(), "disk")?.rehearse()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_uptime_is_read_in_whole_seconds() {
        assert_eq!(uptime_in("102345.67 400000.12\n").unwrap(), 102_345);
        assert!(uptime_in("").is_err() && uptime_in("soon").is_err());
    }
}
