//! The resources that a node and its sessions use, read from `/proc` and the cgroup mounts. This module
//! writes nothing. It reads each list once, because with thousands of sessions a second read costs seconds.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use windlass_testkit::processes;

const KIB_PER_MIB: f64 = 1024.0;
const BYTES_PER_MIB: f64 = 1024.0 * 1024.0;

/// Every process of the machine by its parent, at one moment. Zombies are left out.
#[derive(Debug)]
pub struct Tree {
    children: BTreeMap<u32, Vec<u32>>,
}

impl Tree {
    pub fn now() -> Self {
        let mut children: BTreeMap<u32, Vec<u32>> = BTreeMap::new();
        for process in processes::all() {
            children.entry(process.parent).or_default().push(process.pid);
        }
        Self { children }
    }

    /// `root` and all its descendants.
    pub fn whole(&self, root: u32) -> Vec<u32> {
        let mut found = vec![root];
        let mut next = 0;
        while let Some(pid) = found.get(next).copied() {
            found.extend(self.children.get(&pid).into_iter().flatten());
            next += 1;
        }
        found
    }
}

/// The process ids of a process, from this pid namespace inwards.
pub fn pids_inwards(pid: u32) -> Vec<u32> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("NSpid:")).unwrap_or_default();
    line.split_ascii_whitespace().filter_map(|pid| pid.parse().ok()).collect()
}

/// The processor time that all threads of a process have used, in microseconds.
pub fn cpu_us(pid: u32) -> Result<f64> {
    let threads = fs::read_dir(format!("/proc/{pid}/task"))
        .with_context(|| format!("cannot list the threads of process {pid}"))?;
    let mut total_ns = 0.0;
    for thread in threads {
        // The file is missing if the thread has ended meanwhile.
        let Ok(text) = fs::read_to_string(thread?.path().join("schedstat")) else { continue };
        let first =
            text.split_ascii_whitespace().next().context("the schedstat of a thread is empty")?;
        total_ns += first.parse::<f64>()?;
    }
    Ok(total_ns / 1000.0)
}

/// The proportional set size of a process: a page that n processes share counts as 1/n.
pub fn pss_mib(pid: u32) -> Result<f64> {
    let rollup = fs::read_to_string(format!("/proc/{pid}/smaps_rollup"))
        .with_context(|| format!("cannot read the memory use of process {pid}"))?;
    pss_in(&rollup).with_context(|| format!("/proc/{pid}/smaps_rollup has no line Pss"))
}

fn pss_in(rollup: &str) -> Option<f64> {
    let line = rollup.lines().find_map(|line| line.strip_prefix("Pss:"))?;
    let kib: f64 = line.split_ascii_whitespace().next()?.parse().ok()?;
    Some(kib / KIB_PER_MIB)
}

/// The sum of the proportional set sizes of all processes in the list.
pub fn pss_mib_of(pids: &[u32]) -> Result<f64> {
    // `sum()` of no floats is -0.0 and would print a minus sign.
    pids.iter().try_fold(0.0, |sum, pid| Ok(sum + pss_mib(*pid)?))
}

/// The prefix of the names of all cgroups that nodes create.
pub const CGROUP: &str = "windlass-";

/// The memory charged to the session's cgroup of a process. `None` if the process is in no such cgroup.
pub fn memcg_mib(pid: u32) -> Option<f64> {
    let membership = fs::read_to_string(format!("/proc/{pid}/cgroup")).ok()?;
    let mounts = fs::read_to_string("/proc/self/mountinfo").ok()?;
    let bytes = usage_files(&membership, &mounts)
        .into_iter()
        .find_map(|file| fs::read_to_string(file).ok()?.trim().parse::<f64>().ok())?;
    Some(bytes / BYTES_PER_MIB)
}

/// The files that may hold the memory use: the file of cgroups version 1 first, then that of version 2.
fn usage_files(membership: &str, mounts: &str) -> Vec<PathBuf> {
    let mut files = Vec::new();
    for (file, is_memory) in [
        ("memory.usage_in_bytes", (|names| names == "memory") as fn(&str) -> bool),
        ("memory.current", |names| names.is_empty()),
    ] {
        let path = membership.lines().find_map(|line| {
            let mut fields = line.splitn(3, ':').skip(1);
            let names = fields.next()?;
            let path = names.split(',').any(is_memory).then(|| fields.next()).flatten()?;
            path.rsplit('/').next()?.starts_with(CGROUP).then_some(path)
        });
        let kind = if file == "memory.current" { "cgroup2" } else { "cgroup" };
        files.extend(path.and_then(|path| Some(below_mount(mounts, kind, path)?.join(file))));
    }
    files
}

