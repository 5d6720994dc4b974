//! Whether a workspace may be copied. What is hidden in it is hidden from the session by its path; a copy
//! has another, and would show it.

use std::path::{Path, PathBuf};

use windlass_protocol::policy::Policy;
use windlass_sandbox::survey::expand;

use crate::config::Config;

/// What is hidden below a workspace, by the policy or as the node's own. Whether it is there does not
/// matter: whoever works there could have moved it since.
pub(super) fn hidden_in(
    workspace: &Path,
    policy: Option<&Policy>,
    home: Option<&Path>,
    config: &Config,
) -> Option<PathBuf> {
    let named = policy.into_iter().flat_map(|policy| &policy.hidden);
    let named = named.filter_map(|path| expand(path, home));
    let own = [config.state_dir.clone(), config.runtime_dir.clone()];
    let roots = by_all_names(workspace);
    let is_below = |path: &PathBuf| roots.iter().any(|root| path != root && path.starts_with(root));
    named.chain(own).find(|path| by_all_names(path).iter().any(is_below))
}

/// A path as it is written, and as it is.
fn by_all_names(path: &Path) -> Vec<PathBuf> {
    std::iter::once(path.to_owned()).chain(path.canonicalize().ok()).collect()
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
        std::os::unix::fs::symlink(at("work/keys"), at("named-keys")).unwrap();
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
    }
}
