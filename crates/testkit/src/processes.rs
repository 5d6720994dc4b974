//! Reads facts about processes from `/proc`, and kills processes reliably. Zombies count as gone: they hold
//! nothing but a pid.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Signal, kill_process, pidfd_open};

/// Maximum rounds of looking for new children of killed processes.
const KILL_ROUNDS_MAX: usize = 50;

/// How long a killed process may take to exit.
const GONE_WAIT: Duration = Duration::from_secs(10);

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProcessInfo {
    pub pid: u32,
    pub parent: u32,
    pub state: char,
}

/// Every process that is not a zombie.
pub fn all() -> Vec<ProcessInfo> {
    let Ok(entries) = fs::read_dir("/proc") else { return Vec::new() };
    entries
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
        .filter_map(process)
        .filter(|process| !matches!(process.state, 'Z' | 'X'))
        .collect()
}

/// Names of keeper processes: with a session, and with a pooled worker.
const KEEPER: &str = "windlass-keeper";
const POOLED: &str = "windlass-wait";

/// The name of workers and zygotes that are written in Rust.
const RUST_WORKER: &str = "windlass-worker";

/// Whether the process exists and is not a zombie.
pub fn alive(pid: u32) -> bool {
    process(pid).is_some_and(|process| !matches!(process.state, 'Z' | 'X'))
}

/// The children of `pid`, their children, and so on.
pub fn descendants(pid: u32) -> Vec<u32> {
    descendants_in(&all(), &BTreeSet::from([pid])).into_iter().collect()
}

/// The nodes whose directories are below `place`. A child of a node that has not called exec yet looks like a
/// node and does not count. Such a child may vanish at once, so parents are read together with the processes.
pub fn nodes(place: &Path) -> BTreeSet<u32> {
    let sockets = sockets_below(place);
    let is_node = |pid: u32| arguments(pid).get(1).is_some_and(|argument| argument == "node");
    let mut found = all();
    found.retain(|process| belongs(process.pid, place, &sockets) && is_node(process.pid));
    let numbers: BTreeSet<u32> = found.iter().map(|process| process.pid).collect();
    found.retain(|process| !numbers.contains(&process.parent));
    found.into_iter().map(|process| process.pid).filter(|pid| is_node(*pid)).collect()
}

/// The nurseries below the node `node`: one, or none before the first session.
pub fn nurseries(node: u32) -> Vec<u32> {
    // Keepers are forked from the nursery and have its arguments, but another name.
    let is_nursery = |pid: &u32| {
        arguments(*pid).get(1).is_some_and(|argument| argument == "nursery")
            && name(*pid).is_some_and(|name| name != KEEPER && name != POOLED)
    };
    children(node).into_iter().filter(is_nursery).collect()
}

/// Keepers of pooled workers below the node `node`.
pub fn pooled_keepers(node: u32) -> Vec<u32> {
    let is_pooled = |pid: &u32| name(*pid).is_some_and(|name| name == POOLED);
    children(node).into_iter().filter(is_pooled).collect()
}

/// Processes that the node `node` keeps ready for future sessions: nursery, zygotes and pooled workers.
pub fn kept_ready(node: u32) -> BTreeSet<u32> {
    let nurseries = nurseries(node);
    let is_zygote = |pid: &u32| {
        name(*pid).is_some_and(|name| !name.starts_with("windlass") || name == RUST_WORKER)
    };
    let zygotes = nurseries.iter().flat_map(|pid| children(*pid)).filter(is_zygote);
    let roots: BTreeSet<u32> = zygotes.chain(pooled_keepers(node)).collect();
    let below = descendants_in(&all(), &roots);
    below.into_iter().chain(roots).chain(nurseries).collect()
}

/// Processes of the sessions of the node `node`: all its descendants except those in [`kept_ready`].
pub fn of_sessions(node: u32) -> Vec<u32> {
    let kept_ready = kept_ready(node);
    descendants(node).into_iter().filter(|pid| !kept_ready.contains(pid)).collect()
}

/// The inode of the pid namespace of a process.
pub fn pid_namespace(pid: u32) -> Option<u64> {
    use std::os::unix::fs::MetadataExt;
    Some(fs::metadata(format!("/proc/{pid}/ns/pid")).ok()?.ino())
}

