//! Forks children that continue in the same program: the part of the nursery that needs `unsafe`. The caller
//! decides what a child does.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use nix::sched::{CloneFlags, unshare};
use nix::sys::signal::{SigSet, SigmaskHow};
use nix::unistd::{ForkResult, fork, getegid, geteuid};
use rustix::process::{Pid, PidfdFlags, pidfd_open};

use crate::namespace::keep_identity;

/// The exit code of a child whose descriptors or signal mask could not be set.
const NOT_BEGUN: i32 = 127;

/// A child that was just forked, with a pidfd.
#[derive(Debug)]
pub struct ForkedChild {
    pub pid: u32,
    pub handle: OwnedFd,
}

/// Moves the calling process into a new user namespace, in which it keeps its user and group and has the
/// capabilities that its children need. Children then need no user namespace of their own. The process must
/// have one thread.
pub fn own_user_namespace() -> io::Result<()> {
    let (uid, gid) = (geteuid(), getegid());
    unshare(CloneFlags::CLONE_NEWUSER)?;
    keep_identity(uid.as_raw(), gid.as_raw())
}

/// Forks a child that runs `go_on` and exits with its result. In the child, `descriptors` get the numbers
/// 0, 1, 2 and so on and stay open over an `exec`; all other descriptors are closed. No signal is blocked.
///
/// The calling process must have one thread.
pub fn fork_child(
    descriptors: &[BorrowedFd<'_>],
    go_on: impl FnOnce() -> i32,
) -> io::Result<ForkedChild> {
    // SAFETY: the caller has one thread, so the child may do anything a process may.
    match unsafe { fork() }? {
        ForkResult::Child => {
            let code = match begin(descriptors) {
                Ok(()) => go_on(),
                Err(_) => NOT_BEGUN,
            };
            std::process::exit(code)
        }
        ForkResult::Parent { child } => {
            // Only this process reaps the child, so its process id cannot be reused yet.
            let opened = Pid::from_raw(child.as_raw())
                .ok_or(rustix::io::Errno::SRCH)
                .and_then(|pid| pidfd_open(pid, PidfdFlags::empty()));
            match opened {
                Ok(handle) => Ok(ForkedChild { pid: child.as_raw().unsigned_abs(), handle }),
                Err(errno) => {
                    let _ = nix::sys::signal::kill(child, nix::sys::signal::Signal::SIGKILL);
                    Err(errno.into())
                }
            }
        }
    }
}

fn begin(descriptors: &[BorrowedFd<'_>]) -> io::Result<()> {
    take_places(descriptors)?;
    SigSet::empty().thread_swap_mask(SigmaskHow::SIG_SETMASK)?;
    Ok(())
}

fn take_places(descriptors: &[BorrowedFd<'_>]) -> io::Result<()> {
    let count = i32::try_from(descriptors.len()).map_err(io::Error::other)?;
    // Duplicate all descriptors above the target numbers first, so that no `dup2` overwrites one of them.
    let mut moved = Vec::with_capacity(descriptors.len());
    for descriptor in descriptors {
        moved.push(rustix::io::fcntl_dupfd_cloexec(descriptor, count)?);
    }
    for (number, descriptor) in (0..count).zip(&moved) {
        // SAFETY: no memory is passed; the descriptor that had the number is not used again in this process.
        let placed = unsafe { libc::dup2(descriptor.as_fd().as_raw_fd(), number) };
        if placed < 0 {
            return Err(io::Error::last_os_error());
        }
    }
    // `close_range` closes the duplicates together with all other descriptors.
    std::mem::forget(moved);
    // SAFETY: no memory is passed; the closed descriptors are not used again in this process.
    let closed = unsafe { libc::syscall(libc::SYS_close_range, count, libc::c_uint::MAX, 0) };
    if closed < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Makes the calling process keep its capabilities over an `exec`. Without this, a process of an ordinary
/// user loses them. A zygote in its nursery's user namespace needs them to enter the namespaces of keepers.
/// Workers that the zygote forks must drop them.
pub fn keep_rights_over_exec() -> io::Result<()> {
    let mut sets = rustix::thread::capabilities(None)?;
    let kept = sets.permitted;
    sets.inheritable = kept;
    rustix::thread::set_capabilities(None, sets)?;
    for right in kept.iter() {
        rustix::thread::configure_capability_in_ambient_set(right, true)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::io::Read;

    use nix::sys::wait::{WaitStatus, waitpid};
    use nix::unistd::Pid;

    use super::*;

    #[test]
    fn a_child_has_only_the_descriptors_that_it_was_given() {
        let (mut read, write) = std::io::pipe().unwrap();
        let null = File::options().read(true).write(true).open("/dev/null").unwrap();
        let _other = File::open("/dev/null").unwrap();
        // The test process has several threads, so the child makes system calls only.
        let descriptors = [null.as_fd(), write.as_fd(), null.as_fd()];
        let forked = fork_child(&descriptors, || {
            let open = (0..64).filter(|number| {
                // SAFETY: no memory is passed.
                unsafe { libc::fcntl(*number, libc::F_GETFD) >= 0 }
            });
            let count = u8::try_from(open.count()).unwrap_or(u8::MAX);
            let _ = rustix::io::write(rustix::stdio::stdout(), &[count]);
            // SAFETY: ends the process without running code of the test.
            unsafe { libc::_exit(5) }
        })
        .unwrap();
        drop(write);
        let mut said = Vec::new();
        read.read_to_end(&mut said).unwrap();
        assert_eq!(said, [3]);
        let pid = Pid::from_raw(forked.pid.cast_signed());
        assert_eq!(waitpid(pid, None).unwrap(), WaitStatus::Exited(pid, 5));
    }
}
