//! A user id of the session's own, on a node that runs as root. Outside of its user namespace the session has this
//! user and group id instead of root's. The owner of each writable directory is mapped to it by an id-mapped mount, so
//! files keep their owner on the disk, and no file of a file system that lasts has the session's id.
//!
//! Root makes the user namespaces before the fork, because only a process outside of a user namespace can map ids
//! into it that the process does not have. All other namespaces belong to the machine's user namespace: a session
//! that gained capabilities in its own user namespace could change none of them.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};

use nix::sys::wait::waitpid;
use nix::unistd::{ForkResult, Pid, fork};

use super::rights::check;
use super::{ConfineStep, StepError, StepErrorAt, c_path, mounts};

/// The user and group id of the session inside its user namespace.
const INSIDE: OwnerIds = OwnerIds { user: 0, group: 0 };

/// A user and a group of the machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct OwnerIds {
    user: u32,
    group: u32,
}

/// Why a user id of its own cannot be prepared for a session.
#[derive(Debug, thiserror::Error)]
pub enum OwnUserError {
    #[error("cannot make a user namespace for the session's own user id {uid}: {cause}")]
    Namespace { uid: u32, cause: io::Error },
    #[error("cannot find the owner of {path}, which the session may write: {cause}")]
    Owner { path: PathBuf, cause: io::Error },
    #[error("a worker that was forked from a zygote cannot get a user id of its own")]
    Forked,
}

/// Why the owner of a directory cannot be mapped to a session's own user id.
#[derive(Debug, thiserror::Error)]
pub enum OwnerMapError {
    #[error(transparent)]
    Prepare(#[from] OwnUserError),
    #[error(transparent)]
    Refused(StepErrorAt),
}

/// Tries what the start of a session with this user id does with a directory that it may write, and mounts nothing. The
/// caller is root, has one thread, and reaps its children. The path contains no symlink.
pub fn try_owner_map(path: &Path, uid: u32) -> Result<(), OwnerMapError> {
    let name = c_path(path)
        .map_err(|error| OwnUserError::Owner { path: path.to_owned(), cause: error.into() })?;
    let owner_map = OwnerMaps { uid, made: Vec::new() }.of(path)?;
    mounts::try_map_owner(&name, owner_map.as_fd()).map_err(|failed| {
        let path = Some(path.to_owned());
        OwnerMapError::Refused(StepErrorAt { failed, path, own_uid: Some(uid) })
    })
}

/// The user id of a session and its user namespace.
#[derive(Debug)]
pub(crate) struct OwnUser {
    uid: u32,
    namespace: OwnedFd,
}

impl OwnUser {
    /// Makes the session's user namespace. The caller is root, has one thread, and reaps its children.
    pub fn make(uid: u32) -> Result<Self, OwnUserError> {
        Ok(Self { uid, namespace: make_namespace(INSIDE, uid)? })
    }

    pub fn uid(&self) -> u32 {
        self.uid
    }

    /// Gives the calling process, which has one thread, the session's user id and no other.
    pub fn enter(&self) -> Result<(), StepError> {
        let failed = StepError::at(ConfineStep::OwnUser);
        let nobody = std::ptr::null::<libc::gid_t>();
        let OwnerIds { user, group } = INSIDE;
        // SAFETY: no memory is passed. The calls are made without libc, which would do the same for other threads.
        unsafe {
            check(libc::syscall(libc::SYS_setgroups, 0, nobody)).map_err(&failed)?;
            let namespace = self.namespace.as_raw_fd();
            check(libc::syscall(libc::SYS_setns, namespace, libc::CLONE_NEWUSER))
                .map_err(&failed)?;
            check(libc::syscall(libc::SYS_setresgid, group, group, group)).map_err(&failed)?;
            check(libc::syscall(libc::SYS_setresuid, user, user, user)).map_err(&failed)
        }
    }
}

/// The user namespaces that map the owners of directories to a session's user id.
#[derive(Debug)]
pub(super) struct OwnerMaps {
    uid: u32,
    made: Vec<(OwnerIds, OwnedFd)>,
}

impl OwnerMaps {
    pub fn new(user: &OwnUser) -> Self {
        Self { uid: user.uid, made: Vec::new() }
    }

    /// The namespace for the owner of this path.
    pub fn of(&mut self, path: &Path) -> Result<OwnedFd, OwnUserError> {
        let unknown = |cause| OwnUserError::Owner { path: path.to_owned(), cause };
        let failed = |cause| OwnUserError::Namespace { uid: self.uid, cause };
        let name = c_path(path).map_err(|error| unknown(error.into()))?;
        let about = mounts::source(&name)
            .and_then(rustix::fs::fstat)
            .map_err(|errno| unknown(errno.into()))?;
        let owner = OwnerIds { user: about.st_uid, group: about.st_gid };
        if let Some((_, made)) = self.made.iter().find(|(ids, _)| *ids == owner) {
            return made.try_clone().map_err(failed);
        }
        let made = make_namespace(owner, self.uid)?;
        let copy = made.try_clone().map_err(failed)?;
        self.made.push((owner, made));
        Ok(copy)
    }
}

/// Makes a user namespace in which `inside` are the user and group id `outside`. No other id is mapped.
fn make_namespace(inside: OwnerIds, outside: u32) -> Result<OwnedFd, OwnUserError> {
    hold_and_map(inside, outside).map_err(|cause| OwnUserError::Namespace { uid: outside, cause })
}

fn hold_and_map(inside: OwnerIds, outside: u32) -> io::Result<OwnedFd> {
    let (ours, theirs) = UnixStream::pair()?;
    // SAFETY: the caller has one thread, and the child only makes system calls.
    let child = match unsafe { fork() }? {
        ForkResult::Child => hold_namespace(&ours, &theirs),
        ForkResult::Parent { child } => child,
    };
    drop(theirs);
    let mapped = map(child, &ours, inside, outside);
    // The child reads the end of the stream and exits.
    drop(ours);
    let _ = waitpid(child, None);
    mapped
}

/// In the child: makes the namespace and keeps it until the other end of the stream is closed.
fn hold_namespace(ours: &UnixStream, theirs: &UnixStream) -> ! {
    let mut byte = [0_u8; 1];
    // SAFETY: system calls on descriptors and memory of this process, which then exits.
    unsafe {
        libc::close(ours.as_raw_fd());
        if libc::unshare(libc::CLONE_NEWUSER) == 0 {
            libc::write(theirs.as_raw_fd(), byte.as_ptr().cast(), 1);
            libc::read(theirs.as_raw_fd(), byte.as_mut_ptr().cast(), 1);
        }
        libc::_exit(0)
    }
}

fn map(child: Pid, mut stream: &UnixStream, inside: OwnerIds, outside: u32) -> io::Result<OwnedFd> {
    if stream.read(&mut [0; 1])? == 0 {
        return Err(io::Error::other("the kernel refuses a new user namespace"));
    }
    let OwnerIds { user, group } = inside;
    // The group list stays empty: `OwnUser::enter` empties it, and nothing may fill it again.
    for (file, text) in [
        ("setgroups", "deny".to_owned()),
        ("uid_map", format!("{user} {outside} 1\n")),
        ("gid_map", format!("{group} {outside} 1\n")),
    ] {
        let mut file = File::options().write(true).open(format!("/proc/{child}/{file}"))?;
        file.write_all(text.as_bytes())?;
    }
    Ok(File::open(format!("/proc/{child}/ns/user"))?.into())
}
