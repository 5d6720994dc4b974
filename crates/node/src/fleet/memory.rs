//! The memory that new sessions can have: what the machine has left, or the limit of the node's cgroup if that is
//! tighter. Reads `/proc` and the cgroup file system, and never waits for anything else.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use windlass_protocol::fleet_view::MemoryCapacity;

/// How long a measurement holds: many sessions may be created at once.
const FRESH: Duration = Duration::from_millis(100);

/// A tenth of the memory stays free, but at least this much.
const RESERVE_PARTS: u64 = 10;
const RESERVE_BYTES_MIN: u64 = 256 << 20;

/// Of a small machine, at most this part is kept in reserve.
const RESERVE_PARTS_MIN: u64 = 2;

/// Measures the memory. See the module documentation.
#[derive(Debug, Default)]
pub(super) struct MemoryGauge {
    /// The node's cgroup and those above it. Found at the first measurement: a node moves into its cgroup when it starts.
    cgroups: OnceLock<Vec<CgroupMemory>>,
    last: Mutex<Option<(Instant, MemoryCapacity)>>,
}

/// A cgroup that may limit the node's memory.
#[derive(Debug, Clone, PartialEq, Eq)]
struct CgroupMemory {
    dir: PathBuf,
    names: &'static CgroupFileNames,
}

#[derive(Debug, PartialEq, Eq)]
struct CgroupFileNames {
    limit: &'static str,
    used: &'static str,
    /// The line of `memory.stat` with the bytes of files that the kernel can drop.
    droppable: &'static str,
}

const V2: CgroupFileNames =
    CgroupFileNames { limit: "memory.max", used: "memory.current", droppable: "inactive_file" };
const V1: CgroupFileNames = CgroupFileNames {
    limit: "memory.limit_in_bytes",
    used: "memory.usage_in_bytes",
    droppable: "total_inactive_file",
};

impl MemoryGauge {
    pub fn measure(&self) -> MemoryCapacity {
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((at, known)) = *last
            && at.elapsed() < FRESH
        {
            return known;
        }
        let cgroups = self.cgroups.get_or_init(|| {
            cgroups_of(&read(Path::new("/proc/self/cgroup")), Path::new("/sys/fs/cgroup"))
        });
        let limits = cgroups.iter().filter_map(CgroupMemory::measure);
        let capacity = capacity(&read(Path::new("/proc/meminfo")), limits);
        *last = Some((Instant::now(), capacity));
        capacity
    }
}

impl CgroupMemory {
    /// The limit, and how much of it is left; `None` without a limit.
    fn measure(&self) -> Option<(u64, u64)> {
        let number = |name: &str| read(&self.dir.join(name)).trim().parse::<u64>().ok();
        let limit = number(self.names.limit)?;
        let stat = read(&self.dir.join("memory.stat"));
        let droppable = stat.lines().find_map(|line| {
            line.strip_prefix(self.names.droppable)?.strip_prefix(' ')?.trim().parse::<u64>().ok()
        });
        let used = number(self.names.used)?.saturating_sub(droppable.unwrap_or(0));
        Some((limit, limit.saturating_sub(used)))
    }
}

/// The cgroups that may limit this process, from its own one up. `groups` is the text of `/proc/self/cgroup`.
fn cgroups_of(groups: &str, root: &Path) -> Vec<CgroupMemory> {
    let mut found = Vec::new();
    for line in groups.lines() {
        let mut parts = line.splitn(3, ':').skip(1);
        let (Some(controllers), Some(path)) = (parts.next(), parts.next()) else { continue };
        let (root, names) = match controllers {
            "" => (root.to_owned(), &V2),
            several if several.split(',').any(|one| one == "memory") => (root.join("memory"), &V1),
            _ => continue,
        };
        // The path of a process outside of this cgroup namespace leads nowhere.
        if path.split('/').any(|part| part == "..") {
            continue;
        }
        let own = match path.trim_matches('/') {
            "" => root.clone(),
            below => root.join(below),
        };
        let dirs = own.ancestors().take_while(|dir| dir.starts_with(&root));
        found.extend(dirs.map(|dir| CgroupMemory { dir: dir.to_owned(), names }));
    }
    found
}

