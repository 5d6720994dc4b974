//! Reads what the processes in a session's cgroups use, for the node's accounting. Never writes.

use std::path::{Path, PathBuf};
use std::time::Duration;

use super::gauge::{counter, number};

/// What the processes in cgroups use. Absent: no cgroup counts it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct CgroupUsage {
    /// Bytes of memory now, with the files that the kernel caches for these processes.
    pub memory_bytes: Option<u64>,
    /// CPU time of all processes that were ever in the cgroups.
    pub cpu_time: Option<Duration>,
}

impl CgroupUsage {
    /// Reads the files of a session's cgroups. `dirs` has one directory, or one for each controller of version 1.
    pub fn of(dirs: &[PathBuf]) -> Self {
        Self {
            memory_bytes: dirs.iter().find_map(|dir| memory_bytes(dir)),
            cpu_time: dirs.iter().find_map(|dir| cpu_time(dir)),
        }
    }
}

fn memory_bytes(dir: &Path) -> Option<u64> {
    let version_1 = || number(&dir.join("memory.usage_in_bytes"));
    number(&dir.join("memory.current")).or_else(version_1)
}

fn cpu_time(dir: &Path) -> Option<Duration> {
    let version_1 = || number(&dir.join("cpuacct.usage")).map(Duration::from_nanos);
    counter(&dir.join("cpu.stat"), "usage_usec").map(Duration::from_micros).or_else(version_1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_versions_are_read() {
        let stat = ("cpu.stat", "nr_periods 1\nnr_throttled 0\n");
        for (files, memory_bytes, cpu_ms) in [
            (
                vec![("memory.current", "1000\n"), ("cpu.stat", "usage_usec 7000\n")],
                Some(1000),
                Some(7),
            ),
            (vec![("cpu.stat", "usage_usec 7000\nuser_usec 1\n")], None, Some(7)),
            (vec![("memory.usage_in_bytes", "1000\n")], Some(1000), None),
            (vec![stat, ("cpuacct.usage", "7000000\n")], None, Some(7)),
            (vec![stat], None, None),
            (vec![("memory.current", "")], None, None),
        ] {
            let (empty, dir) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
            for (name, text) in &files {
                std::fs::write(dir.path().join(name), text).unwrap();
            }
            let found = CgroupUsage::of(&[empty.path().to_owned(), dir.path().to_owned()]);
            let cpu_time = cpu_ms.map(Duration::from_millis);
            assert_eq!(found, CgroupUsage { memory_bytes, cpu_time }, "{files:?}");
        }
        assert_eq!(CgroupUsage::of(&[]), CgroupUsage::default());
    }
}
