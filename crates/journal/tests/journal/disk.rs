//! The journal on a full disk, and after the disk has space again.

use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};
use windlass_journal::AppendError;

use super::*;

/// A file system of 512 KiB, if this process may mount one.
struct SmallDisk(tempfile::TempDir);

impl SmallDisk {
    fn new() -> Option<Self> {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let options = Some(c"size=512k");
        mount("tmpfs", dir.path(), "tmpfs", MountFlags::empty(), options).ok()?;
        Some(Self(dir))
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let _ = unmount(self.0.path(), UnmountFlags::DETACH);
    }
}

#[test]
fn a_full_disk_fails_the_append_whole_and_later_ones_work_again() {
    let Some(disk) = SmallDisk::new() else {
        eprintln!("skipped: mounting a small file system is not allowed here");
        return;
    };
    let state = tempfile::tempdir().unwrap();
    let journal = open(state.path());
    // Only the sessions are on the small disk.
    std::fs::remove_dir(state.path().join("sessions")).unwrap();
    std::os::unix::fs::symlink(disk.0.path(), state.path().join("sessions")).unwrap();
    let filler = disk.0.path().join("filler");
    let mut log = create(&journal, "s");
    log.append(vec![accepted(1, "code"), output(1, b"before\n")]).unwrap();
    std::fs::write(&filler, vec![0; 400_000]).unwrap();
    let before = log.facts().clone();
    for big in
        [vec![output(1, &[b'x'; 200_000])], (0..99).map(|_| output(1, &[0; 9_000])).collect()]
    {
        let failed = log.append(big);
        assert!(matches!(failed, Err(AppendError::DiskFull { .. })), "{failed:?}");
        assert_eq!(*log.facts(), before);
        assert_eq!(all_events(&mut log.reader()).len(), 2);
    }
    std::fs::remove_file(&filler).unwrap();
    log.append(vec![output(1, &[b'y'; 200_000]), ended(1)]).unwrap();
    assert_eq!(log.reader().tail(3, OutputRange::ALL).unwrap().bytes, "yyy");
    let facts = log.facts().clone();
    drop(log);
    let (log, recovered) = open(state.path()).open_session(&id("s")).unwrap();
    assert_eq!((log.facts(), recovered.cut_bytes), (&facts, 0));
    assert_eq!(all_events(&mut log.reader()).len(), 4);
}

#[test]
fn a_full_disk_at_a_new_segment_leaves_the_session_as_it_was() {
    let Some(disk) = SmallDisk::new() else {
        eprintln!("skipped: mounting a small file system is not allowed here");
        return;
    };
    let state = tempfile::tempdir().unwrap();
    let journal = open(state.path());
    std::fs::remove_dir(state.path().join("sessions")).unwrap();
    std::os::unix::fs::symlink(disk.0.path(), state.path().join("sessions")).unwrap();
    let small = NewSession { quota_bytes: 1 << 20, ..new_session("s") };
    let mut log = journal.create(small).unwrap();
    log.append(vec![output(1, &[b'x'; 70_000])]).unwrap();
    let filler = disk.0.path().join("filler");
    let _ = std::fs::write(&filler, vec![0; 600_000]);
    let before = log.facts().clone();
    for _ in 0..2 {
        let failed = log.append(vec![output(1, b"more")]);
        assert!(matches!(failed, Err(AppendError::DiskFull { .. })), "{failed:?}");
        assert_eq!(*log.facts(), before);
    }
    assert!(journal.create(new_session("other")).is_err());
    std::fs::remove_file(&filler).unwrap();
    log.append(vec![output(1, b"more")]).unwrap();
    assert_eq!(log.reader().tail(4, OutputRange::ALL).unwrap().bytes, "more");
    assert_eq!(create(&journal, "other").facts().last_seq, Seq(0));
}
