//! Canaries: forbidden things, tried by the confined process itself just before it becomes the
//! worker. Each is harmless should it succeed, and takes a few microseconds.

use std::ffi::{CStr, CString};
use std::mem::MaybeUninit;
use std::net::{Ipv4Addr, SocketAddrV4};

use rustix::fs::{Mode, OFlags, RawDir};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, connect, socket_with, socketpair};

use super::rights::{has_none, last_errno};
use super::{PrepareError, c_path};
use crate::plan::{Attempt, Plan};
use windlass_protocol::confinement::Isolation;

/// Canaries that one plan can have; a session's has a few, a thorough one more.
pub(crate) const CANARIES_MAX: usize = 256;

/// A bit for each.
pub(crate) const RESULT_BYTES: usize = CANARIES_MAX / 8;

/// An address that is nobody's (reserved for documents), tried for a route only.
const NOBODY: SocketAddrV4 = SocketAddrV4::new(Ipv4Addr::new(192, 0, 2, 1), 9);

/// The file that must not come to be.
const NAME: &str = ".windlass-canary";

#[derive(Debug)]
pub(crate) struct Canaries {
    attempts: Vec<Prepared>,
    /// The process that must not be reachable: the one that starts the worker. In a pid namespace of
    /// its own the worker has no number for it at all.
    parent: Option<i32>,
}

#[derive(Debug)]
struct Prepared {
    attempt: Attempt,
    path: CString,
    /// The worker must not start if this one succeeds.
    required: bool,
}

/// What became of the canaries: a bit for each place in the plan, set for one that got through.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Results {
    pub through: [u8; RESULT_BYTES],
    pub required_failed: bool,
}

impl Results {
    /// Whether the canary at a place in the plan got through.
    pub fn is_through(&self, place: usize) -> bool {
        self.through.get(place / 8).is_some_and(|bits| bits & (1 << (place % 8)) != 0)
    }
}

impl Canaries {
    pub fn new(plan: &Plan, keeper: i32) -> Result<Self, PrepareError> {
        let attempts = plan
            .canaries
            .iter()
            .take(CANARIES_MAX)
            .map(|canary| {
                let path = match &canary.attempt {
                    Attempt::Read { path } | Attempt::Open { path } | Attempt::Write { path } => {
                        c_path(path)?
                    }
                    Attempt::Create { directory } => c_path(&directory.join(NAME))?,
                    _ => CString::default(),
                };
                let required = plan.required.contains(&canary.control);
                Ok(Prepared { attempt: canary.attempt.clone(), path, required })
            })
            .collect::<Result<_, std::ffi::NulError>>()?;
        let parent = (plan.isolation != Isolation::Full).then_some(keeper);
        Ok(Self { attempts, parent })
    }

    /// Tries each of them.
    pub fn run(&self) -> Results {
        let mut results = Results { through: [0; RESULT_BYTES], required_failed: false };
        for (place, canary) in self.attempts.iter().enumerate() {
            if self.succeeds(canary) {
                results.through[place / 8] |= 1 << (place % 8);
                results.required_failed |= canary.required;
            }
        }
        results
    }

    /// Whether the forbidden thing could be done.
    fn succeeds(&self, canary: &Prepared) -> bool {
        match &canary.attempt {
            Attempt::Read { .. } => can_read(&canary.path),
            Attempt::Open { .. } => can_open(&canary.path, OFlags::RDONLY),
            Attempt::Write { .. } => can_open(&canary.path, OFlags::WRONLY),
            Attempt::Create { .. } => can_create(&canary.path),
            Attempt::Route => has_route(),
            Attempt::Netlink => {
                socket_with(AddressFamily::NETLINK, SocketType::RAW, SocketFlags::CLOEXEC, None)
                    .is_ok()
            }
            Attempt::UnixSocket => {
                // The kernel makes datagram sockets of a SOCK_RAW pair, and these can send to any path.
                let (unix, flags) = (AddressFamily::UNIX, SocketFlags::CLOEXEC);
                socket_with(unix, SocketType::STREAM, flags, None).is_ok()
                    || socketpair(unix, SocketType::RAW, flags, None).is_ok()
            }
            Attempt::SignalParent => self.can_signal_parent(),
            Attempt::Capability => !has_none(),
            Attempt::UserNamespace => call(libc::SYS_unshare, libc::CLONE_NEWUSER.into()),
            // All of these fail on their arguments too; only a refusal says EPERM.
            Attempt::Bpf => call(libc::SYS_bpf, -1),
            Attempt::Ptrace => call(libc::SYS_ptrace, -1),
            Attempt::Keyring => call(libc::SYS_keyctl, -1),
            Attempt::IoUring => call(libc::SYS_io_uring_setup, 0),
            Attempt::SharedMemory => sees_shared_memory(),
            Attempt::Call { number, .. } => call(*number, -1),
        }
    }

    fn can_signal_parent(&self) -> bool {
        match self.parent {
            Some(parent) => {
                // SAFETY: signal 0 only asks.
                let answer = unsafe { libc::kill(parent, 0) };
                answer == 0
            }
            None => rustix::process::getppid().is_some(),
        }
    }
}

fn can_open(path: &CStr, flags: OFlags) -> bool {
    let flags = flags | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY;
    rustix::fs::open(path, flags, Mode::empty()).is_ok()
}

/// Whether there is anything to read at the path: a file that opens, a directory with entries.
fn can_read(path: &CStr) -> bool {
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY;
    let Ok(file) = rustix::fs::open(path, flags, Mode::empty()) else { return false };
    let mut buffer = [MaybeUninit::uninit(); 1024];
    let mut entries = RawDir::new(&file, &mut buffer);
    while let Some(entry) = entries.next() {
        match entry {
            Ok(entry) if [c".", c".."].contains(&entry.file_name()) => {}
            // No directory: the file itself was opened.
            Ok(_) | Err(Errno::NOTDIR) => return true,
            Err(_) => return false,
        }
    }
    false
}

fn can_create(path: &CStr) -> bool {
    let flags = OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY | OFlags::CLOEXEC;
    let created = rustix::fs::open(path, flags, Mode::from(0o600));
    if created.is_ok() {
        let _ = rustix::fs::unlink(path);
    }
    // Left there by another that got through.
    matches!(created, Ok(_) | Err(Errno::EXIST))
}

/// Connecting a datagram socket sends nothing: it only looks for a way.
fn has_route() -> bool {
    socket_with(AddressFamily::INET, SocketType::DGRAM, SocketFlags::CLOEXEC, None)
        .and_then(|socket| connect(&socket, &NOBODY))
        .is_ok()
}

/// Whether segments of the machine's shared memory can be listed.
fn sees_shared_memory() -> bool {
    const SHM_INFO: libc::c_long = 14;
    let mut info = [0u64; 32];
    // SAFETY: the buffer is larger than the structure that the kernel fills in.
    let highest = unsafe { libc::syscall(libc::SYS_shmctl, 0, SHM_INFO, info.as_mut_ptr()) };
    // The first word is the number of segments; a namespace of its own has none.
    highest >= 0 && info[0].to_ne_bytes()[..4] != [0; 4]
}

/// Whether a call is let through to the kernel.
fn call(number: libc::c_long, argument: libc::c_long) -> bool {
    // SAFETY: each call gets an argument that it refuses, or that passes no memory.
    let answer = unsafe { libc::syscall(number, argument, 0, 0, 0, 0) };
    !(answer < 0 && matches!(last_errno(), Errno::PERM | Errno::NOSYS))
}
