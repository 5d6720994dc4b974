//! Whether a session and its twin are kept apart, seen from outside. The worker adds the layers that
//! separate the two, and the worker is not trusted; so the keeper reads from `/proc` what the kernel
//! says of every thread, before the fork and after it.
//!
//! The kernel shows no Landlock layer. The worker's library adds a system call filter right after each
//! layer, and never without one: a thread that has one filter more than before the fork has run that
//! code. Code that adds filters of its own can pretend to have; it could only deceive itself, since
//! what ran before the fork is in both twins.

use std::collections::{BTreeMap, BTreeSet, HashSet};

use rustix::process::{Pid, Signal, kill_process, pidfd_send_signal};
use windlass_procs::twin::Part;
use windlass_protocol::limits::NOT_CARRIED_MAX;
use windlass_protocol::link::CanReach;

use super::Refused;
use crate::family::Family;

/// What `/proc` says of a filtered thread.
const SECCOMP_FILTERED: u32 = 2;

/// A session's threads before a fork.
#[derive(Debug)]
pub(super) struct Before {
    worker: u32,
    /// The filters of the worker's first thread, which forks.
    filters: u32,
    threads: BTreeMap<u32, Thread>,
}

/// What the kernel says of one thread.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Thread {
    number: u32,
    /// Its number in the session's own namespace.
    number_inside: u32,
    process: u32,
    name: String,
    /// It can gain no rights, and has filters.
    is_confined: bool,
    filters: u32,
}

/// Why there can be no twin.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
enum NotApart {
    #[error("the process that called itself the twin was there before the fork")]
    NotNew,
    #[error("the twin has ended")]
    TwinEnded,
    #[error("the twin has not added the layer that keeps it apart from the original")]
    Twin,
    #[error("the original has not added the layer that keeps it apart from the twin")]
    Original,
}

/// Checks that the two are apart. Where they are not, the twin is killed; else these threads and
/// processes of the original could reach it. `who` is the original's worker and its init.
pub(super) fn check_apart(
    family: &Family,
    who: Option<(u32, Option<u32>)>,
    before: Option<&Before>,
    twin: &Part,
) -> Result<Vec<CanReach>, Refused> {
    // Nothing confines the session.
    let Some(before) = before else { return Ok(Vec::new()) };
    let of_twin: HashSet<u32> = twin.below_root().into_iter().chain([twin.root()]).collect();
    let twin_threads = of_twin.iter().flat_map(|process| threads_of(*process)).collect();
    let mut after = session_threads(family, who);
    after.retain(|thread| !of_twin.contains(&thread.process));
    let checked = before.compare(twin.root(), twin_threads, after);
    if matches!(checked, Err(NotApart::Twin | NotApart::Original)) {
        kill(twin, &of_twin);
    }
    checked.map_err(|not_apart| Refused::new(not_apart.to_string()))
}

/// The threads of the worker, and of what the session's code has started.
fn session_threads(family: &Family, who: Option<(u32, Option<u32>)>) -> Vec<Thread> {
    let Some((worker, init)) = who else { return Vec::new() };
    let twins = family.spared();
    let listed = family.listed();
    let numbers = listed.session_threads(worker, init);
    let read = numbers.filter_map(Thread::read);
    read.filter(|thread| !twins.contains(&thread.process)).collect()
}

impl Before {
    /// The session's threads at this moment.
    pub fn look(family: &Family, who: Option<(u32, Option<u32>)>) -> Result<Self, Refused> {
        let worker = who.map(|(worker, _)| worker).unwrap_or_default();
        Self::new(worker, session_threads(family, who))
            .ok_or_else(|| Refused::new("its worker cannot be looked at"))
    }

    fn new(worker: u32, threads: Vec<Thread>) -> Option<Self> {
        let numbered = threads.into_iter().map(|thread| (thread.number, thread));
        let threads: BTreeMap<u32, Thread> = numbered.collect();
        let filters = threads.get(&worker)?.filters;
        Some(Self { worker, filters, threads })
    }

    /// The processes that were the session's.
    pub fn processes(&self) -> Vec<u32> {
        let processes: BTreeSet<u32> = self.threads.values().map(|thread| thread.process).collect();
        processes.into_iter().collect()
    }

