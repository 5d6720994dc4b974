//! The processes below the keeper, with what each holds, from `/proc`.

use std::collections::{HashMap, HashSet};
use std::os::unix::fs::MetadataExt;

use rustix::fs::StatFs;

/// Processes that one listing takes in; with more, the session is over any limit it may have.
const LISTED_MAX: usize = 4096;

/// What `statfs` says of memory that looks like a disk.
const TMPFS_MAGIC: u64 = 0x0102_1994;

/// Processes by their numbers in our `/proc`.
#[derive(Debug, Clone, Default)]
pub(crate) struct Processes {
    below: HashMap<u32, Process>,
    threads: Vec<u32>,
}

#[derive(Debug, Clone, Copy)]
struct Process {
    parent: u32,
    threads: u64,
    resident_pages: u64,
}

impl Processes {
    /// Everything that was started below this process and has not been reaped.
    pub fn below_this() -> Self {
        // Our number in the `/proc` that is mounted here, which may be that of an outer namespace.
        let own = std::fs::read_link("/proc/self").ok();
        let Some(own) = own.and_then(|link| link.to_str()?.parse().ok()) else {
            return Self::default();
        };
        let mut listed = Self::default();
        let mut todo = children(own, &mut Vec::new());
        while let Some(pid) = todo.pop() {
            if listed.below.len() == LISTED_MAX {
                break;
            }
            if let Some(process) = Process::read(pid)
                && listed.below.insert(pid, process).is_none()
            {
                todo.extend(children(pid, &mut listed.threads));
            }
        }
        listed
    }

    /// These processes, as far as they are still there.
    pub fn of(numbers: impl Iterator<Item = u32>) -> Self {
        let mut listed = Self::default();
        for pid in numbers.take(LISTED_MAX) {
            if let Some(process) = Process::read(pid) {
                listed.below.insert(pid, process);
                children(pid, &mut listed.threads);
            }
        }
        listed
    }

    pub fn numbers(&self) -> impl Iterator<Item = u32> + '_ {
        self.below.keys().copied()
    }

    /// All their threads; the first of a process has its number.
    pub fn thread_ids(&self) -> impl Iterator<Item = u32> + '_ {
        self.threads.iter().copied()
    }

    /// Whether there are others than the worker, those it hangs from, and the sandbox's init.
    pub fn others_than(&self, worker: u32, init: Option<u32>) -> bool {
        let mut expected: HashSet<u32> =
            init.into_iter().filter(|init| self.below.contains_key(init)).collect();
        let mut at = worker;
        while let Some(process) = self.below.get(&at)
            && expected.insert(at)
        {
            at = process.parent;
        }
        self.below.len() > expected.len()
    }

    pub fn threads(&self) -> u64 {
        self.below.values().map(|process| process.threads).sum()
    }

    /// The resident sizes together: pages that several share count for each.
    pub fn resident_bytes(&self) -> u64 {
        let pages: u64 = self.below.values().map(|process| process.resident_pages).sum();
        pages * rustix::param::page_size() as u64
    }

    /// The same with shared pages divided among those that share them. Takes the kernel a while.
    pub fn proportional_bytes(&self) -> u64 {
        let page = rustix::param::page_size() as u64;
        let of = |(pid, process): (&u32, &Process)| {
            proportional(*pid).unwrap_or(process.resident_pages * page)
        };
        self.below.iter().map(of).sum()
    }

    /// Bytes of files on `device` that have no name any more and are still open.
    pub fn unlinked_bytes(&self, device: u64) -> u64 {
        let mut seen = HashSet::new();
        let mut bytes = 0;
        for pid in self.below.keys() {
            let Ok(open) = std::fs::read_dir(format!("/proc/{pid}/fd")) else { continue };
            for entry in open.flatten() {
                let Ok(file) = std::fs::metadata(entry.path()) else { continue };
                if file.dev() == device && file.nlink() == 0 && seen.insert(file.ino()) {
                    bytes += file.blocks() * 512;
                }
            }
        }
        bytes
    }

    /// Memory that is held by a descriptor alone (`memfd_create`), as far as it is not mapped and so
    /// resident in some process already.
    pub fn unmapped_bytes(&self) -> u64 {
        let Some(device) = memory_device() else { return 0 };
        let held = self.unlinked_bytes(device);
        if held == 0 {
            return 0;
        }
        let mapped: u64 = self.below.keys().filter_map(|pid| shared_resident(*pid)).sum();
        held.saturating_sub(mapped)
    }

    #[cfg(test)]
    pub fn of_threads(threads: &[u64]) -> Self {
        let process = |threads: &u64| Process { parent: 1, threads: *threads, resident_pages: 0 };
        Self { below: (2..).zip(threads.iter().map(process)).collect(), threads: Vec::new() }
    }
}