/// The directory of a cgroup. `path` starts at the root of the hierarchy, but a mount may show only a part of
/// it.
fn below_mount(mounts: &str, kind: &str, path: &str) -> Option<PathBuf> {
    mounts.lines().find_map(|line| {
        let (mount, source) = line.split_once(" - ")?;
        let mut source = source.split_ascii_whitespace();
        let (found, options) = (source.next()?, source.nth(1)?);
        let fits = kind == "cgroup2" || options.split(',').any(|option| option == "memory");
        let mut fields = mount.split_ascii_whitespace().skip(3);
        let (root, point) = (fields.next()?, fields.next()?);
        let rest = Path::new(path).strip_prefix(root).ok()?;
        (found == kind && fits).then(|| Path::new(point).join(rest))
    })
}

/// The number of distinct namespaces of these processes.
pub fn namespaces(pids: &[u32]) -> usize {
    let mut seen = BTreeSet::new();
    for pid in pids {
        let Ok(links) = fs::read_dir(format!("/proc/{pid}/ns")) else { continue };
        seen.extend(links.filter_map(|link| fs::read_link(link.ok()?.path()).ok()));
    }
    seen.len()
}

/// The number of mounts in all mount namespaces of these processes. Each namespace counts once.
pub fn mounts(pids: &[u32]) -> usize {
    let mut seen = BTreeSet::new();
    let first_of_each = pids.iter().filter(|pid| {
        fs::read_link(format!("/proc/{pid}/ns/mnt")).is_ok_and(|namespace| seen.insert(namespace))
    });
    first_of_each.map(|pid| mounts_seen_by(*pid)).sum()
}

fn mounts_seen_by(pid: u32) -> usize {
    fs::read_to_string(format!("/proc/{pid}/mountinfo")).map_or(0, |text| text.lines().count())
}

pub fn threads(pid: u32) -> usize {
    fs::read_dir(format!("/proc/{pid}/task")).map_or(0, Iterator::count)
}

/// The number of cgroups in all hierarchies whose name starts with `prefix`.
pub fn cgroups(prefix: &str) -> usize {
    named_below(Path::new("/sys/fs/cgroup"), prefix)
}

fn named_below(directory: &Path, prefix: &str) -> usize {
    let Ok(entries) = fs::read_dir(directory) else { return 0 };
    let directories = entries
        .filter_map(Result::ok)
        .filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()));
    directories
        .map(|entry| {
            let own = usize::from(entry.file_name().to_string_lossy().starts_with(prefix));
            own + named_below(&entry.path(), prefix)
        })
        .sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    const MOUNTS: &str = "\
        30 20 0:26 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu\n\
        31 20 0:27 /box /sys/fs/cgroup/memory rw shared:5 - cgroup cgroup rw,memory\n\
        32 20 0:28 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n";

    fn files(membership: &str) -> Vec<String> {
        let files = usage_files(membership, MOUNTS);
        files.iter().map(|file| file.display().to_string()).collect()
    }

    #[test]
    fn a_memory_cgroup_is_found_below_its_mount() {
        assert_eq!(
            files("4:memory:/box/windlass-s1\n1:cpu:/windlass-s1\n"),
            ["/sys/fs/cgroup/memory/windlass-s1/memory.usage_in_bytes"]
        );
        assert_eq!(
            files("0::/user/windlass-s1\n"),
            ["/sys/fs/cgroup/unified/user/windlass-s1/memory.current"]
        );
        // A cgroup outside the mounted part, and a cgroup of no session.
        assert_eq!(files("4:memory:/other/windlass-s1\n"), [""; 0]);
        assert_eq!(files("4:memory:/box\n0::/\n"), [""; 0]);
    }

    #[test]
    fn a_proportional_size_is_read_in_mebibytes() {
        assert_eq!(pss_in("Rss:  9999 kB\nPss:    2048 kB\nPss_Anon: 1 kB\n"), Some(2.0));
        assert_eq!(pss_in("Rss: 1 kB\n"), None);
    }

    #[test]
    fn a_tree_is_a_process_and_all_below_it() {
        let tree = Tree { children: BTreeMap::from([(1, vec![2, 3]), (3, vec![4]), (9, vec![5])]) };
        assert_eq!(tree.whole(1), [1, 2, 3, 4]);
        assert_eq!(tree.whole(7), [7]);
    }
}
