//! Landlock: three system calls. Rules are made inside the view, for mounts that exist only there, and
//! without allocating memory. Libraries for Landlock allocate, so this module uses none.

use std::ffi::CString;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};

use rustix::fs::{FileType, Mode, OFlags};
use rustix::io::Errno;

use super::rights::{check, last_errno};
use super::{ConfineStep, PrepareError, StepError, c_path};
use crate::plan::{Ruleset, rights};

/// A ruleset prepared in memory.
#[derive(Debug)]
pub(crate) struct PreparedRuleset {
    files: u64,
    network: u64,
    scopes: u64,
    rules: Vec<(CString, u64)>,
}

/// The kernel's `struct landlock_ruleset_attr`.
#[repr(C)]
struct RulesetAttr {
    files: u64,
    network: u64,
    scopes: u64,
}

/// The kernel's `struct landlock_path_beneath_attr`.
#[repr(C, packed)]
struct PathBeneath {
    access: u64,
    parent: i32,
}

const RULE_PATH_BENEATH: libc::c_int = 1;

/// The kernel's Landlock version; 0 if it has no Landlock.
pub(crate) fn abi() -> u32 {
    const ASK_VERSION: libc::c_uint = 1;
    let nothing = std::ptr::null::<libc::c_void>();
    // SAFETY: asking for the version takes no memory.
    let version =
        unsafe { libc::syscall(libc::SYS_landlock_create_ruleset, nothing, 0usize, ASK_VERSION) };
    u32::try_from(version).unwrap_or(0)
}

/// Whether threads of one process can signal each other when their Landlock layers differ. The first kernels
/// with signal scopes refuse it (Landlock erratum 2).
pub(crate) fn threads_may_signal() -> bool {
    const ASK_ERRATA: libc::c_uint = 1 << 1;
    const SCOPED_SIGNALS: libc::c_long = 1 << 1;
    let nothing = std::ptr::null::<libc::c_void>();
    // SAFETY: asking for the errata takes no memory.
    let errata =
        unsafe { libc::syscall(libc::SYS_landlock_create_ruleset, nothing, 0usize, ASK_ERRATA) };
    errata > 0 && errata & SCOPED_SIGNALS != 0
}

/// Restricts the calling thread by a ruleset. It is one system call, so a signal handler can use it.
pub(crate) fn restrict(ruleset: RawFd) -> Result<(), Errno> {
    // SAFETY: no memory is passed.
    check(unsafe { libc::syscall(libc::SYS_landlock_restrict_self, ruleset, 0) })
}

impl PreparedRuleset {
    pub fn new(ruleset: &Ruleset) -> Result<Self, PrepareError> {
        let rules = ruleset
            .rules
            .iter()
            .map(|rule| Ok((c_path(&rule.path)?, rule.access)))
            .collect::<Result<_, std::ffi::NulError>>()?;
        let Ruleset { files, network, scopes, .. } = *ruleset;
        Ok(Self { files, network, scopes, rules })
    }

    /// Restricts the calling thread, which has set `no_new_privs`.
    pub fn enforce(&self) -> Result<(), StepError> {
        let ruleset = self.ruleset()?;
        restrict(ruleset.as_raw_fd()).map_err(StepError::at(ConfineStep::Landlock))
    }

    /// Makes a ruleset in the kernel. Any number of threads can restrict themselves by it.
    pub fn ruleset(&self) -> Result<OwnedFd, StepError> {
        let failed = StepError::at(ConfineStep::Landlock);
        let ruleset = self.create().map_err(&failed)?;
        for (index, (path, access)) in self.rules.iter().enumerate() {
            match add(&ruleset, path, access & self.files) {
                Ok(()) => {}
                // A path that is missing or cannot be reached needs no rule: without a rule it is closed.
                Err(errno) if is_out_of_reach(errno) => {}
                Err(errno) => {
                    let index = u16::try_from(index).unwrap_or(u16::MAX);
                    return Err(StepError { index, ..failed(errno) });
                }
            }
        }
        Ok(ruleset)
    }

    fn create(&self) -> Result<OwnedFd, Errno> {
        let attributes =
            RulesetAttr { files: self.files, network: self.network, scopes: self.scopes };
        // Older kernels have a shorter structure, and refuse a longer one unless the rest is zero.
        let size = match (self.scopes, self.network) {
            (0, 0) => 8,
            (0, _) => 16,
            _ => 24usize,
        };
        // SAFETY: the pointer is to a live value at least `size` long.
        let fd = unsafe {
            libc::syscall(libc::SYS_landlock_create_ruleset, &raw const attributes, size, 0)
        };
        let Ok(fd) = i32::try_from(fd) else { return Err(Errno::INVAL) };
        if fd < 0 {
            return Err(last_errno());
        }
        // SAFETY: the kernel has just returned this descriptor.
        Ok(unsafe { OwnedFd::from_raw_fd(fd) })
    }
}

/// Errors that another user can cause at a path: the path was removed or made inaccessible, or the server of
/// a network file system is gone.
fn is_out_of_reach(errno: Errno) -> bool {
    matches!(
        errno,
        Errno::NOENT
            | Errno::ACCESS
            | Errno::NOTDIR
            | Errno::LOOP
            | Errno::NOTCONN
            | Errno::STALE
            | Errno::IO
    )
}

/// Opens a path component by component. A symlink on the way gives an error, because it is not a directory.
fn open_by_names(path: &CString) -> Result<OwnedFd, Errno> {
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    // `/proc/self` is a symlink that the kernel provides.
    if path.as_bytes().starts_with(b"/proc/") {
        return rustix::fs::open(path.as_c_str(), flags, Mode::empty());
    }
    let mut reached = rustix::fs::open(c"/", flags, Mode::empty())?;
    for name in path.as_bytes().split(|byte| *byte == b'/').filter(|name| !name.is_empty()) {
        reached = rustix::fs::openat(&reached, name, flags, Mode::empty())?;
    }
    Ok(reached)
}

fn add(ruleset: &OwnedFd, path: &CString, access: u64) -> Result<(), Errno> {
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let parent = match super::mounts::source(path) {
        // A session's filter refuses `openat2`, and a session that forks a twin adds its layer under that
        // filter.
        Err(Errno::NOSYS) => open_by_names(path)?,
        // `/proc/self` is a symlink that the kernel provides.
        Err(Errno::LOOP) if path.as_bytes().starts_with(b"/proc/") => {
            rustix::fs::open(path.as_c_str(), flags, Mode::empty())?
        }
        // A symlink needs no rule: its target has a rule of its own, or none. A symlink in the middle of the
        // path was put there after the plan was made.
        Err(Errno::LOOP) => return Ok(()),
        other => other?,
    };
    let stat = rustix::fs::fstat(&parent)?;
    let access = match FileType::from_raw_mode(stat.st_mode) {
        FileType::Directory => access,
        FileType::Symlink => 0,
        _ => access & rights::OF_FILE,
    };
    if access == 0 {
        return Ok(());
    }
    let rule = PathBeneath { access, parent: parent.as_raw_fd() };
    // SAFETY: the pointer is to a live value of the kernel's layout.
    let answer = unsafe {
        libc::syscall(
            libc::SYS_landlock_add_rule,
            ruleset.as_raw_fd(),
            RULE_PATH_BENEATH,
            &raw const rule,
            0,
        )
    };
    check(answer)
}