/// `limits`: the limit of each cgroup, and how much of it is left.
fn capacity(meminfo: &str, limits: impl Iterator<Item = (u64, u64)>) -> MemoryCapacity {
    let line = |name: &str| {
        let value = meminfo.lines().find_map(|line| line.strip_prefix(name))?;
        let kib = value.strip_prefix(':')?.split_ascii_whitespace().next()?.parse::<u64>().ok()?;
        kib.checked_mul(1024)
    };
    // If the kernel does not report it, only the cgroups limit the node.
    let mut total = line("MemTotal").unwrap_or(u64::MAX);
    let mut available = line("MemAvailable").unwrap_or(total);
    for (limit, left) in limits {
        total = total.min(limit);
        available = available.min(left);
    }
    let reserve = (total / RESERVE_PARTS).max(RESERVE_BYTES_MIN).min(total / RESERVE_PARTS_MIN);
    MemoryCapacity { total_bytes: total, available_bytes: available, reserve_bytes: reserve }
}

/// The text of a file of the kernel; empty if it cannot be read.
pub(super) fn read(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;
    const MEMINFO: &str =
        "MemTotal:       8388608 kB\nMemFree:         100000 kB\nMemAvailable:   4194304 kB\n";

    #[test]
    fn the_tightest_limit_counts_and_a_part_stays_in_reserve() {
        for (limits, total, available, reserve) in [
            (vec![], 8_192, 4_096, 819),
            (vec![(1_024 * MIB, 600 * MIB)], 1_024, 600, 256),
            (vec![(1_024 * MIB, 600 * MIB), (16_384 * MIB, 100 * MIB)], 1_024, 100, 256),
            (vec![(300 * MIB, 300 * MIB)], 300, 300, 150),
        ] {
            let found = capacity(MEMINFO, limits.into_iter());
            let in_mib = [found.total_bytes, found.available_bytes, found.reserve_bytes];
            assert_eq!(in_mib.map(|bytes| bytes / MIB), [total, available, reserve]);
        }
        let nothing = capacity("", std::iter::empty());
        assert!(nothing.free_bytes() > 0, "{nothing:?}");
    }

    #[test]
    fn the_cgroups_above_the_own_one_count_too() {
        let root = Path::new("/cg");
        let dirs = |groups: &str| {
            let found = cgroups_of(groups, root);
            found.iter().map(|one| one.dir.display().to_string()).collect::<Vec<_>>().join(" ")
        };
        assert_eq!(dirs("0::/a/b\n"), "/cg/a/b /cg/a /cg");
        assert_eq!(dirs("0::/\n"), "/cg");
        assert_eq!(dirs("5:cpu,memory:/x\n4:pids:/y\n"), "/cg/memory/x /cg/memory");
        assert_eq!(dirs("0::/../other\n"), "");
        assert_eq!(dirs("nonsense"), "");
    }

    #[test]
    fn files_that_the_kernel_can_drop_count_as_left() {
        let dir = tempfile::tempdir().unwrap();
        let group = CgroupMemory { dir: dir.path().to_owned(), names: &V2 };
        assert_eq!(group.measure(), None);
        fs::write(dir.path().join("memory.max"), "1000\n").unwrap();
        fs::write(dir.path().join("memory.current"), "900\n").unwrap();
        assert_eq!(group.measure(), Some((1_000, 100)));
        let stat = "anon 500\ninactive_file 300\nactive_file 100\n";
        fs::write(dir.path().join("memory.stat"), stat).unwrap();
        assert_eq!(group.measure(), Some((1_000, 400)));
        fs::write(dir.path().join("memory.max"), "max\n").unwrap();
        assert_eq!(group.measure(), None);
    }

    #[test]
    fn this_machine_has_memory() {
        let found = MemoryGauge::default().measure();
        assert!(found.total_bytes > 0 && found.available_bytes <= found.total_bytes, "{found:?}");
    }
}
