//! Reads usage and limits of a session's cgroups, for the keeper. Never writes.

use std::path::{Path, PathBuf};

/// The files from which a session's memory and process counts are read.
#[derive(Debug, Default)]
pub struct Gauge {
    memory: Option<MemoryCgroup>,
    pids: Option<PathBuf>,
}

#[derive(Debug)]
struct MemoryCgroup {
    dir: PathBuf,
    files: &'static MemoryFiles,
}

#[derive(Debug)]
struct MemoryFiles {
    current: &'static str,
    max: &'static str,
    /// The file with the line `oom_kill N`.
    kills: &'static str,
}

const V1: MemoryFiles = MemoryFiles {
    current: "memory.usage_in_bytes",
    max: "memory.limit_in_bytes",
    kills: "memory.oom_control",
};

const V2: MemoryFiles =
    MemoryFiles { current: "memory.current", max: "memory.max", kills: "memory.events" };

impl Gauge {
    /// Finds the directory of each controller.
    pub fn open(dirs: &[PathBuf]) -> Self {
        let with = |file: &str| dirs.iter().find(|dir| dir.join(file).exists()).cloned();
        let memory = [&V2, &V1]
            .into_iter()
            .find_map(|files| with(files.max).map(|dir| MemoryCgroup { dir, files }));
        Self { memory, pids: with("pids.max") }
    }

    /// Whether a cgroup limits the session's memory.
    pub fn limits_memory(&self) -> bool {
        self.memory.is_some()
    }

    /// Whether a cgroup limits the number of the session's processes.
    pub fn limits_processes(&self) -> bool {
        self.pids.is_some()
    }

    /// Number of processes that the kernel has killed at the memory limit.
    pub fn oom_kills(&self) -> u64 {
        let kills = self
            .memory
            .as_ref()
            .and_then(|memory| counter(&memory.dir.join(memory.files.kills), "oom_kill"));
        kills.unwrap_or(0)
    }

    /// Number of forks that the kernel has refused at the process limit.
    pub fn refused_processes(&self) -> u64 {
        self.pids.as_ref().and_then(|dir| counter(&dir.join("pids.events"), "max")).unwrap_or(0)
    }

    /// Current number of processes and threads, and the limit. `None` if there is no limit.
    pub fn processes(&self) -> Option<(u64, u64)> {
        let dir = self.pids.as_ref()?;
        Some((number(&dir.join("pids.current"))?, number(&dir.join("pids.max"))?))
    }

    /// Current bytes of memory, and the limit. `None` if there is no limit.
    pub fn memory(&self) -> Option<(u64, u64)> {
        let MemoryCgroup { dir, files } = self.memory.as_ref()?;
        Some((number(&dir.join(files.current))?, number(&dir.join(files.max))?))
    }
}

/// Reads a file that holds one number. The text `max` gives `None`.
pub(super) fn number(file: &Path) -> Option<u64> {
    std::fs::read_to_string(file).ok()?.trim().parse().ok()
}

/// The number in the line `name N`.
pub(super) fn counter(file: &Path, name: &str) -> Option<u64> {
    let text = std::fs::read_to_string(file).ok()?;
    let value = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '))?;
    value.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn dir_with(files: &[(&str, &str)]) -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        for (name, text) in files {
            std::fs::write(dir.path().join(name), text).unwrap();
        }
        dir
    }

    #[test]
    fn version_2_is_read() {
        let dir = dir_with(&[
            ("memory.current", "1000\n"),
            ("memory.max", "4096\n"),
            ("memory.events", "low 0\nhigh 0\nmax 9\noom 4\noom_kill 3\noom_group_kill 1\n"),
            ("pids.current", "7\n"),
            ("pids.max", "16\n"),
            ("pids.events", "max 12\n"),
        ]);
        let gauge = Gauge::open(&[dir.path().to_owned()]);
        assert_eq!(gauge.memory(), Some((1000, 4096)));
        assert_eq!(gauge.processes(), Some((7, 16)));
        assert_eq!((gauge.oom_kills(), gauge.refused_processes()), (3, 12));
    }

    #[test]
    fn version_1_is_read() {
        let memory = dir_with(&[
            ("memory.usage_in_bytes", "1000\n"),
            ("memory.limit_in_bytes", "4096\n"),
            ("memory.oom_control", "oom_kill_disable 0\nunder_oom 0\noom_kill 2\n"),
        ]);
        let pids = dir_with(&[("pids.current", "7\n"), ("pids.max", "max\n")]);
        let gauge = Gauge::open(&[pids.path().to_owned(), memory.path().to_owned()]);
        assert_eq!(gauge.memory(), Some((1000, 4096)));
        assert_eq!(gauge.processes(), None);
        assert_eq!((gauge.oom_kills(), gauge.refused_processes()), (2, 0));
    }

    #[test]
    fn no_cgroups_say_nothing() {
        let gauge = Gauge::open(&[]);
        assert!(!gauge.limits_memory() && !gauge.limits_processes());
        assert_eq!((gauge.memory(), gauge.processes(), gauge.oom_kills()), (None, None, 0));
    }
}
