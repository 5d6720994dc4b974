//! Files where no session is needed: workspaces that are the kernel's own, and what is told of
//! failures that cannot be brought about.

use std::path::PathBuf;

use bytes::Bytes;
use rustix::io::Errno;
use windlass_protocol::ErrorCode;

use super::{Condition, FileError, FilePath, Files, Intake, Place, Put, Workspace};

fn workspace(path: impl Into<PathBuf>) -> Workspace {
    let place = Place {
        workspace: path.into(),
        hidden: Vec::new(),
        own: Vec::new(),
        home: None,
        file_bytes_max: 10,
    };
    Workspace::open(&place, &Files::default()).unwrap()
}

#[test]
fn the_kernels_own_files_are_refused_and_so_are_its_magic_links() {
    let proc = workspace("/proc");
    let root = workspace("/");
    let own = format!("{}/root/etc/hostname", std::process::id());
    for (workspace, path) in [
        (&proc, "self/environ"),
        (&proc, "self/root/etc/hostname"),
        (&proc, "self/cwd/Cargo.toml"),
        (&proc, "thread-self/fd/0"),
        (&proc, own.as_str()),
        (&root, "proc/self/environ"),
        (&root, "proc/self/root/etc/hostname"),
        (&root, "proc/version"),
        (&root, "dev/null"),
    ] {
        let refused = workspace.file(&FilePath::file(path).unwrap());
        assert!(matches!(refused, Err(FileError::Refused { .. })), "{path}: {refused:?}");
    }
}

/// A node that is killed there leaves nothing in the workspace.
#[test]
fn a_file_that_is_still_coming_has_no_name() {
    let dir = tempfile::tempdir().unwrap();
    let path = FilePath::file("data").unwrap();
    let mut put = Put::begin(workspace(dir.path()), path, Condition::Any, None).unwrap();
    put.take(&[Bytes::from_static(b"whole")]).unwrap();
    let names = || std::fs::read_dir(dir.path()).unwrap().count();
    assert_eq!(names(), 0);
    assert_eq!(put.finish().unwrap().bytes, 5);
    assert_eq!(std::fs::read(dir.path().join("data")).unwrap(), b"whole");
    assert_eq!(names(), 1);
}

#[test]
fn without_openat2_nothing_is_opened() {
    let error = FileError::of("a", Errno::NOSYS);
    assert_eq!(error.code(), ErrorCode::NotEnforceable);
}

#[test]
fn a_list_of_conflicts_is_bounded() {
    let paths = (0..10_000).map(|number| format!("file-{number}")).collect();
    let message = FileError::Conflict { paths }.to_string();
    assert!(message.ends_with("file-19 and 9980 more"), "{message}");
}
