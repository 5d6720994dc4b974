//! Canaries: forbidden operations that the confined process tries just before it becomes the worker. Each
//! canary is harmless if it succeeds, and takes a few microseconds.

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

/// Maximum number of canaries of one plan.
pub(crate) const CANARIES_MAX: usize = 256;

/// One bit for each canary.
pub(crate) const RESULT_BYTES: usize = CANARIES_MAX / 8;

/// An address that is reserved for documentation. The canary only looks for a route to it.
const UNUSED_ADDRESS: SocketAddrV4 = SocketAddrV4::new(Ipv4Addr::new(192, 0, 2, 1), 9);

/// The name of the file that a canary tries to create.
const FILE_NAME: &str = ".windlass-canary";

#[derive(Debug)]
pub(crate) struct Canaries {
    attempts: Vec<PreparedCanary>,
    /// The pid of the process that starts the worker: the worker must not be able to signal it. `None` at
    /// level `full`, where the parent is outside the worker's pid namespace and has no pid in it.
    parent: Option<i32>,
}

#[derive(Debug)]
struct PreparedCanary {
    attempt: Attempt,
    path: CString,
    /// The worker must not start if this canary succeeds.
    required: bool,
}

/// The results of the canaries.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct CanaryResults {
    /// One bit for each canary of the plan, set if the canary succeeded.
    pub through: [u8; RESULT_BYTES],
    /// A canary of a required control succeeded.
    pub required_failed: bool,
}

impl CanaryResults {
    /// Whether the canary at an index of the plan succeeded.
    pub fn is_through(&self, index: usize) -> bool {
        self.through.get(index / 8).is_some_and(|bits| bits & (1 << (index % 8)) != 0)
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
                    Attempt::Create { directory } => c_path(&directory.join(FILE_NAME))?,
                    _ => CString::default(),
                };
                let required = plan.required.contains(&canary.control);
                Ok(PreparedCanary { attempt: canary.attempt.clone(), path, required })
            })
            .collect::<Result<_, std::ffi::NulError>>()?;
        let parent = (plan.isolation != Isolation::Full).then_some(keeper);
        Ok(Self { attempts, parent })
    }

    /// Tries each canary.
    pub fn run(&self) -> CanaryResults {
        let mut results = CanaryResults { through: [0; RESULT_BYTES], required_failed: false };
        for (index, canary) in self.attempts.iter().enumerate() {
            if self.succeeds(canary) {
                results.through[index / 8] |= 1 << (index % 8);
                results.required_failed |= canary.required;
            }
        }
        results
    }

    /// Whether the forbidden operation succeeds.
    fn succeeds(&self, canary: &PreparedCanary) -> bool {
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
                // The kernel turns a SOCK_RAW pair into datagram sockets, which can send to any path.
                let (unix, flags) = (AddressFamily::UNIX, SocketFlags::CLOEXEC);
                socket_with(unix, SocketType::STREAM, flags, None).is_ok()
                    || socketpair(unix, SocketType::RAW, flags, None).is_ok()
            }
            Attempt::SignalParent => self.can_signal_parent(),
            Attempt::Capability => !has_none(),
            Attempt::UserNamespace => call(libc::SYS_unshare, libc::CLONE_NEWUSER.into()),
            Attempt::OtherUser { uid } => !is_only_user(*uid),
            // The arguments make these calls fail in any case; only a refusal by the filter gives EPERM.
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
                // SAFETY: signal 0 only checks whether a signal could be sent.
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

/// Whether a file at the path can be opened, or a directory there has entries.
fn can_read(path: &CStr) -> bool {
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY;
    let Ok(file) = rustix::fs::open(path, flags, Mode::empty()) else { return false };
    let mut buffer = [MaybeUninit::uninit(); 1024];
    let mut entries = RawDir::new(&file, &mut buffer);
    while let Some(entry) = entries.next() {
        match entry {
            Ok(entry) if [c".", c".."].contains(&entry.file_name()) => {}
            // Not a directory: the file was opened.
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
    // EEXIST: an earlier canary succeeded and left its file there.
    matches!(created, Ok(_) | Err(Errno::EXIST))
}

/// Whether this is the only user id outside of the user namespace that the process can have. A map that cannot be read
/// counts as one with other ids.
fn is_only_user(uid: u32) -> bool {
    let mut text = [0_u8; 128];
    let length =
        rustix::fs::open(c"/proc/self/uid_map", OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())
            .and_then(|file| rustix::io::read(&file, &mut text));
    let Ok(length) = length else { return false };
    maps_only(&text[..length], uid)
}

/// Whether a user namespace's map has one id, and it is this one outside.
fn maps_only(map: &[u8], uid: u32) -> bool {
    let words = map.split(u8::is_ascii_whitespace).filter(|word| !word.is_empty());
    let mut numbers = words.map(|word| std::str::from_utf8(word).ok()?.parse::<u32>().ok());
    let _inside = numbers.next();
    (numbers.next(), numbers.next(), numbers.next()) == (Some(Some(uid)), Some(Some(1)), None)
}

/// Connecting a datagram socket sends no packet: the kernel only looks for a route.
fn has_route() -> bool {
    socket_with(AddressFamily::INET, SocketType::DGRAM, SocketFlags::CLOEXEC, None)
        .and_then(|socket| connect(&socket, &UNUSED_ADDRESS))
        .is_ok()
}

/// Whether the process can list shared memory segments of the machine.
fn sees_shared_memory() -> bool {
    const SHM_INFO: libc::c_long = 14;
    let mut info = [0u64; 32];
    // SAFETY: the buffer is larger than the structure that the kernel fills in.
    let highest = unsafe { libc::syscall(libc::SYS_shmctl, 0, SHM_INFO, info.as_mut_ptr()) };
    // The first word is the number of segments; a new ipc namespace has none.
    highest >= 0 && info[0].to_ne_bytes()[..4] != [0; 4]
}

/// Whether the filter lets a system call pass.
fn call(number: libc::c_long, argument: libc::c_long) -> bool {
    // SAFETY: each call gets an argument that makes it fail, or an argument that is no pointer.
    let answer = unsafe { libc::syscall(number, argument, 0, 0, 0, 0) };
    !(answer < 0 && matches!(last_errno(), Errno::PERM | Errno::NOSYS))
}

#[cfg(test)]
mod tests {
    use super::maps_only;

    #[test]
    fn a_map_of_another_user_or_of_several_does_not_count() {
        for (map, is) in [
            ("         0     200017          1\n", true),
            ("         0          0          1\n", false),
            ("         0     200017          2\n", false),
            ("         0     200017          1\n         1     200018          1\n", false),
            ("         0          0 4294967295\n", false),
            ("", false),
        ] {
            assert_eq!(maps_only(map.as_bytes(), 200_017), is, "{map}");
        }
    }
}
