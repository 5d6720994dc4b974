//! Moves a started process into its cgroups. A separate process writes the move, because the kernel
//! synchronizes all processors for it: only that process waits, and not the keeper.

use std::fs::File;
use std::io;
use std::path::PathBuf;

use nix::unistd::{ForkResult, Pid, fork};

/// Bytes for the digits of a process id.
const PID_BYTES: usize = 12;

/// Opens the `cgroup.procs` file of each cgroup.
pub fn open(cgroups: &[PathBuf]) -> io::Result<Vec<File>> {
    cgroups.iter().map(|dir| File::options().write(true).open(dir.join("cgroup.procs"))).collect()
}

/// Forks a process that moves `worker` into the cgroups. The caller has one thread and reaps its children.
pub fn start(groups: &[File], worker: Pid) -> io::Result<Pid> {
    // SAFETY: the caller has one thread, and the child makes system calls only.
    match unsafe { fork() } {
        Ok(ForkResult::Child) => join(groups, &[worker]),
        Ok(ForkResult::Parent { child }) => Ok(child),
        Err(errno) => Err(errno.into()),
    }
}

/// Moves the processes and exits: with 0, or with 1 if the kernel refused a move.
pub fn join(groups: &[File], pids: &[Pid]) -> ! {
    let mut code = 0;
    for pid in pids {
        let mut space = [0; PID_BYTES];
        let number = digits(pid.as_raw(), &mut space);
        for procs in groups {
            match rustix::io::write(procs, number) {
                // A process that has ended needs no cgroup.
                Ok(_) | Err(rustix::io::Errno::SRCH) => {}
                Err(_) => code = 1,
            }
        }
    }
    // SAFETY: ends the process without running code of the caller.
    unsafe { libc::_exit(code) }
}

/// Formats a number without allocating.
fn digits(number: i32, space: &mut [u8; PID_BYTES]) -> &[u8] {
    let mut left = number.unsigned_abs();
    let mut at = PID_BYTES;
    loop {
        at -= 1;
        space[at] = b'0' + u8::try_from(left % 10).unwrap_or(0);
        left /= 10;
        if left == 0 {
            return &space[at..];
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_written_as_they_are_read() {
        for number in [1, 7, 10, 4_194_304, i32::MAX] {
            assert_eq!(digits(number, &mut [0; PID_BYTES]), number.to_string().as_bytes());
        }
    }
}
