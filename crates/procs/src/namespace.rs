//! Holds a process tree by a pid namespace: the caller becomes pid 1 of a new pid namespace. When pid 1 ends,
//! for any cause, the kernel kills every process in the namespace.

use std::io;

use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, unshare};
use nix::sys::signal::{Signal, kill};
use nix::unistd::{ForkResult, Pid, fork, getegid, geteuid};

use crate::hold::HoldError;

/// Continues as pid 1 of a new pid namespace with its own `/proc`; the calling process exits.
/// Returns this process's id outside of the namespace.
pub(crate) fn enter() -> Result<u32, HoldError> {
    let spaces = CloneFlags::CLONE_NEWPID | CloneFlags::CLONE_NEWNS;
    // Root needs no user namespace, and neither does a child of the nursery, which is in the nursery's user
    // namespace. Any other user, and root without the capability, needs a new one.
    if unshare(spaces).is_err() {
        let (uid, gid) = (geteuid(), getegid());
        unshare(spaces | CloneFlags::CLONE_NEWUSER)
            .map_err(|errno| HoldError::NamespaceRefused(errno.into()))?;
        keep_identity(uid.as_raw(), gid.as_raw()).map_err(HoldError::NamespaceRefused)?;
    }
    // SAFETY: the caller has one thread, so the child may do anything a process may.
    match unsafe { fork() } {
        Ok(ForkResult::Parent { .. }) => std::process::exit(0),
        Ok(ForkResult::Child) => {}
        Err(errno) => {
            return Err(HoldError::Failed { act: "fork", cause: errno.into() });
        }
    }
    // The old /proc still shows the process ids of the outer namespace.
    let pid = outer_pid().map_err(|cause| HoldError::Failed { act: "read /proc/self", cause })?;
    mount_proc();
    Ok(pid)
}

/// SIGKILL to every process of the namespace but this one.
pub(crate) fn kill_everyone_else() {
    // ESRCH: no process is left. Pid 1 gets no other error in its own namespace.
    let _ = kill(Pid::from_raw(-1), Signal::SIGKILL);
}

/// Maps only this process's user and group into its new user namespace.
pub(crate) fn keep_identity(uid: u32, gid: u32) -> io::Result<()> {
    std::fs::write("/proc/self/setgroups", "deny")?;
    std::fs::write("/proc/self/uid_map", format!("{uid} {uid} 1"))?;
    std::fs::write("/proc/self/gid_map", format!("{gid} {gid} 1"))
}

fn outer_pid() -> io::Result<u32> {
    let link = std::fs::read_link("/proc/self")?;
    link.to_str()
        .and_then(|text| text.parse().ok())
        .ok_or_else(|| io::Error::other("/proc/self is not a number"))
}

/// Mounts a `/proc` that shows the process ids of this namespace. A machine that masks parts of `/proc` (a
/// container) may refuse the mount. Then the old `/proc` stays, and only tools that look up their own pid
/// there are affected.
fn mount_proc() {
    let nothing = None::<&str>;
    let private = MsFlags::MS_REC | MsFlags::MS_PRIVATE;
    if mount(nothing, "/", nothing, private, nothing).is_ok() {
        let flags = MsFlags::MS_NOSUID | MsFlags::MS_NODEV | MsFlags::MS_NOEXEC;
        let _ = mount(Some("proc"), "/proc", Some("proc"), flags, nothing);
    }
}
