//! Tells a worker when a process of its session is about to read descriptor 0: a system call filter with a
//! listener. The filter refuses nothing. It is added to the filters that the process has already.
//!
//! A process installs the filter on itself with [`install`], hands the listener to the worker, and then runs
//! a program. All its descendants have the filter. The worker must answer each attempt, because the process
//! waits for it. If the listener is closed, reads of descriptor 0 fail with ENOSYS.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use libc::{BPF_ABS, BPF_JEQ, BPF_JMP, BPF_K, BPF_LD, BPF_RET, BPF_W, sock_filter};

#[cfg(target_arch = "x86_64")]
const NATIVE: u32 = 0xc000_003e;
#[cfg(target_arch = "aarch64")]
const NATIVE: u32 = 0xc000_00b7;

/// Offsets in the kernel's `seccomp_data`. The low half of an argument comes first on both architectures.
const CALL_AT: u32 = 0;
const ARCHITECTURE_AT: u32 = 4;
const FIRST_ARGUMENT_AT: u32 = 16;

const SET_MODE_FILTER: libc::c_ulong = 1;
const SPEC_ALLOW: libc::c_ulong = 1 << 2;
const NEW_LISTENER: libc::c_ulong = 1 << 3;

/// Requests of the listener, as `_IOWR('!', ...)` and `_IOW('!', 4, u64)` give them.
const RECEIVE: u64 = 0xc050_2100;
const SEND: u64 = 0xc018_2101;
const SET_FLAGS: u64 = 0x4008_2104;
/// Wake the reader on the processor of the worker, which goes to sleep anyway.
const SYNC_WAKE_UP: u64 = 1;

/// Adds the filter to the calling thread and returns its listener. Fails with EACCES for a process that may
/// gain privileges by running a program, unless it has CAP_SYS_ADMIN: this function does not change that.
pub fn install() -> io::Result<OwnedFd> {
    let program = program();
    let program = libc::sock_fprog {
        len: u16::try_from(program.len()).unwrap_or(u16::MAX),
        filter: program.as_ptr().cast_mut(),
    };
    // SAFETY: the program points to a live array of the kernel's layout, which the kernel only reads.
    let listener = unsafe {
        libc::syscall(
            libc::SYS_seccomp,
            SET_MODE_FILTER,
            SPEC_ALLOW | NEW_LISTENER,
            &raw const program,
        )
    };
    let listener = i32::try_from(listener).unwrap_or(-1);
    if listener < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the call has just made this descriptor, and nothing else owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(listener) })
}

/// `read` and `readv` of descriptor 0 go to the listener.
fn program() -> [sock_filter; 9] {
    let load = |at| sock_filter { code: (BPF_LD | BPF_W | BPF_ABS) as u16, jt: 0, jf: 0, k: at };
    let equal = |k, jt, jf| sock_filter { code: (BPF_JMP | BPF_JEQ | BPF_K) as u16, jt, jf, k };
    let answer = |k| sock_filter { code: (BPF_RET | BPF_K) as u16, jt: 0, jf: 0, k };
    [
        load(ARCHITECTURE_AT),
        equal(NATIVE, 0, 6),
        load(CALL_AT),
        equal(libc::SYS_read as u32, 1, 0),
        equal(libc::SYS_readv as u32, 0, 3),
        load(FIRST_ARGUMENT_AT),
        equal(0, 0, 1),
        answer(libc::SECCOMP_RET_USER_NOTIF),
        answer(libc::SECCOMP_RET_ALLOW),
    ]
}

/// The worker's end: the attempts to read descriptor 0.
#[derive(Debug)]
pub struct ReadWatch {
    listener: OwnedFd,
}

/// A process that waits until the worker lets it read.
#[derive(Debug)]
pub struct ReadAttempt {
    /// The thread that reads, as this process numbers it.
    pub thread: u32,
    id: u64,
}

impl ReadWatch {
    pub fn of(listener: OwnedFd) -> Self {
        let flags = SYNC_WAKE_UP;
        // The request takes its flags by value. Kernels before 6.6 refuse it, and are only slower.
        // SAFETY: the request has no effect on memory.
        unsafe { libc::ioctl(listener.as_raw_fd(), SET_FLAGS as libc::Ioctl, flags) };
        Self { listener }
    }

    /// The next attempt. Call this function only if the listener is readable: it can block otherwise. `None`
    /// if the reader is gone.
    pub fn take(&self) -> io::Result<Option<ReadAttempt>> {
        // SAFETY: all fields are numbers, and the kernel wants them to be zero.
        let mut attempt: libc::seccomp_notif = unsafe { std::mem::zeroed() };
        // SAFETY: the request writes one `seccomp_notif`, which is the size that its number carries.
        let taken = unsafe {
            libc::ioctl(self.listener.as_raw_fd(), RECEIVE as libc::Ioctl, &raw mut attempt)
        };
        if taken == 0 {
            return Ok(Some(ReadAttempt { thread: attempt.pid, id: attempt.id }));
        }
        match io::Error::last_os_error() {
            gone if gone.raw_os_error() == Some(libc::ENOENT) => Ok(None),
            again if again.kind() == io::ErrorKind::Interrupted => Ok(None),
            other => Err(other),
        }
    }

    /// Lets the process perform its read.
    pub fn resume(&self, attempt: &ReadAttempt) {
        let mut answer = libc::seccomp_notif_resp {
            id: attempt.id,
            val: 0,
            error: 0,
            flags: libc::SECCOMP_USER_NOTIF_FLAG_CONTINUE as u32,
        };
        // SAFETY: the request reads one `seccomp_notif_resp`. It fails if the reader is gone, which needs no
        // answer.
        unsafe { libc::ioctl(self.listener.as_raw_fd(), SEND as libc::Ioctl, &raw mut answer) };
    }
}

impl AsFd for ReadWatch {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.listener.as_fd()
    }
}
