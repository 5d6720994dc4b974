//! Holds a process tree without namespaces. The caller becomes a subreaper, so orphans below it become its
//! children. A guard process above the caller kills the processes that remain when the caller has ended.

use std::io;

use nix::sys::signal::{SigSet, SigmaskHow, sigprocmask};
use nix::sys::wait::{WaitStatus, waitpid};
use nix::unistd::{ForkResult, Pid, fork, getpid};
use rustix::process::set_parent_process_death_signal;

use crate::cgroup::KillCgroup;
use crate::hold::HoldError;
use crate::tree;

/// Continues as a subreaper below a guard; the calling process becomes the guard and never returns.
pub(crate) fn enter() -> Result<(u32, Option<KillCgroup>), HoldError> {
    become_subreaper()?;
    let cgroup = KillCgroup::make();
    let guard = getpid();
    // SAFETY: the caller has one thread, so the child may do anything a process may.
    match unsafe { fork() } {
        Ok(ForkResult::Parent { child }) => stand_guard(child, cgroup.as_ref()),
        Ok(ForkResult::Child) => {}
        Err(errno) => return Err(HoldError::Failed { act: "fork", cause: errno.into() }),
    }
    // The kernel sends this process SIGTERM when the guard dies. A keeper ends its tree on SIGTERM.
    let failed = |cause: io::Error| HoldError::Failed { act: "watch the guard", cause };
    set_parent_process_death_signal(Some(rustix::process::Signal::TERM))
        .map_err(|errno| failed(errno.into()))?;
    if nix::unistd::getppid() != guard {
        return Err(failed(io::Error::other("the guard is gone already")));
    }
    become_subreaper()?;
    Ok((getpid().as_raw().unsigned_abs(), cgroup))
}

fn become_subreaper() -> Result<(), HoldError> {
    tree::become_subreaper().map_err(|cause| HoldError::Failed { act: "become a subreaper", cause })
}

/// Waits for the held process to end, kills the processes that it left, and exits.
fn stand_guard(held: Pid, cgroup: Option<&KillCgroup>) -> ! {
    // Only SIGKILL can end the guard before the held process. If blocking fails, signals keep their default,
    // which is safe.
    let _ = sigprocmask(SigmaskHow::SIG_BLOCK, Some(&SigSet::all()), None);
    release_descriptors();
    loop {
        match waitpid(None::<Pid>, None) {
            Ok(WaitStatus::Exited(pid, _) | WaitStatus::Signaled(pid, _, _)) if pid == held => {
                break;
            }
            Ok(_) | Err(nix::errno::Errno::EINTR) => {}
            Err(_) => break,
        }
    }
    if let Some(cgroup) = cgroup {
        cgroup.kill();
    }
    tree::kill_all_below();
    if let Some(cgroup) = cgroup {
        cgroup.remove();
    }
    std::process::exit(0)
}

/// Closes the guard's copies of the keeper's descriptors. An open listening socket in the guard would outlive
/// the keeper, and a node would take the keeper for alive.
fn release_descriptors() {
    let Ok(entries) = std::fs::read_dir("/proc/self/fd") else { return };
    let open: Vec<i32> =
        entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect();
    for descriptor in open {
        let _ = nix::unistd::close(descriptor);
    }
}
