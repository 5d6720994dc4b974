//! Tests that need no session: workspaces on the kernel's file systems, and messages of failures that
//! a test cannot provoke.

use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::PathBuf;

use bytes::Bytes;
use rustix::io::Errno;
use windlass_beneath::Directory;
use windlass_protocol::ErrorCode;
use windlass_protocol::policy::WorkspaceAccess;

use super::commit::{FileAction, StagedChange, commit};
use super::owner::is_private;
use super::staging::{Staging, is_staged};
use super::{
    BodySink, FileError, FilePath, FileScope, Files, NewFileOwner, Precondition, Put, Workspace,
    Writer, remove,
};

fn workspace(path: impl Into<PathBuf>) -> Workspace {
    workspace_for(path, Writer::Client)
}

fn workspace_for(path: impl Into<PathBuf>, writer: Writer) -> Workspace {
    Workspace::open(&scope(path, writer), &Files::default()).unwrap()
}

fn scope(path: impl Into<PathBuf>, writer: Writer) -> FileScope {
    FileScope {
        workspace: path.into(),
        hidden: Vec::new(),
        node_dirs: Vec::new(),
        home: None,
        file_bytes_max: 10,
        writer,
        new_file_owner: NewFileOwner::Node,
    }
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
fn what_is_made_for_a_session_with_its_own_user_id_belongs_to_the_owner_of_the_workspace() {
    if !rustix::process::geteuid().is_root() {
        // Only root can give files away.
        return;
    }
    const OWNER: u32 = 1_800_000_000;
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path().canonicalize().unwrap();
    std::os::unix::fs::chown(&root, Some(OWNER), Some(OWNER + 1)).unwrap();
    let owners = |path: &str| {
        let about = std::fs::symlink_metadata(root.join(path)).unwrap();
        (about.uid(), about.gid())
    };
    let put = |path: &str, new_file_owner| {
        let access = FileScope { new_file_owner, ..scope(&root, Writer::Client) };
        let workspace = Workspace::open(&access, &Files::default()).unwrap();
        let path = FilePath::file(path).unwrap();
        Put::begin(workspace, path, Precondition::Any, None).and_then(Put::finish).unwrap()
    };
    put("node/file", NewFileOwner::Node);
    assert_eq!((owners("node"), owners("node/file")), ((0, 0), (0, 0)));
    for path in ["new/deep/file", "new/other", "node/file", "top"] {
        put(path, NewFileOwner::Workspace);
        assert_eq!(owners(path), (OWNER, OWNER + 1), "{path}");
    }
    for (path, uid) in [("new", OWNER), ("new/deep", OWNER), ("node", 0)] {
        assert_eq!(owners(path).0, uid, "{path}");
    }
    for path in ["", "new", "new/deep"] {
        let names = std::fs::read_dir(root.join(path)).unwrap();
        let staged = |name: &std::ffi::OsString| name.to_str().is_some_and(is_staged);
        assert!(!names.map(|entry| entry.unwrap().file_name()).any(|name| staged(&name)), "{path}");
    }
}

/// A session can put another directory in the place of the staging directory, after the node has made it and before the
/// node opens it.
#[test]
fn no_directory_is_given_away_from_one_that_others_can_change() {
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path().canonicalize().unwrap();
    std::fs::set_permissions(&root, std::fs::Permissions::from_mode(0o755)).unwrap();
    let stat = Directory::recorded(&root).unwrap().stat().unwrap();
    assert!(!is_private(&stat));
    let workspace = workspace(&root);
    let above = workspace.directory(&FilePath::directory("").unwrap()).unwrap();
    let staging = Staging::within(above, None).unwrap();
    assert!(is_private(&rustix::fs::fstat(staging.directory()).unwrap()));
    staging.clear();
    assert_eq!(std::fs::read_dir(&root).unwrap().count(), 0);
}

#[test]
fn what_the_code_may_not_write_is_refused_to_a_writer_on_its_behalf_by_any_name() {
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path().canonicalize().unwrap();
    std::fs::create_dir_all(root.join(".git/hooks")).unwrap();
    std::fs::create_dir(root.join("src")).unwrap();
    std::fs::write(root.join("Makefile"), "all:").unwrap();
    std::os::unix::fs::symlink(".git/hooks", root.join("link")).unwrap();
    std::os::unix::fs::symlink(".", root.join("here")).unwrap();
    std::os::unix::fs::symlink("Makefile", root.join("CLAUDE.md")).unwrap();
    std::os::unix::fs::symlink("../elsewhere", root.join("GEMINI.md")).unwrap();
    let protected: Vec<PathBuf> = [".git", "Makefile", "AGENTS.md", "CLAUDE.md", "GEMINI.md"]
        .map(|name| root.join(name))
        .into();
    let code = |access| Writer::Code { workspace: access, protected: protected.clone() };
    let put = |writer: &Writer, path: &str| {
        let workspace = workspace_for(&root, writer.clone());
        Put::begin(workspace, FilePath::file(path).unwrap(), Precondition::Any, None)
            .and_then(Put::finish)
    };
    let writes = code(WorkspaceAccess::Write);
    for path in [
        ".git/config",
        ".git/new/x",
        "link/pre-commit",
        "here/.git/config",
        "here/link/x",
        "Makefile",
        "here/Makefile",
        "AGENTS.md",
    ] {
        let refused = put(&writes, path);
        assert!(matches!(refused, Err(FileError::Refused { .. })), "{path}: {refused:?}");
    }
    for path in ["src/a", "here/b", "new/c", "src/.git/config"] {
        put(&writes, path).unwrap();
        for writer in [code(WorkspaceAccess::Read), Writer::CodeOfLostNames] {
            let refused = put(&writer, path);
            assert!(matches!(refused, Err(FileError::Refused { .. })), "{path}: {refused:?}");
        }
    }
    // Deleting a symlink or putting a file over it changes what the name leads to.
    for path in ["here/CLAUDE.md", "here/GEMINI.md", "CLAUDE.md"] {
        let refused = put(&writes, path);
        assert!(matches!(refused, Err(FileError::Refused { .. })), "{path}: {refused:?}");
        let workspace = workspace_for(&root, writes.clone());
        let refused = remove(&workspace, FilePath::file(path).unwrap(), Precondition::Any);
        assert!(matches!(refused, Err(FileError::Refused { .. })), "{path}: {refused:?}");
    }
    put(&Writer::Client, "link/pre-commit").unwrap();
    assert!(!root.join(".git/new").exists());
}

#[test]
fn a_symlink_that_a_write_back_deletes_leads_none_of_its_changes_to_a_protected_file() {
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path().canonicalize().unwrap();
    std::fs::write(root.join("Makefile"), "all:").unwrap();
    std::os::unix::fs::symlink(".", root.join("here")).unwrap();
    let protected = vec![root.join("Makefile")];
    let writer = Writer::Code { workspace: WorkspaceAccess::Write, protected };
    let workspace = workspace_for(&root, writer);
    let mut staging = Staging::apart(&workspace).unwrap();
    let writing = staging.begin().unwrap();
    let staged = staging.finish(writing).unwrap();
    let change = |path: &str, action| {
        let path = FilePath::file(path).unwrap();
        StagedChange { path, condition: Precondition::Any, action }
    };
    let mut changes =
        [change("here/Makefile", FileAction::Put(staged)), change("here", FileAction::Delete)];
    let refused = commit(&workspace, &mut staging, &changes);
    assert!(matches!(refused, Err(FileError::Refused { .. })), "{refused:?}");
    // In this order the path is another file.
    changes.reverse();
    commit(&workspace, &mut staging, &changes).unwrap();
    assert_eq!(std::fs::read(root.join("here/Makefile")).unwrap(), b"");
    assert_eq!(std::fs::read(root.join("Makefile")).unwrap(), b"all:");
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
