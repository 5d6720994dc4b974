//! Takes ownership of descriptors that the parent process has passed on by number.

use std::io;
use std::os::fd::{FromRawFd, OwnedFd, RawFd};
use std::sync::Mutex;

use rustix::io::{FdFlags, fcntl_setfd};

/// Numbers that were taken. Each number has one owner for the life of the process.
static TAKEN: Mutex<Vec<RawFd>> = Mutex::new(Vec::new());

/// The inherited descriptor `number`, close-on-exec. A number can be taken once. Call this function before the
/// process opens files of its own: a number that the parent did not pass on would name one of them.
pub fn take_inherited(number: RawFd) -> io::Result<OwnedFd> {
    if number <= 2 {
        return Err(io::Error::new(
            io::ErrorKind::InvalidInput,
            "a standard stream cannot be taken",
        ));
    }
    let mut taken = TAKEN.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    if taken.contains(&number) {
        return Err(io::Error::new(io::ErrorKind::AlreadyExists, "the descriptor has an owner"));
    }
    // SAFETY: fcntl has no effect on memory. It fails for a number that is not open.
    if unsafe { libc::fcntl(number, libc::F_GETFD) } < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the descriptor is open, and the list above rules out a second owner from this function.
    let owned = unsafe { OwnedFd::from_raw_fd(number) };
    taken.push(number);
    fcntl_setfd(&owned, FdFlags::CLOEXEC)?;
    Ok(owned)
}

#[cfg(test)]
mod tests {
    use std::os::fd::IntoRawFd;

    use super::*;

    #[test]
    fn a_number_is_taken_once_and_only_if_it_is_open() {
        let (end, _other) = std::os::unix::net::UnixStream::pair().unwrap();
        let number = end.into_raw_fd();
        let owned = take_inherited(number).unwrap();
        assert_eq!(rustix::io::fcntl_getfd(&owned).unwrap(), FdFlags::CLOEXEC);
        assert!(take_inherited(number).is_err());
        assert!(take_inherited(0).is_err());
        assert!(take_inherited(-1).is_err());
        assert!(take_inherited(987_654).is_err());
    }
}
