//! The child processes of this process: lists, kills and reaps them.

use std::ffi::CStr;
use std::io;

use nix::errno::Errno;
use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::{Pid, getpid};
use rustix::process::set_child_subreaper;

use crate::process_file;

/// The name of a session's init: the first process of the session's pid namespace, which only reaps.
pub const INIT_NAME: &CStr = c"windlass-init";

/// The result of one call of [`reap_all`].
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct Reaped {
    /// Each reaped process with how it ended: `exit code N` or `signal NAME`.
    pub ended: Vec<(u32, String)>,
    /// This process has no children any more.
    pub none_left: bool,
}

/// Reaps every ended child without blocking.
pub fn reap_all() -> Reaped {
    let mut reaped = Reaped::default();
    loop {
        match waitpid(None::<Pid>, Some(WaitPidFlag::WNOHANG)) {
            Ok(WaitStatus::Exited(pid, code)) => {
                reaped.ended.push((pid.as_raw().unsigned_abs(), format!("exit code {code}")));
            }
            Ok(WaitStatus::Signaled(pid, signal, _)) => {
                reaped.ended.push((pid.as_raw().unsigned_abs(), format!("signal {signal}")));
            }
            Ok(WaitStatus::StillAlive) => return reaped,
            Ok(_) | Err(Errno::EINTR) => {}
            Err(_) => {
                reaped.none_left = true;
                return reaped;
            }
        }
    }
}

/// The exit status that a shell gives a process that ended so, as [`reap_all`] describes it: its exit code, or
/// 128 and the number of the signal that ended it.
pub fn exit_code_of(how: &str) -> Option<i32> {
    if let Some(code) = how.strip_prefix("exit code ") {
        return code.parse().ok();
    }
    let signal: Signal = how.strip_prefix("signal ")?.parse().ok()?;
    Some(128 + signal as i32)
}

/// Orphans below this process become its children from now on.
pub fn become_subreaper() -> io::Result<()> {
    Ok(set_child_subreaper(rustix::process::Pid::from_raw(1))?)
}

/// Kills and reaps every process below this one, which is a subreaper: the children of a process that is killed become
/// its own children, and the next round kills them. Returns how many it has killed. Has no time limit: it also waits for
/// a process that does not end.
pub fn kill_all_below() -> usize {
    let mut killed = 0;
    loop {
        let children = kill_children();
        if children == 0 || waitpid(None::<Pid>, None).is_err() {
            return killed;
        }
        killed += 1;
    }
}

/// Sends SIGKILL to each direct child. Returns the number of children.
pub(crate) fn kill_children() -> usize {
    let children = children();
    for child in &children {
        let _ = kill(*child, Signal::SIGKILL);
    }
    children.len()
}

/// The direct children of this process, with those that have ended and are not reaped.
pub fn child_pids() -> Vec<u32> {
    children().into_iter().map(|pid| pid.as_raw().unsigned_abs()).collect()
}

pub(crate) fn children() -> Vec<Pid> {
    let me = getpid();
    match std::fs::read_to_string(format!("/proc/self/task/{me}/children")) {
        Ok(list) => list
            .split_ascii_whitespace()
            .filter_map(|pid| pid.parse().ok().map(Pid::from_raw))
            .collect(),
        Err(_) => children_by_parent(me),
    }
}

/// Finds every process whose parent is `me`, for kernels without the `children` file.
fn children_by_parent(me: Pid) -> Vec<Pid> {
    let Ok(entries) = std::fs::read_dir("/proc") else { return Vec::new() };
    entries
        .flatten()
        .filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok())
        .filter(|pid| parent_of(*pid) == Some(me.as_raw()))
        .map(Pid::from_raw)
        .collect()
}

fn parent_of(pid: i32) -> Option<i32> {
    let stat = process_file::read(pid.unsigned_abs(), "stat").ok()?;
    // The command name can contain spaces and parentheses; the other fields follow the last parenthesis.
    stat[stat.rfind(')')? + 1..].split_ascii_whitespace().nth(1)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_end_in_words_has_the_exit_code_of_shells() {
        for (how, code) in [
            ("exit code 0", Some(0)),
            ("exit code 255", Some(255)),
            ("signal SIGKILL", Some(137)),
            ("signal SIGSEGV", Some(139)),
            ("signal 9", None),
            ("it vanished", None),
        ] {
            assert_eq!(exit_code_of(how), code, "{how}");
        }
    }
}
