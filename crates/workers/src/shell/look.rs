//! Looks at what the processes of a turn wait for, by the kernel's own account in `/proc`. The result is a
//! fact: a process that is shown in `read` of an empty pipe waits for input.

use std::collections::VecDeque;
use std::fs;
use std::os::unix::fs::FileExt;

use super::input::InputIdentity;

/// Maximum number of processes that one look visits.
const PROCESSES_MAX: usize = 1024;

/// Maximum number of threads of one process that one look visits.
const THREADS_MAX: usize = 64;

/// Maximum number of descriptors of one `poll` that are read.
const POLLED_MAX: u64 = 64;

#[cfg(target_arch = "x86_64")]
mod calls {
    pub const READ: u64 = 0;
    pub const READV: u64 = 19;
    pub const POLL: Option<u64> = Some(7);
    pub const PPOLL: u64 = 271;
    pub const SELECT: Option<u64> = Some(23);
    pub const PSELECT: u64 = 270;
    pub const EPOLL_WAIT: Option<u64> = Some(232);
    pub const EPOLL_PWAIT: u64 = 281;
}
#[cfg(target_arch = "aarch64")]
mod calls {
    pub const READ: u64 = 63;
    pub const READV: u64 = 65;
    pub const POLL: Option<u64> = None;
    pub const PPOLL: u64 = 73;
    pub const SELECT: Option<u64> = None;
    pub const PSELECT: u64 = 72;
    pub const EPOLL_WAIT: Option<u64> = None;
    pub const EPOLL_PWAIT: u64 = 22;
}

/// The files that a look recognises.
#[derive(Debug, Clone, Copy)]
pub struct KnownFiles {
    /// The standard input of the session.
    pub input: Option<InputIdentity>,
    pub terminal: Option<InputIdentity>,
    /// Where bash reads its commands.
    pub commands: Option<InputIdentity>,
}

/// What a process waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WaitsFor {
    Input,
    Terminal,
    /// Bash waits for its next command, so no turn runs in it.
    Commands,
}

/// What bash or a process in the foreground among its descendants waits for. `group` is the foreground process group; without
/// job control there is none, and all processes count.
pub fn waiting(bash: u32, group: Option<u32>, files: KnownFiles) -> Option<WaitsFor> {
    let counts = |process: &u32| {
        *process == bash || group.is_none_or(|group| group_of(*process) == Some(group))
    };
    processes(bash).filter(counts).find_map(|process| {
        waits_for(process, files).filter(|found| *found != WaitsFor::Commands || process == bash)
    })
}

/// The descendants of bash in this process group.
pub fn others_in_group(bash: u32, group: u32) -> impl Iterator<Item = u32> {
    processes(bash).skip(1).filter(move |process| group_of(*process) == Some(group))
}

/// Bash and its descendants, as far as one look goes.
fn processes(bash: u32) -> impl Iterator<Item = u32> {
    let mut unseen = VecDeque::from([bash]);
    let next = move || {
        let process = unseen.pop_front()?;
        let children = fs::read_to_string(format!("/proc/{process}/task/{process}/children"));
        let children = children.unwrap_or_default();
        unseen.extend(children.split_whitespace().filter_map(|pid| pid.parse::<u32>().ok()));
        Some(process)
    };
    std::iter::from_fn(next).take(PROCESSES_MAX)
}

/// The process group of a process.
fn group_of(process: u32) -> Option<u32> {
    let facts = fs::read_to_string(format!("/proc/{process}/stat")).ok()?;
    // The name of the program is in parentheses and may contain any character.
    let after_name = &facts[facts.rfind(')')? + 1..];
    after_name.split_whitespace().nth(2)?.parse().ok()
}

/// What a thread of the process waits for. Some languages read in another thread than the first.
fn waits_for(process: u32, files: KnownFiles) -> Option<WaitsFor> {
    let threads = fs::read_dir(format!("/proc/{process}/task")).ok()?.take(THREADS_MAX);
    let threads = threads.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
    threads.filter_map(|thread| thread_waits_for(process, thread, files)).next()
}

