//! Which programs are trusted, given the roots in which sessions could write.

use std::os::unix::fs::{PermissionsExt, symlink};
use std::sync::Arc;

use super::*;

struct Stage {
    _dir: tempfile::TempDir,
    root: PathBuf,
}

impl Stage {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().canonicalize().unwrap();
        for name in ["state/workspaces", "tools/bin", "work/.venv/bin"] {
            std::fs::create_dir_all(root.join(name)).unwrap();
        }
        for name in ["tools/bin/python", "work/.venv/bin/python", "state/workspaces/python"] {
            std::fs::write(root.join(name), "").unwrap();
        }
        Self { _dir: dir, root }
    }

    fn at(&self, name: &str) -> PathBuf {
        self.root.join(name)
    }

    fn trust(&self) -> Trust {
        Trust::open(&self.at("state"), [self.at("state/workspaces")], || Ok(Vec::new()))
    }
}

#[test]
fn a_directory_that_a_session_could_write_is_never_trusted_again() {
    let stage = Stage::new();
    let (trust, planted) = (stage.trust(), stage.at("work/.venv/bin/python"));
    assert!(trust.way(&planted).is_ok());
    let before = trust.generation();
    trust.remember([&stage.at("work")]).unwrap();
    assert_ne!(trust.generation(), before);
    for trust in [trust, stage.trust()] {
        let refused = trust.way(&planted).unwrap_err();
        assert!(matches!(&refused, Distrust::Written { root, .. } if *root == stage.at("work")));
        assert!(trust.way(&stage.at("tools/bin/python")).is_ok());
    }
}

#[test]
fn a_path_through_a_symlink_in_a_session_s_directory_is_not_trusted() {
    let stage = Stage::new();
    let trust = stage.trust();
    trust.remember([&stage.at("work")]).unwrap();
    symlink(stage.at("tools/bin/python"), stage.at("work/link")).unwrap();
    symlink(stage.at("work/link"), stage.at("tools/bin/python3")).unwrap();
    assert!(matches!(trust.way(&stage.at("tools/bin/python3")), Err(Distrust::Written { .. })));
}

#[test]
fn the_node_s_directories_for_sessions_need_no_record() {
    let stage = Stage::new();
    let (trust, before) = (stage.trust(), std::fs::read(stage.at("state").join(FILE)).unwrap());
    assert!(trust.way(&stage.at("state/workspaces/python")).is_err());
    trust.remember([&stage.at("state/workspaces/one"), &PathBuf::from("/")]).unwrap();
    assert_eq!(std::fs::read(stage.at("state").join(FILE)).unwrap(), before);
    assert_eq!(trust.generation(), 0);
}

#[test]
fn a_tree_with_a_root_inside_is_not_trusted() {
    let stage = Stage::new();
    let trust = stage.trust();
    let trees = [stage.at("tools")].into();
    let places = CodeDirs { directories: BTreeSet::new(), trees };
    assert_eq!(trust.check(&places), Ok(()));
    trust.remember([&stage.at("tools/lib/package")]).unwrap();
    assert!(matches!(trust.check(&places), Err(Distrust::Written { .. })));
    assert!(trust.way(&stage.at("tools/bin/python")).is_ok(), "the way does not lead there");
}

#[test]
fn a_directory_that_every_user_can_write_is_not_trusted() {
    let stage = Stage::new();
    let trust = stage.trust();
    let mode = |mode| std::fs::set_permissions(stage.at("tools"), PermissionsExt::from_mode(mode));
    mode(0o777).unwrap();
    assert!(matches!(trust.way(&stage.at("tools/bin/python")), Err(Distrust::Shared(_))));
    mode(0o1777).unwrap();
    assert!(trust.way(&stage.at("tools/bin/python")).is_ok());
}

#[test]
fn without_a_readable_record_only_directories_of_root_are_trusted() {
    let stage = Stage::new();
    std::fs::write(stage.at("state").join(FILE), "?").unwrap();
    let trust = stage.trust();
    let refused = trust.way(&stage.at("tools/bin/python")).unwrap_err();
    assert!(matches!(refused, Distrust::Unknown { .. }), "{refused}");
    assert!(refused.remedy().contains(FILE));
    let of_system = trust.way(Path::new("/usr/bin/env"));
    assert_eq!(of_system.is_ok(), !rustix::process::geteuid().is_root(), "{of_system:?}");
    assert_eq!(trust.roots(), None);
    trust.remember([&stage.at("work")]).unwrap();
}

#[test]
fn a_session_waits_for_a_program_that_is_started_from_its_directory() {
    let stage = Stage::new();
    let trust = Arc::new(stage.trust());
    let mut places = CodeDirs::default();
    places.add_way(&stage.at("work/.venv/bin/python")).unwrap();
    let held = trust.hold(&places).unwrap();
    trust.remember([&stage.at("tools")]).unwrap();
    let waiting = {
        let (trust, root) = (trust.clone(), stage.at("work"));
        std::thread::spawn(move || trust.remember([&root]))
    };
    assert!(trust.check(&places).is_ok(), "nothing is written while it is started");
    drop(held);
    waiting.join().unwrap().unwrap();
    assert!(trust.hold(&places).is_err());
}
