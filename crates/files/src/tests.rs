//! Tests that need no session: workspaces on the kernel's file systems, and messages of failures that
//! a test cannot provoke.

use std::path::PathBuf;

use bytes::Bytes;
use rustix::io::Errno;
use windlass_protocol::ErrorCode;

use super::{BodySink, FileError, FilePath, FileScope, Files, Precondition, Put, Workspace};

fn workspace(path: impl Into<PathBuf>) -> Workspace {
    let access = FileScope {
        workspace: path.into(),
        hidden: Vec::new(),
        node_dirs: Vec::new(),
        home: None,
        file_bytes_max: 10,
    };
    Workspace::open(&access, &Files::default()).unwrap()
}

#[test]
fn files_and_magic_links_of_the_kernel_are_refused() {
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

/// So a node that is killed during an upload leaves nothing in the workspace.
#[test]
fn a_file_has_no_name_until_it_is_complete() {
    let dir = tempfile::tempdir().unwrap();
    let path = FilePath::file("data").unwrap();
    let mut put = Put::begin(workspace(dir.path()), path, Precondition::Any, None).unwrap();
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
