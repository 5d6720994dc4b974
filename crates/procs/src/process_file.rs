//! Reads files of `/proc/PID`. Several of them contain the process's name, which the process chooses and
//! which need not be UTF-8. The files are read as bytes, so that no process can hide by its name.

use std::collections::BTreeSet;
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

/// The user ids of all processes that this process can see.
pub fn user_ids() -> io::Result<BTreeSet<u32>> {
    let mut all = BTreeSet::new();
    for entry in std::fs::read_dir("/proc")? {
        let name = entry?.file_name();
        let Some(pid) = name.to_str().and_then(|name| name.parse().ok()) else { continue };
        // A process that has ended meanwhile has no ids.
        let Ok(status) = read(pid, "status") else { continue };
        all.extend(ids_in(&status));
    }
    Ok(all)
}

/// The real, effective, saved and file system user id in the text of `status`. The kernel escapes line breaks in the
/// process's name, so no process can add a line.
fn ids_in(status: &str) -> impl Iterator<Item = u32> {
    let ids = status.lines().find_map(|line| line.strip_prefix("Uid:"));
    ids.unwrap_or_default().split_ascii_whitespace().filter_map(|id| id.parse().ok())
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

    #[test]
    fn each_user_id_of_a_process_is_found() {
        let status = "Name:\tUid:\\nUid:\t1\nUmask:\t0022\nUid:\t7\t8\t9\t10\nGid:\t3\t3\t3\t3\n";
        assert_eq!(ids_in(status).collect::<Vec<_>>(), [7, 8, 9, 10]);
        assert_eq!(ids_in("").count(), 0);
        assert!(user_ids().unwrap().contains(&nix::unistd::getuid().as_raw()));
    }
}