fn thread_waits_for(process: u32, thread: u32, files: KnownFiles) -> Option<WaitsFor> {
    let line = fs::read_to_string(format!("/proc/{process}/task/{thread}/syscall")).ok()?;
    let mut words = line.split_whitespace();
    let call: u64 = words.next()?.parse().ok()?;
    let arguments: Vec<u64> = words
        .take(6)
        .filter_map(|word| u64::from_str_radix(word.trim_start_matches("0x"), 16).ok())
        .collect();
    let arguments: [u64; 6] = arguments.try_into().ok()?;
    read_descriptors(process, call, arguments)
        .into_iter()
        .find_map(|fd| files.recognise(InputIdentity::in_process(process, fd)?))
}

impl KnownFiles {
    fn recognise(&self, file: InputIdentity) -> Option<WaitsFor> {
        let file = Some(file);
        if file == self.commands {
            return Some(WaitsFor::Commands);
        }
        if file == self.input {
            return Some(WaitsFor::Input);
        }
        let is_terminal =
            file == self.terminal || file == Some(InputIdentity::CONTROLLING_TERMINAL);
        is_terminal.then_some(WaitsFor::Terminal)
    }
}

/// The descriptors whose input ends this call. Calls with a time limit do not count: their process does
/// something else when it passes.
fn read_descriptors(process: u32, call: u64, arguments: [u64; 6]) -> Vec<u64> {
    const FOREVER: u64 = u32::MAX as u64;
    let [first, second, _, fourth, fifth, _] = arguments;
    let is = |known: Option<u64>| known == Some(call);
    if call == calls::READ || call == calls::READV {
        return vec![first];
    }
    if (is(calls::POLL) && arguments[2] & FOREVER == FOREVER)
        || (call == calls::PPOLL && arguments[2] == 0)
    {
        return polled(process, first, second);
    }
    if (is(calls::SELECT) || call == calls::PSELECT) && fifth == 0 {
        return selected(process, second);
    }
    if (is(calls::EPOLL_WAIT) || call == calls::EPOLL_PWAIT) && fourth & FOREVER == FOREVER {
        return in_epoll(process, first);
    }
    Vec::new()
}

/// The descriptors in an array of `pollfd` that wait for input.
fn polled(process: u32, address: u64, count: u64) -> Vec<u64> {
    const POLLIN: u16 = 1;
    let mut entries = vec![0; 8 * count.min(POLLED_MAX) as usize];
    if !read_memory(process, address, &mut entries) {
        return Vec::new();
    }
    let wanted = entries.chunks_exact(8).filter_map(|entry| {
        let fd = i32::from_ne_bytes(entry[..4].try_into().ok()?);
        let events = u16::from_ne_bytes(entry[4..6].try_into().ok()?);
        (events & POLLIN != 0).then(|| u64::try_from(fd).ok())?
    });
    wanted.collect()
}

/// The low descriptors in an `fd_set`.
fn selected(process: u32, address: u64) -> Vec<u64> {
    let mut word = [0; 8];
    if address == 0 || !read_memory(process, address, &mut word) {
        return Vec::new();
    }
    let set = u64::from_ne_bytes(word);
    (0..64).filter(|fd| set & (1 << fd) != 0).collect()
}

/// The descriptors of an epoll instance that wait for input.
fn in_epoll(process: u32, epoll: u64) -> Vec<u64> {
    const EPOLLIN: u64 = 1;
    let facts = fs::read_to_string(format!("/proc/{process}/fdinfo/{epoll}")).unwrap_or_default();
    let entry = |line: &str| {
        let mut words = line.strip_prefix("tfd:")?.split_whitespace();
        let fd: u64 = words.next()?.parse().ok()?;
        let events = words.skip_while(|word| *word != "events:").nth(1)?;
        (u64::from_str_radix(events, 16).ok()? & EPOLLIN != 0).then_some(fd)
    };
    facts.lines().filter_map(entry).collect()
}

fn read_memory(process: u32, address: u64, buffer: &mut [u8]) -> bool {
    fs::File::open(format!("/proc/{process}/mem"))
        .is_ok_and(|memory| memory.read_exact_at(buffer, address).is_ok())
}
