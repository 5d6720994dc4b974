//! Lists processes below the keeper with their memory and open files, from `/proc`.

use std::collections::{HashMap, HashSet};
use std::os::unix::fs::MetadataExt;

use rustix::fs::StatFs;
use windlass_procs::{fd_tables, process_file};

/// Maximum number of processes in one listing. A session with more exceeds any limit that it can have.
const LISTED_MAX: usize = 4096;

/// The file system type of a tmpfs in `statfs`.
const TMPFS_MAGIC: u64 = 0x0102_1994;

/// Processes by their ids in the keeper's `/proc`.
#[derive(Debug, Clone, Default)]
pub(crate) struct ProcessList {
    below: HashMap<u32, WatchedProcess>,
}

#[derive(Debug, Clone)]
struct WatchedProcess {
    parent: u32,
    threads: Vec<u32>,
    /// A thread that still has the process's memory: the first that has not ended.
    holder: u32,
    resident_pages: u64,
}

impl ProcessList {
    /// All descendants of this process that are not reaped.
    pub fn below_this() -> Self {
        // This process's id in the mounted `/proc`, which may be that of an outer pid namespace.
        let own = std::fs::read_link("/proc/self").ok();
        let Some(own) = own.and_then(|link| link.to_str()?.parse().ok()) else {
            return Self::default();
        };
        let mut listed = Self::default();
        let mut todo = Tasks::of(own).children;
        while let Some(pid) = todo.pop() {
            if listed.below.len() == LISTED_MAX {
                break;
            }
            let tasks = Tasks::of(pid);
            if let Some(process) = WatchedProcess::read(pid, tasks.threads)
                && listed.below.insert(pid, process).is_none()
            {
                todo.extend(tasks.children);
            }
        }
        listed
    }

    /// The processes with these ids that still exist.
    pub fn of(numbers: impl Iterator<Item = u32>) -> Self {
        let mut listed = Self::default();
        for pid in numbers.take(LISTED_MAX) {
            if let Some(process) = WatchedProcess::read(pid, Tasks::of(pid).threads) {
                listed.below.insert(pid, process);
            }
        }
        listed
    }

    pub fn numbers(&self) -> impl Iterator<Item = u32> + '_ {
        self.below.keys().copied()
    }

    /// The ids of all threads. The first thread of a process has the id of the process.
    pub fn thread_ids(&self) -> impl Iterator<Item = u32> + '_ {
        self.below.values().flat_map(|process| process.threads.iter().copied())
    }

    /// Whether there are processes besides the worker, the worker's ancestors and the sandbox's init.
    pub fn others_than(&self, worker: u32, init: Option<u32>) -> bool {
        self.below.len() > self.chain(worker, init).len()
    }

    /// The threads of the worker and of the processes that the session's code has started. Excludes the
    /// worker's ancestors and the sandbox's init.
    pub fn session_threads(&self, worker: u32, init: Option<u32>) -> impl Iterator<Item = u32> {
        let mut holders = self.chain(worker, init);
        holders.remove(&worker);
        let of_session = self.below.iter().filter(move |(pid, _)| !holders.contains(pid));
        of_session.flat_map(|(_, process)| process.threads.iter().copied())
    }

    /// The worker, its ancestors and the sandbox's init.
    fn chain(&self, worker: u32, init: Option<u32>) -> HashSet<u32> {
        let mut chain: HashSet<u32> =
            init.into_iter().filter(|init| self.below.contains_key(init)).collect();
        let mut at = worker;
        while let Some(process) = self.below.get(&at)
            && chain.insert(at)
        {
            at = process.parent;
        }
        chain
    }

    pub fn threads(&self) -> u64 {
        self.below.values().map(|process| process.threads.len() as u64).sum()
    }

    /// Sum of the resident sizes. A shared page counts once for each process.
    pub fn resident_bytes(&self) -> u64 {
        let pages: u64 = self.below.values().map(|process| process.resident_pages).sum();
        pages * rustix::param::page_size() as u64
    }

    /// Sum of the proportional sizes: a shared page is divided among its processes. Slower to read.
    pub fn proportional_bytes(&self) -> u64 {
        let page = rustix::param::page_size() as u64;
        let of = |process: &WatchedProcess| {
            proportional(process.holder).unwrap_or(process.resident_pages * page)
        };
        self.below.values().map(of).sum()
    }

    /// Bytes of deleted files on `device` that are still open.
    pub fn unlinked_bytes(&self, device: u64) -> u64 {
        let mut seen = HashSet::new();
        let mut bytes = 0;
        for thread in self.below.values().flat_map(WatchedProcess::tables) {
            let Ok(open) = std::fs::read_dir(format!("/proc/{thread}/fd")) else { continue };
            for entry in open.flatten() {
                let Ok(file) = std::fs::metadata(entry.path()) else { continue };
                if file.dev() == device && file.nlink() == 0 && seen.insert(file.ino()) {
                    bytes += file.blocks() * 512;
                }
            }
        }
        bytes
    }

    /// Memory that only a descriptor holds (`memfd_create`). Mapped memory is excluded, because it already
    /// counts as resident.
    pub fn unmapped_bytes(&self) -> u64 {
        let Some(device) = memory_device() else { return 0 };
        let held = self.unlinked_bytes(device);
        if held == 0 {
            return 0;
        }
        let holders = self.below.values().map(|process| process.holder);
        let mapped: u64 = holders.filter_map(shared_resident).sum();
        held.saturating_sub(mapped)
    }

    #[cfg(test)]
    pub fn of_threads(threads: &[u64]) -> Self {
        let process =
            |threads: &u64| WatchedProcess::of(1, (2..).take(*threads as usize).collect());
        Self { below: (2..).zip(threads.iter().map(process)).collect() }
    }
}

