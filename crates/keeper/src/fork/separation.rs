//! Checks from outside that a session and its twin are separated. The worker adds the Landlock layers that
//! separate the two, but the worker is not trusted. So the keeper reads the status of every thread from
//! `/proc`, before the fork and after it.
//!
//! The kernel does not show Landlock layers. The worker's library adds a system call filter right after each
//! layer, and never without one: a thread that has one more filter than before the fork has run that code.
//! The session's code can add filters itself and so fake a layer. It would only deceive itself, because the
//! code that ran before the fork is in both twins.

use std::collections::{BTreeMap, BTreeSet, HashSet};

use rustix::process::{Pid, Signal, kill_process, pidfd_send_signal};
use windlass_procs::twin::SessionProcesses;
use windlass_protocol::limits::NOT_CARRIED_MAX;
use windlass_protocol::link::CanReach;

use super::ForkRefusal;
use crate::family::Family;

/// The value of `Seccomp` in `/proc/PID/status` for a thread with filters.
const SECCOMP_FILTERED: u32 = 2;

/// A session's threads before a fork.
#[derive(Debug)]
pub(super) struct ThreadSnapshot {
    worker: u32,
    /// The number of filters of the worker's first thread, which forks.
    filters: u32,
    threads: BTreeMap<u32, ThreadStatus>,
}

/// One thread's status, read from the kernel.
#[derive(Debug, Clone, PartialEq, Eq)]
struct ThreadStatus {
    number: u32,
    /// Its id in the session's pid namespace.
    number_inside: u32,
    process: u32,
    name: String,
    /// It has `no_new_privs` and at least one filter.
    is_confined: bool,
    filters: u32,
}

/// Why original and twin are not separated.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
enum SeparationError {
    #[error("the process that claims to be the twin existed before the fork")]
    NotNew,
    #[error("the twin has ended")]
    TwinEnded,
    #[error("the twin has not added the layer that separates it from the original")]
    Twin,
    #[error("the original has not added the layer that separates it from the twin")]
    Original,
}

/// Checks that original and twin are separated; if not, kills the twin. Returns the threads and processes of
/// the original that can still reach the twin. `pids` are the original's worker and its init.
pub(super) fn check_apart(
    family: &Family,
    pids: Option<(u32, Option<u32>)>,
    before: Option<&ThreadSnapshot>,
    twin: &SessionProcesses,
) -> Result<Vec<CanReach>, ForkRefusal> {
    // The session is not confined.
    let Some(before) = before else { return Ok(Vec::new()) };
    let of_twin: HashSet<u32> = twin.below_root().into_iter().chain([twin.root()]).collect();
    let twin_threads = of_twin.iter().flat_map(|process| threads_of(*process)).collect();
    let mut after = session_threads(family, pids);
    after.retain(|thread| !of_twin.contains(&thread.process));
    let checked = before.compare(twin.root(), twin_threads, after);
    if matches!(checked, Err(SeparationError::Twin | SeparationError::Original)) {
        kill(twin, &of_twin);
    }
    checked.map_err(|not_apart| ForkRefusal::new(not_apart.to_string()))
}

/// The threads of the worker and of the processes that the session's code has started.
fn session_threads(family: &Family, pids: Option<(u32, Option<u32>)>) -> Vec<ThreadStatus> {
    let Some((worker, init)) = pids else { return Vec::new() };
    let twins = family.spared();
    let listed = family.listed();
    let numbers = listed.session_threads(worker, init);
    let read = numbers.filter_map(ThreadStatus::read);
    read.filter(|thread| !twins.contains(&thread.process)).collect()
}

impl ThreadSnapshot {
    /// Reads the session's threads now.
    pub fn look(family: &Family, pids: Option<(u32, Option<u32>)>) -> Result<Self, ForkRefusal> {
        let worker = pids.map(|(worker, _)| worker).unwrap_or_default();
        Self::new(worker, session_threads(family, pids))
            .ok_or_else(|| ForkRefusal::new("the status of the worker cannot be read"))
    }

    fn new(worker: u32, threads: Vec<ThreadStatus>) -> Option<Self> {
        let numbered = threads.into_iter().map(|thread| (thread.number, thread));
        let threads: BTreeMap<u32, ThreadStatus> = numbered.collect();
        let filters = threads.get(&worker)?.filters;
        Some(Self { worker, filters, threads })
    }