/// The name of `pid` in process lists.
pub fn name(pid: u32) -> Option<String> {
    Some(fs::read_to_string(format!("/proc/{pid}/comm")).ok()?.trim_end().to_owned())
}

/// The worker processes of a keeper: its descendants without the init process of the sandbox.
pub fn workers(keeper: u32) -> Vec<u32> {
    let own = arguments(keeper);
    descendants(keeper).into_iter().filter(|pid| arguments(*pid) != own).collect()
}

/// The children of `pid`, including zombies that it has not reaped.
pub fn children(pid: u32) -> Vec<u32> {
    let Ok(tasks) = fs::read_dir(format!("/proc/{pid}/task")) else { return Vec::new() };
    let lists =
        tasks.filter_map(|task| fs::read_to_string(task.ok()?.path().join("children")).ok());
    lists
        .flat_map(|list| {
            list.split_ascii_whitespace().filter_map(|pid| pid.parse().ok()).collect::<Vec<u32>>()
        })
        .collect()
}

/// Every process that belongs to `place`; [`end_all`] defines that.
pub fn belonging(place: &Path) -> BTreeSet<u32> {
    let sockets = sockets_below(place);
    all().into_iter().map(|p| p.pid).filter(|pid| belongs(*pid, place, &sockets)).collect()
}

/// Whether `wanted` is in the environment or the arguments of `pid`. False for this process itself.
pub fn mentions(pid: u32, wanted: &[u8]) -> bool {
    pid != std::process::id()
        && ["environ", "cmdline"].iter().any(|file| {
            let bytes = fs::read(format!("/proc/{pid}/{file}")).unwrap_or_default();
            bytes.windows(wanted.len()).any(|window| window == wanted)
        })
}

/// The arguments that `pid` was started with.
pub fn arguments(pid: u32) -> Vec<String> {
    let bytes = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    let whole = bytes.strip_suffix(&[0]).unwrap_or(&bytes);
    whole.split(|byte| *byte == 0).map(|one| String::from_utf8_lossy(one).into_owned()).collect()
}

/// The pid of `pid` as the process `seer` sees it. `None` unless both are in the same pid namespace or `pid`
/// is in a child namespace.
pub fn number_seen_by(seer: u32, pid: u32) -> Option<u32> {
    let (seers, numbers) = (namespace_numbers(seer), namespace_numbers(pid));
    let depth = seers.len().checked_sub(1)?;
    let same = |pid: u32| fs::read_link(format!("/proc/{pid}/ns/pid")).ok();
    let reached = depth == 0 || (seers.len() == numbers.len() && same(seer) == same(pid));
    reached.then(|| numbers.get(depth).copied()).flatten()
}

/// The resident memory of `pid`.
pub fn rss_bytes(pid: u32) -> Option<u64> {
    status_kib(pid, "VmRSS:").map(|kib| kib * 1024)
}

/// The peak resident memory of `pid`.
pub fn peak_rss_bytes(pid: u32) -> Option<u64> {
    status_kib(pid, "VmHWM:").map(|kib| kib * 1024)
}

/// Number of open descriptors of `pid`.
pub fn descriptors(pid: u32) -> Option<usize> {
    Some(fs::read_dir(format!("/proc/{pid}/fd")).ok()?.count())
}

/// Waits up to `deadline` until the process has exited, and returns whether it has.
pub fn wait_gone(pid: u32, deadline: Duration) -> bool {
    let Some(handle) = handle(pid) else { return true };
    let Ok(process) = pidfd_open(handle, PidfdFlags::empty()) else { return true };
    let until = Instant::now() + deadline;
    loop {
        let left = until.saturating_duration_since(Instant::now());
        let Ok(wait) = Timespec::try_from(left) else { return false };
        let mut watched = [PollFd::new(&process, PollFlags::IN)];
        match poll(&mut watched, Some(&wait)) {
            Ok(0) => return false,
            Ok(_) => return true,
            Err(rustix::io::Errno::INTR) => {}
            Err(_) => return !alive(pid),
        }
    }
}

/// Kills one process if it exists.
pub fn kill(pid: u32) {
    if let Some(handle) = handle(pid) {
        let _ = kill_process(handle, Signal::KILL);
    }
}

/// Sends SIGSTOP to one process. The process can still be killed.
pub fn stop(pid: u32) {
    if let Some(handle) = handle(pid) {
        let _ = kill_process(handle, Signal::STOP);
    }
}