impl WatchedProcess {
    fn read(pid: u32, threads: Vec<u32>) -> Option<Self> {
        let first = ThreadStat::read(pid)?;
        // If the first thread has ended and others run, the process's own `stat` shows no memory.
        let others = || threads.iter().filter(|thread| **thread != pid);
        let (holder, held) = match first.has_memory {
            true => (pid, first),
            false => others()
                .filter_map(|thread| Some((*thread, ThreadStat::read(*thread)?)))
                .find(|(_, stat)| stat.has_memory)
                .unwrap_or((pid, first)),
        };
        Some(Self { parent: first.parent, holder, resident_pages: held.resident_pages, threads })
    }

    /// One thread for each descriptor table. Usually all threads share one table.
    fn tables(&self) -> impl Iterator<Item = u32> {
        let own = |thread: &&u32| !fd_tables::are_shared(self.holder, **thread);
        let apart = self.threads.iter().filter(|thread| **thread != self.holder).filter(own);
        std::iter::once(self.holder).chain(apart.copied())
    }

    #[cfg(test)]
    fn of(parent: u32, threads: Vec<u32>) -> Self {
        Self { parent, holder: threads[0], threads, resident_pages: 1 }
    }
}

/// Fields of a thread's `/proc/PID/stat`.
#[derive(Debug, Clone, Copy)]
struct ThreadStat {
    parent: u32,
    has_memory: bool,
    resident_pages: u64,
}

impl ThreadStat {
    fn read(thread: u32) -> Option<Self> {
        let stat = process_file::read(thread, "stat").ok()?;
        // The name is in parentheses and can contain any characters; the fields follow the last parenthesis.
        let fields: Vec<&str> = stat[stat.rfind(')')? + 1..].split_ascii_whitespace().collect();
        Some(Self {
            parent: fields.get(1)?.parse().ok()?,
            has_memory: *fields.get(20)? != "0",
            resident_pages: fields.get(21)?.parse().ok()?,
        })
    }
}

/// A process's threads, and the children of all threads.
#[derive(Debug, Default)]
struct Tasks {
    threads: Vec<u32>,
    children: Vec<u32>,
}