    /// The session's processes.
    pub fn processes(&self) -> Vec<u32> {
        let processes: BTreeSet<u32> = self.threads.values().map(|thread| thread.process).collect();
        processes.into_iter().collect()
    }

    /// The threads of the worker, by their ids in the session's pid namespace.
    pub fn threads(&self) -> Vec<u32> {
        let own = self.threads.values().filter(|thread| thread.process == self.worker);
        own.map(|thread| thread.number_inside).collect()
    }

    /// Compares with the threads `after` the fork. A thread that existed before must have more filters than
    /// before. A new thread must have more filters than the forking thread had.
    fn compare(
        &self,
        twin: u32,
        twin_threads: Vec<ThreadStatus>,
        after: Vec<ThreadStatus>,
    ) -> Result<Vec<CanReach>, SeparationError> {
        if self.threads.values().any(|thread| thread.process == twin) {
            return Err(SeparationError::NotNew);
        }
        if twin_threads.is_empty() {
            return Err(SeparationError::TwinEnded);
        }
        if !twin_threads.iter().all(|thread| self.has_layer(thread)) {
            return Err(SeparationError::Twin);
        }
        let first = after.iter().find(|thread| thread.number == self.worker);
        if !first.is_some_and(|thread| self.has_layer(thread)) {
            return Err(SeparationError::Original);
        }
        let mut found = BTreeMap::new();
        for thread in after.iter().filter(|thread| !self.has_layer(thread)) {
            let what = if thread.process == self.worker { "thread" } else { "process" };
            // A process is listed once, with the name of its first thread if that is in the list.
            let named = if what == "thread" { thread.number } else { thread.process };
            if thread.number == named || !found.contains_key(&named) {
                let name = format!("{}: {}", thread.number_inside, thread.name);
                found.insert(named, CanReach { what: what.to_owned(), name });
            }
        }
        Ok(shortened(found.into_values().collect()))
    }

    /// Whether a thread has added a layer since the snapshot, or inherited one.
    fn has_layer(&self, thread: &ThreadStatus) -> bool {
        let known = self.threads.get(&thread.number);
        let before = known.map_or(self.filters, |before| before.filters);
        thread.is_confined && thread.filters > before
    }
}

/// Sends SIGKILL to a twin and to the processes that it has started.
fn kill(twin: &SessionProcesses, of_twin: &HashSet<u32>) {
    // By pidfd: the process id may belong to another process by now.
    let _ = pidfd_send_signal(twin.handle(), Signal::KILL);
    for process in of_twin.iter().filter(|process| **process != twin.root()) {
        if let Some(process) = Pid::from_raw(process.cast_signed()) {
            let _ = kill_process(process, Signal::KILL);
        }
    }
}

fn shortened(mut found: Vec<CanReach>) -> Vec<CanReach> {
    let more = found.len().saturating_sub(NOT_CARRIED_MAX);
    if more > 0 {
        found.truncate(NOT_CARRIED_MAX);
        found.push(CanReach { what: "more".to_owned(), name: format!("{more} others") });
    }
    found
}

fn threads_of(process: u32) -> Vec<ThreadStatus> {
    let Ok(tasks) = std::fs::read_dir(format!("/proc/{process}/task")) else { return Vec::new() };
    let numbers = tasks.flatten().filter_map(|task| task.file_name().to_str()?.parse().ok());
    numbers.filter_map(ThreadStatus::read).collect()
}

impl ThreadStatus {
    /// `None` for a thread that has ended.
    fn read(number: u32) -> Option<Self> {
        // The name can contain any bytes except a newline, which the kernel escapes.
        let bytes = std::fs::read(format!("/proc/{number}/status")).ok()?;
        Self::parse(number, &String::from_utf8_lossy(&bytes))
    }

