//! Whether a workspace may be copied, and whether twins can both write in it. What is hidden in it is
//! hidden from the session by its path; a copy has another, and would show it.

use std::collections::VecDeque;
use std::ffi::OsString;
use std::path::{Component, Path, PathBuf};

use windlass_protocol::confinement::Isolation;
use windlass_protocol::policy::Policy;
use windlass_protocol::policy::expand_home;

use crate::config::Config;

/// Directories of everybody.
const TEMPORARY: [&str; 2] = ["/tmp", "/var/tmp"];

/// Links that a path is followed through: as many as the kernel follows.
const LINKS_MAX: usize = 40;

/// What is hidden below a workspace, by the policy or as the node's own. Whether it is there does not
/// matter: whoever works there could have moved it since.
pub(super) fn hidden_in(
    workspace: &Path,
    policy: Option<&Policy>,
    home: Option<&Path>,
    config: &Config,
) -> Option<PathBuf> {
    // Without a wall nothing is hidden from the original either.
    let walled = policy.filter(|policy| policy.isolation != Some(Isolation::None));
    let named = walled.into_iter().flat_map(|policy| &policy.hidden);
    let named = named.filter_map(|path| expand_home(path, home));
    let own = [config.state_dir.clone(), config.runtime_dir.clone()];
    let roots = by_all_names(workspace);
    let is_below = |path: &PathBuf| roots.iter().any(|root| path != root && path.starts_with(root));
    named.chain(own).find(|path| by_all_names(path).iter().any(is_below))
}

/// Whether a workspace is in a directory that both twins may write, whatever keeps them apart.
pub(super) fn is_in_common(workspace: &Path, policy: &Policy, home: Option<&Path>) -> bool {
    let named = policy.writable.iter().filter_map(|path| expand_home(path, home));
    let temporary = TEMPORARY.map(PathBuf::from).into_iter().chain([std::env::temp_dir()]);
    let names = by_all_names(workspace);
    let holds = |root: &PathBuf| names.iter().any(|name| name.starts_with(root));
    named.chain(temporary).any(|root| by_all_names(&root).iter().any(holds))
}

/// A path as it is written, and as each link in it leads on, to the place that it names in the end. Nothing
/// needs to be there, since a link stays when what it leads to is moved.
fn by_all_names(path: &Path) -> Vec<PathBuf> {
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

/// What a path is made of, from the root if it starts there.
fn parts(path: &Path) -> VecDeque<OsString> {
    let parts = path.components().filter(|part| *part != Component::CurDir);
    parts.map(|part| part.as_os_str().to_owned()).collect()
}

#[cfg(test)]
mod tests {
    use windlass_protocol::policy::Preset;

    use super::*;

    #[test]
    fn what_is_hidden_below_a_workspace_is_found_by_any_name() {
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
        // The policy's own list, of which nothing is there.
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
    fn a_workspace_below_a_writable_root_is_in_common_by_any_name() {
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
            let found = is_in_common(Path::new(workspace), &policy, Some(home));
            assert_eq!(found, expected, "{workspace}");
        }
    }

    #[test]
    fn a_link_into_the_workspace_is_followed_to_where_nothing_is_any_more() {
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
        assert!(by_all_names(&at("round")).len() <= LINKS_MAX + 2);
    }
}
