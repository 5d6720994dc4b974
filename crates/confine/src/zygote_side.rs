//! The zygote's side for a zygote that is written in Rust: the functions of the shared object (`ffi`) with Rust types.
//! An error is the number that the C function returns.

use std::ffi::CStr;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

use crate::{ffi, ffi_pages};

/// The process in which [`fork_worker`] returns.
#[derive(Debug, PartialEq, Eq)]
pub enum ForkedSide {
    Worker,
    /// The zygote, which waits for this child. The child has exited already, or exits at once.
    Zygote {
        child: i32,
    },
}

/// The descriptors of a worker, in the order of the request.
#[derive(Debug)]
pub struct WorkerStreams<'a> {
    /// The protocol socket.
    pub kept: BorrowedFd<'a>,
    pub stdout: BorrowedFd<'a>,
    pub stderr: BorrowedFd<'a>,
}

/// Compiles the system call filters, so that the forked workers need not do it.
pub fn warm() {
    ffi::windlass_warm();
}

/// Fills the gaps of the heap, so that the forked workers write to fewer pages.
pub fn fill_gaps() {
    ffi::windlass_fill_gaps();
}

/// Prefaults the pages that a first turn writes to, if they were recorded.
pub fn prefault() {
    ffi_pages::windlass_have_pages();
}

/// Enters namespaces. `of` is the pidfd of a process, or a namespace.
pub fn join(of: BorrowedFd<'_>, spaces: i32) -> Result<(), i32> {
    // SAFETY: the descriptor is open.
    checked(unsafe { ffi::windlass_join(of.as_raw_fd(), spaces) })
}

/// Number of threads of this process.
pub fn thread_count() -> io::Result<usize> {
    Ok(std::fs::read_dir("/proc/self/task")?.count())
}

/// Forks a worker into these namespaces of the process with the pidfd `of`, and sends its pid on the channel. Fails
/// if this process has more than one thread. The worker holds no lock of another thread, so it may run any code.
pub fn fork_worker(
    of: BorrowedFd<'_>,
    spaces: i32,
    channel: BorrowedFd<'_>,
) -> io::Result<ForkedSide> {
    one_thread()?;
    let (of_fd, channel_fd) = (of.as_raw_fd(), channel.as_raw_fd());
    // SAFETY: this process has one thread, and both descriptors are open.
    match unsafe { ffi::windlass_fork_worker(of_fd, spaces, channel_fd) } {
        0 => Ok(ForkedSide::Worker),
        child @ 1.. => Ok(ForkedSide::Zygote { child }),
        _ => fork_twice(of, spaces, channel_fd),
    }
}

/// The fallback: forks through an ordinary copy of this process.
fn fork_twice(of: BorrowedFd<'_>, spaces: i32, channel: i32) -> io::Result<ForkedSide> {
    // SAFETY: this process has one thread; the intermediate copy only makes system calls.
    unsafe {
        match libc::fork() {
            0 => {}
            child @ 1.. => return Ok(ForkedSide::Zygote { child }),
            _ => return Err(io::Error::last_os_error()),
        }
        if join(of, spaces).is_err() {
            libc::_exit(1);
        }
        match libc::fork() {
            0 => Ok(ForkedSide::Worker),
            worker => {
                ffi::windlass_say_worker(channel, worker);
                libc::_exit(0)
            }
        }
    }
}

/// Forks a child that exits at once, so that libraries stop their threads as they do at a fork. Fails if threads are
/// left.
pub fn stop_threads() -> io::Result<()> {
    // SAFETY: the child only exits.
    unsafe {
        let child = libc::fork();
        if child == 0 {
            libc::_exit(0);
        }
        wait_for(child);
    }
    one_thread()
}

/// Waits for a child that [`fork_worker`] has named.
pub fn wait_for(child: i32) {
    // SAFETY: no memory is passed.
    unsafe { libc::waitpid(child, std::ptr::null_mut(), 0) };
}

/// Ends a forked worker that has no session. Runs no clean-up, because that is the zygote's.
pub fn leave(status: i32) -> ! {
    // SAFETY: ends the process.
    unsafe { libc::_exit(status) }
}

fn one_thread() -> io::Result<()> {
    match thread_count()? {
        1 => Ok(()),
        count => {
            Err(io::Error::other(format!("{count} threads run, and a fork would lose all but one")))
        }
    }
}

/// Builds the view of a plan (JSON) in advance. After an error, the process must exit.
pub fn build_view(plan: &[u8], channel: BorrowedFd<'_>) -> Result<(), i32> {
    // SAFETY: the bytes are readable, and the descriptor is open.
    checked(unsafe { ffi::windlass_build_view(plan.as_ptr(), plan.len(), channel.as_raw_fd()) })
}

/// Confines this process by a plan (JSON), reports to the keeper, and enters the directory. All descriptors but the
/// standard streams and `kept` are closed. After an error, the process must exit.
pub fn become_worker(
    plan: &[u8],
    cwd: &CStr,
    channel: BorrowedFd<'_>,
    streams: &WorkerStreams<'_>,
) -> Result<(), i32> {
    let [kept, stdout, stderr] =
        [streams.kept, streams.stdout, streams.stderr].map(|fd| fd.as_raw_fd());
    // SAFETY: the bytes and the string are readable, and the descriptors are open.
    checked(unsafe {
        ffi::windlass_become_worker(
            plan.as_ptr(),
            plan.len(),
            cwd.as_ptr(),
            channel.as_raw_fd(),
            kept,
            stdout,
            stderr,
        )
    })
}

fn checked(number: i32) -> Result<(), i32> {
    if number == 0 { Ok(()) } else { Err(number) }
}
