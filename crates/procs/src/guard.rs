//! Holding without namespaces: the caller becomes a subreaper, so orphans below it come to it, and
//! a guard process stays above it that ends whatever the caller leaves behind if it dies first.

use std::io;

use nix::sys::signal::{SigSet, SigmaskHow, sigprocmask};
use nix::sys::wait::{WaitStatus, waitpid};
use nix::unistd::{ForkResult, Pid, fork, getpid};
use rustix::process::{set_child_subreaper, set_parent_process_death_signal};

use crate::cgroup::Cgroup;
use crate::hold::HoldError;
use crate::tree;

/// Goes on as a subreaper below a guard; the calling process becomes the guard and never returns.
pub(crate) fn enter() -> Result<(u32, Option<Cgroup>), HoldError> {
    become_subreaper()?;
    let cgroup = Cgroup::make();
    let guard = getpid();
    // SAFETY: the caller has one thread, so the child may do anything a process may.
    match unsafe { fork() } {
        Ok(ForkResult::Parent { child }) => stand_guard(child, cgroup.as_ref()),
        Ok(ForkResult::Child) => {}
        Err(errno) => return Err(HoldError::Failed { act: "fork", cause: errno.into() }),
    }
    // The guard's death reaches us as SIGTERM, on which a keeper ends its tree.
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
    set_child_subreaper(rustix::process::Pid::from_raw(1))
        .map_err(|errno| HoldError::Failed { act: "become a subreaper", cause: errno.into() })
}

/// Waits for the held process to end, ends all that it left, and exits.
fn stand_guard(held: Pid, cgroup: Option<&Cgroup>) -> ! {
    // Only SIGKILL ends a guard before its charge; an error here leaves the default, which is safe.
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
    // Each round ends the children of this moment; theirs come to us and fall in the next.
    while tree::kill_children() > 0 {
        if waitpid(None::<Pid>, None).is_err() {
            break;
        }
    }
    if let Some(cgroup) = cgroup {
        cgroup.remove();
    }
    std::process::exit(0)
}

/// The guard keeps none of the keeper's descriptors: a listening socket held here would outlive
/// the keeper and look alive to a node.
fn release_descriptors() {
    let Ok(entries) = std::fs::read_dir("/proc/self/fd") else { return };
    let open: Vec<i32> =
        entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect();
    for descriptor in open {
        let _ = nix::unistd::close(descriptor);
    }
}