impl Tasks {
    fn of(pid: u32) -> Self {
        let mut tasks = Self::default();
        let Ok(listed) = std::fs::read_dir(format!("/proc/{pid}/task")) else { return tasks };
        for task in listed.flatten() {
            tasks
                .threads
                .extend(task.file_name().to_str().and_then(|name| name.parse::<u32>().ok()));
            let children = std::fs::read_to_string(task.path().join("children"));
            let numbers = children.iter().flat_map(|list| list.split_ascii_whitespace());
            tasks.children.extend(numbers.filter_map(|pid| pid.parse::<u32>().ok()));
        }
        tasks
    }
}

/// The device number of `memfd` files, read from a new one.
fn memory_device() -> Option<u64> {
    let flags = rustix::fs::MemfdFlags::CLOEXEC;
    let file = rustix::fs::memfd_create(c"windlass", flags).ok()?;
    Some(rustix::fs::fstat(&file).ok()?.st_dev)
}

/// Resident shared memory of a process (`RssShmem`).
fn shared_resident(pid: u32) -> Option<u64> {
    let status = process_file::read(pid, "status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("RssShmem:"))?;
    let kib: u64 = line.split_ascii_whitespace().next()?.parse().ok()?;
    Some(kib * 1024)
}

fn proportional(pid: u32) -> Option<u64> {
    let text = process_file::read(pid, "smaps_rollup").ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("Pss:"))?;
    let kib: u64 = line.split_ascii_whitespace().next()?.parse().ok()?;
    Some(kib * 1024)
}

/// Bytes in the worker's private `/tmp` and `/dev/shm`, which are memory too.
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

    /// A Python process that has run `code` and waits for the end of its input.
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
    fn descendants_are_found_with_their_size() {
        let child = python("");
        let pid = child.id();
        let listed = ProcessList::below_this();
        assert!(listed.below.contains_key(&pid));
        assert!(listed.threads() >= 1);
        assert!(listed.resident_bytes() > 0);
        assert!(listed.proportional_bytes() <= listed.resident_bytes());
        end(child);
        assert!(!ProcessList::below_this().below.contains_key(&pid));
    }

    #[test]
    fn memory_that_only_a_descriptor_holds_is_counted() {
        let child = python("f = os.memfd_create('x'); os.write(f, bytes(8 << 20))");
        let held = ProcessList::below_this().unmapped_bytes();
        assert!((8 << 20..16 << 20).contains(&held), "{held}");
        end(child);
    }

    #[test]
    fn a_process_whose_first_thread_has_ended_is_counted_by_another() {
        // The first thread exits; the other thread prints `up` when it sees that.
        let child = python(
            "import ctypes, threading\n\
             held = bytearray(b'x' * (8 << 20))\n\
             def other():\n\
             \twhile open('/proc/self/stat').read().split()[2] != 'Z': os.sched_yield()\n\
             \tprint('up', flush=True); sys.stdin.read(); os._exit(0)\n\
             threading.Thread(target=other).start()\n\
             ctypes.CDLL(None).syscall(60 if os.uname().machine == 'x86_64' else 93, 0)",
        );
        let listed = ProcessList::of([child.id()].into_iter());
        assert!(listed.resident_bytes() > 8 << 20, "{listed:?}");
        assert!(listed.proportional_bytes() > 8 << 20);
        end(child);
    }

    #[test]
    fn processes_other_than_the_worker_and_its_ancestors_are_left_over() {
        let of = |pairs: &[(u32, u32)]| ProcessList {
            below: pairs
                .iter()
                .map(|(pid, parent)| (*pid, WatchedProcess::of(*parent, vec![*pid])))
                .collect(),
        };
        assert!(!of(&[(2, 1), (3, 1)]).others_than(3, Some(2)), "the init and the worker");
        assert!(of(&[(2, 1), (3, 1), (4, 3)]).others_than(3, Some(2)), "a child of the worker");
        assert!(of(&[(2, 1), (3, 1), (4, 2)]).others_than(3, Some(2)), "an orphan");
        assert!(!of(&[(2, 1), (3, 2)]).others_than(3, None), "what the worker hangs from");
        assert!(!of(&[]).others_than(3, None));
    }
}
