//! The processes below this one: ending the direct ones, reaping the ended.

use std::ffi::CStr;

use nix::errno::Errno;
use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::{Pid, getpid};

use crate::process_file;

/// The name of the first process of a session's pid namespace, which only reaps.
pub const INIT_NAME: &CStr = c"windlass-init";

/// What one call of [`reap_all`] found.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct Reaped {
    /// Each process that ended, and how, in words.
    pub ended: Vec<(u32, String)>,
    /// No child is left, ended or not.
    pub none_left: bool,
}

/// Takes every ended child without blocking.
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

/// SIGKILL to each direct child; how many there were.
pub(crate) fn kill_children() -> usize {
    let children = children();
    for child in &children {
        let _ = kill(*child, Signal::SIGKILL);
    }
    children.len()
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

/// For kernels without the `children` file: every process whose parent is `me`.
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
    // The command may hold spaces and parentheses; the fields go on after the last one.
    stat[stat.rfind(')')? + 1..].split_ascii_whitespace().nth(1)?.parse().ok()
}