    /// The threads of the worker, by the numbers that it knows them by.
    pub fn threads(&self) -> Vec<u32> {
        let own = self.threads.values().filter(|thread| thread.process == self.worker);
        own.map(|thread| thread.number_inside).collect()
    }

    /// Compares with what is there `after` the fork: threads that were there before must have one
    /// filter more than then, others one more than the thread that forked had.
    fn compare(
        &self,
        twin: u32,
        twin_threads: Vec<Thread>,
        after: Vec<Thread>,
    ) -> Result<Vec<CanReach>, NotApart> {
        if self.threads.values().any(|thread| thread.process == twin) {
            return Err(NotApart::NotNew);
        }
        if twin_threads.is_empty() {
            return Err(NotApart::TwinEnded);
        }
        if !twin_threads.iter().all(|thread| self.has_layer(thread)) {
            return Err(NotApart::Twin);
        }
        let first = after.iter().find(|thread| thread.number == self.worker);
        if !first.is_some_and(|thread| self.has_layer(thread)) {
            return Err(NotApart::Original);
        }
        let mut found = BTreeMap::new();
        for thread in after.iter().filter(|thread| !self.has_layer(thread)) {
            let what = if thread.process == self.worker { "thread" } else { "process" };
            // A process is named once, by its first thread if that is among them.
            let named = if what == "thread" { thread.number } else { thread.process };
            if thread.number == named || !found.contains_key(&named) {
                let name = format!("{}: {}", thread.number_inside, thread.name);
                found.insert(named, CanReach { what: what.to_owned(), name });
            }
        }
        Ok(shortened(found.into_values().collect()))
    }

    /// Whether a thread has added a layer since, or has it from the thread or process that started it.
    fn has_layer(&self, thread: &Thread) -> bool {
        let known = self.threads.get(&thread.number);
        let before = known.map_or(self.filters, |before| before.filters);
        thread.is_confined && thread.filters > before
    }
}

/// SIGKILL to a twin and to what it has started.
fn kill(twin: &Part, of_twin: &HashSet<u32>) {
    // By the handle: the number may be another process's by now.
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

fn threads_of(process: u32) -> Vec<Thread> {
    let Ok(tasks) = std::fs::read_dir(format!("/proc/{process}/task")) else { return Vec::new() };
    let numbers = tasks.flatten().filter_map(|task| task.file_name().to_str()?.parse().ok());
    numbers.filter_map(Thread::read).collect()
}

impl Thread {
    /// Nothing for a thread that has ended.
    fn read(number: u32) -> Option<Self> {
        // The name can hold any bytes, but no line's end: the kernel writes that as two characters.
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
            // Kernels before 5.9 do not tell; a fork needs a later one.
            filters: count("Seccomp_filters").unwrap_or(0),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WORKER: u32 = 10;
    const TWIN: u32 = 20;

    /// `number/process=filters`, by spaces.
    fn threads(text: &str) -> Vec<Thread> {
        let thread = |one: &str| {
            let (name, filters) = one.split_once('=').unwrap();
            let (number, process) = name.split_once('/').unwrap();
            Thread {
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

    /// What is said of a fork: before, the twin's threads, after.
    fn said(before: &str, twin: &str, after: &str) -> String {
        let before = Before::new(WORKER, threads(before)).unwrap();
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
            // A thread with a filter of its own from before.
            ("10/10=1 11/10=2", "20/20=2", "10/10=2 11/10=2", "thread 11: python3"),
            // Started meanwhile: by a thread with the layer, and by one without it.
            ("10/10=1", "20/20=2", "10/10=2 12/10=2 13/10=1", "thread 13: python3"),
            // Children: from before, and from after; with all their threads.
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
        let thread = Thread::parse(8, status).unwrap();
        assert_eq!(thread.name, "?[31m\\nNSpid:?1");
        assert_eq!((thread.process, thread.number_inside, thread.filters), (7, 3, 4));
        assert!(thread.is_confined);
        assert_eq!(Thread::parse(8, &status.replace("S (sleeping)", "Z (zombie)")), None);
        let open = Thread::parse(8, &status.replace("NoNewPrivs:\t1", "NoNewPrivs:\t0")).unwrap();
        assert!(!open.is_confined);
    }
}
