//! Decides whether a workspace may be copied, and whether both twins can write in it. A policy hides files by
//! their path. The copy has another path, so it would show them.

use std::collections::VecDeque;
use std::ffi::OsString;
use std::path::{Component, Path, PathBuf};

use windlass_protocol::confinement::Isolation;
use windlass_protocol::policy::Policy;
use windlass_protocol::policy::expand_home;

use crate::config::Config;

/// Directories that every user may write.
const TEMPORARY: [&str; 2] = ["/tmp", "/var/tmp"];

/// Maximum number of symlinks in one path, the same as the kernel's.
const LINKS_MAX: usize = 40;

/// A path below the workspace that the policy hides, or that is the node's own. The path need not exist: the
/// session's code could have moved its content elsewhere in the workspace.
pub(super) fn hidden_in(
    workspace: &Path,
    policy: Option<&Policy>,
    home: Option<&Path>,
    config: &Config,
) -> Option<PathBuf> {
    // Without isolation nothing is hidden from the original either.
    let confined = policy.filter(|policy| policy.isolation != Some(Isolation::None));
    let named = confined.into_iter().flat_map(|policy| &policy.hidden);
    let named = named.filter_map(|path| expand_home(path, home));
    let own = [config.state_dir.clone(), config.runtime_dir.clone()];
    let roots = resolutions(workspace);
    let is_below = |path: &PathBuf| roots.iter().any(|root| path != root && path.starts_with(root));
    named.chain(own).find(|path| resolutions(path).iter().any(is_below))
}

/// Whether the workspace is in a directory that both twins may write, however they are separated.
pub(super) fn is_shared_writable(workspace: &Path, policy: &Policy, home: Option<&Path>) -> bool {
    let named = policy.writable.iter().filter_map(|path| expand_home(path, home));
    let temporary = TEMPORARY.map(PathBuf::from).into_iter().chain([std::env::temp_dir()]);
    let names = resolutions(workspace);
    let holds = |root: &PathBuf| names.iter().any(|name| name.starts_with(root));
    named.chain(temporary).any(|root| resolutions(&root).iter().any(holds))
}

/// A path as it is written, then with each of its symlinks followed in turn, up to the final path. Nothing
/// needs to exist there: a symlink stays when its target is moved.
fn resolutions(path: &Path) -> Vec<PathBuf> {
    let mut names = vec![path.to_owned()];
    let mut reached = PathBuf::new();
    let mut ahead = parts(path);
    while let Some(part) = ahead.pop_front() {
        if part == ".." {
            reached.pop();
            continue;
        }
        let next = reached.join(&part);
        match next.read_link() {
            Ok(target) if names.len() <= LINKS_MAX => {
                let mut led = parts(&target);
                led.append(&mut ahead);
                ahead = led;
                names.push(reached.iter().chain(ahead.iter().map(AsRef::as_ref)).collect());
            }
            _ => reached = next,
        }
    }
    names.push(reached);
    names
}

/// The components of a path, without `.`.
fn parts(path: &Path) -> VecDeque<OsString> {
    let parts = path.components().filter(|part| *part != Component::CurDir);
    parts.map(|part| part.as_os_str().to_owned()).collect()
}

#[cfg(test)]
mod tests {
    use windlass_protocol::policy::Preset;

    use super::*;

    #[test]
    fn a_hidden_path_below_a_workspace_is_found_through_symlinks() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().canonicalize().unwrap();
        let at = |name: &str| root.join(name);
        for name in ["home/project", "work/keys", "node"] {
            std::fs::create_dir_all(at(name)).unwrap();
        }
        std::os::unix::fs::symlink(at("work"), at("link")).unwrap();
        std::os::unix::fs::symlink("work/../link/keys", at("named-keys")).unwrap();
        let config = Config::new(at("node/run"), at("node/state"), PathBuf::new());
        let mut policy = Policy::of(Preset::Workspace);
        policy.hidden.push(at("named-keys").display().to_string());
        let home = at("home");
        let found = |workspace: &Path| hidden_in(workspace, Some(&policy), Some(&home), &config);
        // Paths of the preset; none of them exists.
        assert!(found(&home).unwrap().starts_with(&home));
        assert_eq!(found(&at("home/project")), None);
        assert_eq!(found(&at("work")), Some(at("named-keys")));
        assert_eq!(found(&at("link")), Some(at("named-keys")));
        assert_eq!(found(&at("node")), Some(at("node/state")));
        assert_eq!(found(&at("node/state/workspaces/one")), None);
        assert_eq!(hidden_in(&home, None, Some(&home), &config), None);
        let open = Policy { isolation: Some(Isolation::None), ..policy.clone() };
        assert_eq!(hidden_in(&home, Some(&open), Some(&home), &config), None);
        assert_eq!(hidden_in(&root, Some(&open), Some(&home), &config), Some(at("node/state")));
    }

    #[test]
    fn a_workspace_below_a_writable_root_is_shared_by_twins() {
        let mut policy = Policy::of(Preset::Workspace);
        policy.writable = vec!["/data/shared".to_owned(), "~/scratch".to_owned()];
        let home = Path::new("/users/ada");
        for (workspace, expected) in [
            ("/data/own", false),
            ("/data/shared", true),
            ("/data/shared/deep", true),
            ("/users/ada/scratch/one", true),
            ("/users/ada/project", false),
            ("/tmp/work", true),
            ("/var/tmp/work", true),
        ] {
            let found = is_shared_writable(Path::new(workspace), &policy, Some(home));
            assert_eq!(found, expected, "{workspace}");
        }
    }

    #[test]
    fn a_symlink_into_the_workspace_is_followed_although_its_target_was_moved() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().canonicalize().unwrap();
        let at = |name: &str| root.join(name);
        std::fs::create_dir_all(at("work/deep/keys")).unwrap();
        for (target, link) in [("work/way", "named"), ("gone/keys", "work/way"), ("work", "again")]
        {
            std::os::unix::fs::symlink(target, at(link)).unwrap();
        }
        std::os::unix::fs::symlink(at("again/deep/keys"), at("deep-keys")).unwrap();
        std::fs::rename(at("work/deep"), at("work/elsewhere")).unwrap();
        let config = Config::new(at("run"), at("state"), PathBuf::new());
        for name in ["named", "deep-keys"] {
            let mut policy = Policy::of(Preset::Workspace);
            policy.hidden = vec![at(name).display().to_string()];
            let found = |workspace: &str| hidden_in(&at(workspace), Some(&policy), None, &config);
            assert_eq!(found("work"), Some(at(name)));
            assert_eq!(found("other"), None);
        }
        std::os::unix::fs::symlink("round", at("round")).unwrap();
        assert!(resolutions(&at("round")).len() <= LINKS_MAX + 2);
    }
}