impl Process {
    fn read(pid: u32) -> Option<Self> {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        // The name is in brackets and may hold anything; the fields go on after the last one.
        let fields: Vec<&str> = stat[stat.rfind(')')? + 1..].split_ascii_whitespace().collect();
        Some(Self {
            parent: fields.get(1)?.parse().ok()?,
            threads: fields.get(17)?.parse().ok()?,
            resident_pages: fields.get(21)?.parse().ok()?,
        })
    }
}

/// The children of all threads of `pid`, which are added to `threads`.
fn children(pid: u32, threads: &mut Vec<u32>) -> Vec<u32> {
    let Ok(tasks) = std::fs::read_dir(format!("/proc/{pid}/task")) else { return Vec::new() };
    let lists = tasks.flatten().filter_map(|task| {
        threads.extend(task.file_name().to_str().and_then(|thread| thread.parse::<u32>().ok()));
        let list = std::fs::read_to_string(task.path().join("children")).ok()?;
        Some(list.split_ascii_whitespace().filter_map(|pid| pid.parse().ok()).collect::<Vec<_>>())
    });
    lists.flatten().collect()
}

/// The device of files that exist in memory only: that of one of our own.
fn memory_device() -> Option<u64> {
    let flags = rustix::fs::MemfdFlags::CLOEXEC;
    let file = rustix::fs::memfd_create(c"windlass", flags).ok()?;
    Some(rustix::fs::fstat(&file).ok()?.st_dev)
}

/// Resident memory of a process that is shared with others or with a descriptor.
fn shared_resident(pid: u32) -> Option<u64> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("RssShmem:"))?;
    let kib: u64 = line.split_ascii_whitespace().next()?.parse().ok()?;
    Some(kib * 1024)
}

fn proportional(pid: u32) -> Option<u64> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("Pss:"))?;
    let kib: u64 = line.split_ascii_whitespace().next()?.parse().ok()?;
    Some(kib * 1024)
}

/// What lies in the worker's private `/tmp` and `/dev/shm`, which are memory too.
pub(crate) fn private_files_bytes(worker: u32) -> u64 {
    let used = |dir: &str| {
        let (inside, outside) = (format!("/proc/{worker}/root/{dir}"), format!("/{dir}"));
        let device = |path: &str| std::fs::metadata(path).ok().map(|about| about.dev());
        if device(&inside)? == device(&outside).unwrap_or_default() {
            return None;
        }
        let about: StatFs = rustix::fs::statfs(&inside).ok()?;
        let used = about.f_blocks.saturating_sub(about.f_bfree);
        (about.f_type as u64 == TMPFS_MAGIC).then(|| used.saturating_mul(about.f_bsize as u64))
    };
    ["tmp", "dev/shm"].into_iter().filter_map(used).sum()
}

#[cfg(test)]
mod tests {
    use std::process::{Child, Command, Stdio};

    use super::*;

    /// A Python that has run `code` and waits for the end of its input.
    fn python(code: &str) -> Child {
        let code = format!("import os, sys\n{code}\nprint('up', flush=True)\nsys.stdin.read()");
        let mut child = Command::new("/usr/bin/python3")
            .args(["-Ic", &code])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut up = [0; 3];
        std::io::Read::read_exact(child.stdout.as_mut().unwrap(), &mut up).unwrap();
        child
    }

    fn end(mut child: Child) {
        drop(child.stdin.take());
        child.wait().unwrap();
    }

    #[test]
    fn what_is_started_below_is_found_with_its_size() {
        let child = python("");
        let pid = child.id();
        let listed = Processes::below_this();
        assert!(listed.below.contains_key(&pid));
        assert!(listed.threads() >= 1);
        assert!(listed.resident_bytes() > 0);
        assert!(listed.proportional_bytes() <= listed.resident_bytes());
        end(child);
        assert!(!Processes::below_this().below.contains_key(&pid));
    }

    #[test]
    fn memory_that_only_a_descriptor_holds_is_counted() {
        let child = python("f = os.memfd_create('x'); os.write(f, bytes(8 << 20))");
        let held = Processes::below_this().unmapped_bytes();
        assert!((8 << 20..16 << 20).contains(&held), "{held}");
        end(child);
    }

    #[test]
    fn only_what_the_worker_does_not_hang_from_is_left_over() {
        let of = |pairs: &[(u32, u32)]| Processes {
            threads: Vec::new(),
            below: pairs
                .iter()
                .map(|(pid, parent)| {
                    (*pid, Process { parent: *parent, threads: 1, resident_pages: 1 })
                })
                .collect(),
        };
        assert!(!of(&[(2, 1), (3, 1)]).others_than(3, Some(2)), "the init and the worker");
        assert!(of(&[(2, 1), (3, 1), (4, 3)]).others_than(3, Some(2)), "a child of the worker");
        assert!(of(&[(2, 1), (3, 1), (4, 2)]).others_than(3, Some(2)), "an orphan");
        assert!(!of(&[(2, 1), (3, 2)]).others_than(3, None), "what the worker hangs from");
        assert!(!of(&[]).others_than(3, None));
    }
}