    fn parse(number: u32, status: &str) -> Option<Self> {
        let field = |name: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(name));
            line.and_then(|rest| rest.strip_prefix(':')).map(str::trim)
        };
        if field("State")?.starts_with(['Z', 'X']) {
            return None;
        }
        let count = |name: &str| field(name).and_then(|text| text.parse::<u32>().ok());
        let is_confined =
            count("NoNewPrivs") == Some(1) && count("Seccomp") == Some(SECCOMP_FILTERED);
        let printable = |letter: char| if letter.is_control() { '?' } else { letter };
        Some(Self {
            number,
            number_inside: field("NSpid")?.split_ascii_whitespace().last()?.parse().ok()?,
            process: count("Tgid")?,
            name: field("Name")?.chars().map(printable).collect(),
            is_confined,
            // Kernels before 5.9 lack this field; a fork needs a newer kernel.
            filters: count("Seccomp_filters").unwrap_or(0),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WORKER: u32 = 10;
    const TWIN: u32 = 20;

    /// Parses `number/process=filters`, separated by spaces.
    fn threads(text: &str) -> Vec<ThreadStatus> {
        let thread = |one: &str| {
            let (name, filters) = one.split_once('=').unwrap();
            let (number, process) = name.split_once('/').unwrap();
            ThreadStatus {
                number: number.parse().unwrap(),
                number_inside: number.parse().unwrap(),
                process: process.parse().unwrap(),
                name: "python3".to_owned(),
                is_confined: filters != "0",
                filters: filters.parse().unwrap(),
            }
        };
        text.split_ascii_whitespace().map(thread).collect()
    }

    /// The result of a fork: threads before it, the twin's threads, threads after it.
    fn said(before: &str, twin: &str, after: &str) -> String {
        let before = ThreadSnapshot::new(WORKER, threads(before)).unwrap();
        match before.compare(TWIN, threads(twin), threads(after)) {
            Err(not_apart) => format!("{not_apart:?}"),
            Ok(found) => {
                let named = found.iter().map(|one| format!("{} {}", one.what, one.name));
                named.collect::<Vec<_>>().join(", ")
            }
        }
    }

    #[test]
    fn threads_without_one_more_filter_are_named_and_twins_without_it_refused() {
        let rows = [
            ("10/10=1", "20/20=2", "10/10=2", ""),
            ("10/10=1 11/10=1", "20/20=2", "10/10=2 11/10=2", ""),
            ("10/10=1 11/10=1", "20/20=2", "10/10=2 11/10=1", "thread 11: python3"),
            // A thread that added a filter itself before the fork.
            ("10/10=1 11/10=2", "20/20=2", "10/10=2 11/10=2", "thread 11: python3"),
            // Threads that were started during the fork: by a thread with the layer, and by one without it.
            ("10/10=1", "20/20=2", "10/10=2 12/10=2 13/10=1", "thread 13: python3"),
            // Child processes from before and after the fork, with all their threads.
            ("10/10=1 30/30=1", "20/20=2", "10/10=2 30/30=1 31/31=2", "process 30: python3"),
            ("10/10=1", "20/20=2", "10/10=2 41/40=1 40/40=1", "process 40: python3"),
            ("10/10=1", "20/20=1", "10/10=2", "Twin"),
            ("10/10=1", "20/20=2 21/20=1", "10/10=2", "Twin"),
            ("10/10=1", "20/20=2 22/22=1", "10/10=2", "Twin"),
            ("10/10=1", "20/20=2", "10/10=1", "Original"),
            ("10/10=1", "20/20=2", "", "Original"),
            ("10/10=1", "", "10/10=2", "TwinEnded"),
            ("10/10=1 20/20=1", "20/20=2", "10/10=2", "NotNew"),
        ];
        for (before, twin, after, expected) in rows {
            assert_eq!(said(before, twin, after), expected, "{before} | {twin} | {after}");
        }
    }

    #[test]
    fn a_long_list_is_cut_off_and_says_so() {
        let many: String = (100..400).map(|number| format!(" {number}/10=1")).collect();
        let after = format!("10/10=2{many}");
        let found = said("10/10=1", "20/20=2", &after);
        assert!(found.ends_with(", more 44 others"), "{found}");
    }

    #[test]
    fn a_status_is_read_whatever_the_thread_calls_itself() {
        let status = "Name:\t\u{1b}[31m\\nNSpid:\t1\nState:\tS (sleeping)\nTgid:\t7\nPid:\t8\n\
            NSpid:\t8\t3\nNoNewPrivs:\t1\nSeccomp:\t2\nSeccomp_filters:\t4\n";
        let thread = ThreadStatus::parse(8, status).unwrap();
        assert_eq!(thread.name, "?[31m\\nNSpid:?1");
        assert_eq!((thread.process, thread.number_inside, thread.filters), (7, 3, 4));
        assert!(thread.is_confined);
        assert_eq!(ThreadStatus::parse(8, &status.replace("S (sleeping)", "Z (zombie)")), None);
        let open =
            ThreadStatus::parse(8, &status.replace("NoNewPrivs:\t1", "NoNewPrivs:\t0")).unwrap();
        assert!(!open.is_confined);
    }
}
