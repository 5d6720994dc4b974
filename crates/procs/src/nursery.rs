//! Forking children that go on as something else without running another program: what a nursery
//! needs and has no safe form. What the children become is the caller's.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use nix::sched::{CloneFlags, unshare};
use nix::sys::signal::{SigSet, SigmaskHow};
use nix::unistd::{ForkResult, fork, getegid, geteuid};
use rustix::process::{Pid, PidfdFlags, pidfd_open};

use crate::namespace::keep_identity;

/// The exit code of a child that could not begin.
const NOT_BEGUN: i32 = 127;

/// A child just forked.
#[derive(Debug)]
pub struct Forked {
    pub pid: u32,
    pub handle: OwnedFd,
}

/// Moves the calling process into a user namespace of its own, in which it keeps its user and group
/// and may do what children need: then none of them needs one of its own. Must be called while the
/// process has one thread.
pub fn own_user_namespace() -> io::Result<()> {
    let (uid, gid) = (geteuid(), getegid());
    unshare(CloneFlags::CLONE_NEWUSER)?;
    keep_identity(uid.as_raw(), gid.as_raw())
}

/// Forks. In the child the descriptors `places` get the numbers 0, 1, 2 and so on, stay open over
/// an `exec`, and are all that is left open; signals are as a new process has them. Then `go_on`
/// runs, and the child exits with what it returns.
///
/// Must be called while the process has one thread.
pub fn fork_child(places: &[BorrowedFd<'_>], go_on: impl FnOnce() -> i32) -> io::Result<Forked> {
    // SAFETY: the caller has one thread, so the child may do anything a process may.
    match unsafe { fork() }? {
        ForkResult::Child => {
            let code = match begin(places) {
                Ok(()) => go_on(),
                Err(_) => NOT_BEGUN,
            };
            std::process::exit(code)
        }
        ForkResult::Parent { child } => {
            // Nobody but us reaps it, so the number is its own.
            let opened = Pid::from_raw(child.as_raw())
                .ok_or(rustix::io::Errno::SRCH)
                .and_then(|pid| pidfd_open(pid, PidfdFlags::empty()));
            match opened {
                Ok(handle) => Ok(Forked { pid: child.as_raw().unsigned_abs(), handle }),
                Err(errno) => {
                    let _ = nix::sys::signal::kill(child, nix::sys::signal::Signal::SIGKILL);
                    Err(errno.into())
                }
            }
        }
    }
}

fn begin(places: &[BorrowedFd<'_>]) -> io::Result<()> {
    take_places(places)?;
    SigSet::empty().thread_swap_mask(SigmaskHow::SIG_SETMASK)?;
    Ok(())
}

fn take_places(places: &[BorrowedFd<'_>]) -> io::Result<()> {
    let count = i32::try_from(places.len()).map_err(io::Error::other)?;
    // Out of each other's way first.
    let mut moved = Vec::with_capacity(places.len());
    for place in places {
        moved.push(rustix::io::fcntl_dupfd_cloexec(place, count)?);
    }
    for (number, descriptor) in (0..count).zip(&moved) {
        // SAFETY: no memory is passed; what had the number is not used again in this process.
        let placed = unsafe { libc::dup2(descriptor.as_fd().as_raw_fd(), number) };
        if placed < 0 {
            return Err(io::Error::last_os_error());
        }
    }
    // They are closed with all others.
    std::mem::forget(moved);
    // SAFETY: no memory is passed; what is closed is not used again in this process.
    let closed = unsafe { libc::syscall(libc::SYS_close_range, count, libc::c_uint::MAX, 0) };
    if closed < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Lets the calling process keep what it may do when it runs another program, which an ordinary
/// user's process does not. For a zygote in its nursery's user namespace, which must reach into
/// those of keepers; whatever it forks has to give it up.
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
        // The test has more threads than one: the child makes system calls only.
        let places = [null.as_fd(), write.as_fd(), null.as_fd()];
        let forked = fork_child(&places, || {
            let open = (0..64).filter(|number| {
                // SAFETY: no memory is passed.
                unsafe { libc::fcntl(*number, libc::F_GETFD) >= 0 }
            });
            let count = u8::try_from(open.count()).unwrap_or(u8::MAX);
            let _ = rustix::io::write(rustix::stdio::stdout(), &[count]);
            // SAFETY: ends the process without running anything of the test's.
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
