//! The descriptors with which a worker begins.

use std::os::fd::{AsRawFd, BorrowedFd};

use super::channel::Channel;
use crate::enter::{Failed, Step};

/// The descriptors of a worker.
pub(crate) struct Places<'a> {
    /// Absent where it is in its place already.
    pub stdin: Option<BorrowedFd<'a>>,
    pub stdout: BorrowedFd<'a>,
    pub stderr: BorrowedFd<'a>,
    /// The protocol socket, which keeps its number.
    pub kept: BorrowedFd<'a>,
}

/// Gives this process a group of its own, and no descriptor but these and the channel.
pub(crate) fn take(places: &Places<'_>, channel: &Channel) -> Result<(), Failed> {
    let failed = Failed::at(Step::Descriptors);
    rustix::process::setpgid(None, None).map_err(&failed)?;
    if let Some(stdin) = places.stdin {
        rustix::stdio::dup2_stdin(stdin).map_err(&failed)?;
    }
    rustix::stdio::dup2_stdout(places.stdout).map_err(&failed)?;
    rustix::stdio::dup2_stderr(places.stderr).map_err(&failed)?;
    close_others(&[places.kept.as_raw_fd(), channel.as_raw_fd()]).map_err(&failed)
}

/// Closes every descriptor but the first three and these.
fn close_others(kept: &[i32; 2]) -> Result<(), rustix::io::Errno> {
    let (low, high) = (kept[0].min(kept[1]), kept[0].max(kept[1]));
    let close = |from: i32, to: i32| {
        if from > to {
            return Ok(());
        }
        // SAFETY: no memory is passed; what is closed is not used again in this process.
        let closed = unsafe { libc::syscall(libc::SYS_close_range, from, to, 0) };
        if closed < 0 { Err(rustix::io::Errno::BADF) } else { Ok(()) }
    };
    close(3, low - 1)?;
    close(low + 1, high - 1)?;
    close(high + 1, i32::MAX)
}
