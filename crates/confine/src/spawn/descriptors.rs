//! The descriptors with which a worker begins.

use std::os::fd::{AsRawFd, BorrowedFd};

use super::channel::Channel;
use crate::enter::{ConfineStep, StepError};

/// The descriptors of a worker.
pub(crate) struct WorkerDescriptors<'a> {
    /// `None` if descriptor 0 is already the worker's stdin.
    pub stdin: Option<BorrowedFd<'a>>,
    pub stdout: BorrowedFd<'a>,
    pub stderr: BorrowedFd<'a>,
    /// The protocol socket, which keeps its number.
    pub kept: BorrowedFd<'a>,
}

/// Moves the calling process into a new process group, installs these descriptors, and closes all others
/// except the channel.
pub(crate) fn install(
    descriptors: &WorkerDescriptors<'_>,
    channel: &Channel,
) -> Result<(), StepError> {
    let failed = StepError::at(ConfineStep::Descriptors);
    rustix::process::setpgid(None, None).map_err(&failed)?;
    if let Some(stdin) = descriptors.stdin {
        rustix::stdio::dup2_stdin(stdin).map_err(&failed)?;
    }
    rustix::stdio::dup2_stdout(descriptors.stdout).map_err(&failed)?;
    rustix::stdio::dup2_stderr(descriptors.stderr).map_err(&failed)?;
    close_others(&[descriptors.kept.as_raw_fd(), channel.as_raw_fd()]).map_err(&failed)
}

/// Closes every descriptor except 0, 1, 2 and these two.
fn close_others(kept: &[i32; 2]) -> Result<(), rustix::io::Errno> {
    let (low, high) = (kept[0].min(kept[1]), kept[0].max(kept[1]));
    let close = |from: i32, to: i32| {
        if from > to {
            return Ok(());
        }
        // SAFETY: no memory is passed; this process does not use the closed descriptors again.
        let closed = unsafe { libc::syscall(libc::SYS_close_range, from, to, 0) };
        if closed < 0 { Err(rustix::io::Errno::BADF) } else { Ok(()) }
    };
    close(3, low - 1)?;
    close(low + 1, high - 1)?;
    close(high + 1, i32::MAX)
}
