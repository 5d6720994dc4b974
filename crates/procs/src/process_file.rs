//! Reads files of `/proc/PID`. Several of them contain the process's name, which the process chooses and
//! which need not be UTF-8. The files are read as bytes, so that no process can hide by its name.

use std::fs::File;
use std::io::{self, Read};

/// Bytes of the first read: more than most of these files have.
const READ_BYTES: usize = 4096;

/// The content of `/proc/PID/FILE`, with a replacement character for each sequence that is not UTF-8.
pub fn read(pid: u32, file: &str) -> io::Result<String> {
    // The kernel reports no size for these files: without room, reading would begin with a few bytes.
    let mut bytes = Vec::with_capacity(READ_BYTES);
    File::open(format!("/proc/{pid}/{file}"))?.read_to_end(&mut bytes)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

#[cfg(test)]
mod tests {
    use std::ffi::OsStr;
    use std::os::unix::ffi::OsStrExt;
    use std::process::{Command, Stdio};

    use super::*;

    #[test]
    fn a_process_is_seen_whatever_it_is_called() {
        let dir = tempfile::tempdir().unwrap();
        let program = dir.path().join(OsStr::from_bytes(b"\xff) Z"));
        std::fs::copy("/bin/sleep", &program).unwrap();
        let mut child = Command::new(&program).arg("60").stdin(Stdio::null()).spawn().unwrap();
        let (stat, name) = (read(child.id(), "stat"), read(child.id(), "comm"));
        let listed = crate::twin::below(std::process::id());
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(stat.unwrap().starts_with(&format!("{} (", child.id())));
        assert_eq!(name.unwrap(), "\u{fffd}) Z\n");
        assert!(listed.contains(&child.id()), "{listed:?} without {}", child.id());
        assert!(read(child.id(), "stat").is_err());
    }
}
