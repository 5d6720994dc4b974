//! Takes rights away from the calling process: namespaces, user mapping, capabilities and filters.

use std::ffi::CStr;

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

use super::{ConfineStep, StepError};
use crate::plan::NetworkPlan;
use crate::seccomp::FilterProgram;

/// The highest capability number that a kernel can have.
const CAPABILITIES_MAX: libc::c_ulong = 63;

/// The host name inside a session. It resolves without a network.
const HOST_NAME: &[u8] = b"localhost";

/// Makes namespaces for the calling process, and those of `more`.
pub(super) fn make_namespaces(network: NetworkPlan, more: libc::c_int) -> Result<(), StepError> {
    let mut spaces = more
        | libc::CLONE_NEWNS
        | libc::CLONE_NEWPID
        | libc::CLONE_NEWIPC
        | libc::CLONE_NEWUTS
        | libc::CLONE_NEWCGROUP;
    if network != NetworkPlan::Machine {
        spaces |= libc::CLONE_NEWNET;
    }
    // SAFETY: no memory is passed; the caller has one thread.
    check(unsafe { libc::unshare(spaces) }).map_err(StepError::at(ConfineStep::Unshare))
}

/// Maps the process's user and group into its new user namespace, and no other ids.
pub(super) fn map_identity(user: &str, group: &str) -> Result<(), StepError> {
    let failed = StepError::at(ConfineStep::MapUser);
    write_file(c"/proc/self/setgroups", b"deny").map_err(&failed)?;
    write_file(c"/proc/self/uid_map", user.as_bytes()).map_err(&failed)?;
    write_file(c"/proc/self/gid_map", group.as_bytes()).map_err(&failed)
}

/// Sets the host name. A failure is ignored: only the display depends on the name.
pub(super) fn set_host_name() {
    // SAFETY: the pointer and the length are those of a constant.
    unsafe { libc::sethostname(HOST_NAME.as_ptr().cast(), HOST_NAME.len()) };
}

/// Drops all capabilities and makes sure that running another program gives none back.
pub(super) fn give_up() -> Result<(), StepError> {
    let failed = StepError::at(ConfineStep::Rights);
    // SAFETY: no memory is passed in any of these calls.
    unsafe {
        check(libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)).map_err(&failed)?;
        for capability in 0..=CAPABILITIES_MAX {
            // Fails for numbers that the kernel does not know, and in a process without CAP_SETPCAP. Both are
            // harmless; `drop_capabilities` below reports real errors.
            libc::prctl(libc::PR_CAPBSET_DROP, capability, 0, 0, 0);
        }
        libc::prctl(libc::PR_SET_SECUREBITS, SECURE_BITS, 0, 0, 0);
    }
    drop_capabilities()
}

/// Drops all capabilities. A user other than root gains none by running another program.
pub(super) fn drop_capabilities() -> Result<(), StepError> {
    let header = CapabilityHeader { version: CAPABILITY_VERSION, pid: 0 };
    let nothing = [CapabilitySet::default(); 2];
    // SAFETY: the first call takes no pointer. In the second, both pointers are to live values of the
    // kernel's layout.
    let set = unsafe {
        libc::prctl(libc::PR_CAP_AMBIENT, libc::PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0);
        libc::syscall(libc::SYS_capset, &raw const header, nothing.as_ptr())
    };
    check(set).map_err(StepError::at(ConfineStep::Rights))
}

/// Whether the calling process has no capability and cannot gain one.
pub(super) fn has_none() -> bool {
    let mut header = CapabilityHeader { version: CAPABILITY_VERSION, pid: 0 };
    let mut sets = [CapabilitySet { effective: 1, permitted: 1, inheritable: 1 }; 2];
    // SAFETY: both pointers are to live values of the kernel's layout.
    let got = unsafe { libc::syscall(libc::SYS_capget, &raw mut header, sets.as_mut_ptr()) };
    // SAFETY: no memory is passed.
    let no_new = unsafe { libc::prctl(libc::PR_GET_NO_NEW_PRIVS, 0, 0, 0, 0) };
    got == 0 && sets == [CapabilitySet::default(); 2] && no_new == 1
}

const CAPABILITY_VERSION: u32 = 0x2008_0522;

/// Root has no special capabilities, changing the user id neither grants nor keeps capabilities, and no
/// ambient capability can be raised. All of these bits are locked.
const SECURE_BITS: libc::c_ulong = 0b1110_1111;

#[repr(C)]
struct CapabilityHeader {
    version: u32,
    pid: i32,
}

#[repr(C)]
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct CapabilitySet {
    effective: u32,
    permitted: u32,
    inheritable: u32,
}

/// Installs one filter. `SPEC_ALLOW` keeps speculation as it was, so that the process does not get slower.
pub(super) fn install(filter: &FilterProgram) -> Result<(), StepError> {
    const SET_MODE_FILTER: libc::c_ulong = 1;
    const SPEC_ALLOW: libc::c_ulong = 1 << 2;
    let program = libc::sock_fprog {
        len: u16::try_from(filter.len()).unwrap_or(u16::MAX),
        filter: filter.as_ptr().cast_mut().cast(),
    };
    // SAFETY: the program points to a live slice of the kernel's layout, which the kernel only reads.
    let set = unsafe {
        libc::syscall(libc::SYS_seccomp, SET_MODE_FILTER, SPEC_ALLOW, &raw const program)
    };
    check(set).map_err(StepError::at(ConfineStep::Seccomp))
}

pub(super) fn write_file(path: &CStr, bytes: &[u8]) -> Result<(), Errno> {
    let file = rustix::fs::open(path, OFlags::WRONLY | OFlags::CLOEXEC, Mode::empty())?;
    rustix::io::write(&file, bytes)?;
    Ok(())
}

/// The result of a system call: success, or errno.
pub(super) fn check(answer: impl Into<i64>) -> Result<(), Errno> {
    if answer.into() < 0 { Err(last_errno()) } else { Ok(()) }
}

pub(super) fn last_errno() -> Errno {
    // Reading errno allocates nothing.
    Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::INVAL)
}