/// Sends SIGCONT to a stopped process.
pub fn resume(pid: u32) {
    if let Some(handle) = handle(pid) {
        let _ = kill_process(handle, Signal::CONT);
    }
}

/// Kills `roots`, every process that belongs to `place`, and all their descendants, until none is left. A
/// process belongs to `place` if `place` is in its environment, its arguments or its working directory, or if
/// it has a file or socket below `place` open.
pub fn end_all(roots: &[u32], place: &Path) {
    let own = std::process::id();
    let mut known: BTreeSet<u32> = roots.iter().copied().collect();
    for _ in 0..KILL_ROUNDS_MAX {
        let running = all();
        let sockets = sockets_below(place);
        known.extend(running.iter().map(|p| p.pid).filter(|pid| belongs(*pid, place, &sockets)));
        let below = descendants_in(&running, &known);
        known.extend(below);
        known.retain(|pid| *pid != own && running.iter().any(|process| process.pid == *pid));
        if known.is_empty() {
            return;
        }
        for pid in &known {
            kill(*pid);
        }
        for pid in &known {
            wait_gone(*pid, GONE_WAIT);
        }
    }
}

fn process(pid: u32) -> Option<ProcessInfo> {
    let stat = fs::read(format!("/proc/{pid}/stat")).ok()?;
    let stat = String::from_utf8_lossy(&stat);
    // The name is in parentheses and may contain any character. The fields follow the last parenthesis.
    let mut fields = stat[stat.rfind(')')? + 1..].split_ascii_whitespace();
    let mut state = fields.next()?.chars().next()?;
    if state == 'Z' && fs::read_dir(format!("/proc/{pid}/task")).is_ok_and(|all| all.count() > 1) {
        // Only the first thread has ended.
        state = 'S';
    }
    Some(ProcessInfo { pid, parent: fields.next()?.parse().ok()?, state })
}

fn descendants_in(running: &[ProcessInfo], roots: &BTreeSet<u32>) -> BTreeSet<u32> {
    let mut found = BTreeSet::new();
    loop {
        let before = found.len();
        for process in running {
            let child = roots.contains(&process.parent) || found.contains(&process.parent);
            if child && !roots.contains(&process.pid) {
                found.insert(process.pid);
            }
        }
        if found.len() == before {
            return found;
        }
    }
}

fn belongs(pid: u32, place: &Path, sockets: &BTreeSet<String>) -> bool {
    // The test process has files of the node open but does not belong to it.
    if pid == std::process::id() {
        return false;
    }
    let inside = |link: &Path| fs::read_link(link).is_ok_and(|target| target.starts_with(place));
    let open = |link: &Path| {
        let target = fs::read_link(link).unwrap_or_default();
        target.starts_with(place) || target.to_str().is_some_and(|name| sockets.contains(name))
    };
    let proc = Path::new("/proc").join(pid.to_string());
    mentions(pid, place.as_os_str().as_bytes())
        || inside(&proc.join("cwd"))
        || fs::read_dir(proc.join("fd"))
            .is_ok_and(|mut links| links.any(|link| link.is_ok_and(|link| open(&link.path()))))
}

/// The sockets bound below `place`, in the form of `/proc/PID/fd`.
fn sockets_below(place: &Path) -> BTreeSet<String> {
    let text = fs::read_to_string("/proc/net/unix").unwrap_or_default();
    text.lines()
        .filter_map(|line| {
            let fields: Vec<_> = line.split_ascii_whitespace().collect();
            let (inode, path) = (fields.get(6)?, fields.get(7)?);
            Path::new(path).starts_with(place).then(|| format!("socket:[{inode}]"))
        })
        .collect()
}

/// The pids of a process, from this pid namespace down to its own.
fn namespace_numbers(pid: u32) -> Vec<u32> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("NSpid:")).unwrap_or_default();
    line.split_ascii_whitespace().filter_map(|number| number.parse().ok()).collect()
}

fn status_kib(pid: u32, name: &str) -> Option<u64> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix(name))?;
    line.split_ascii_whitespace().next()?.parse().ok()
}

fn handle(pid: u32) -> Option<Pid> {
    Pid::from_raw(i32::try_from(pid).ok()?)
}
