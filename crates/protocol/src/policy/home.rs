//! Paths of a policy that start with the user's home directory.

use std::path::{Path, PathBuf};

/// A policy's path with `~` replaced by the home directory. `None` if the path needs a home directory and there
/// is none.
pub fn expand_home(path: &str, home: Option<&Path>) -> Option<PathBuf> {
    match path.strip_prefix('~') {
        None => Some(PathBuf::from(path)),
        Some(rest) => Some(home?.join(rest.trim_start_matches('/'))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tilde_is_the_home_and_nothing_without_one() {
        let home = Some(Path::new("/h/a"));
        assert_eq!(expand_home("~/.ssh", home), Some(PathBuf::from("/h/a/.ssh")));
        assert_eq!(expand_home("~", home), Some(PathBuf::from("/h/a/")));
        assert_eq!(expand_home("/etc", None), Some(PathBuf::from("/etc")));
        assert_eq!(expand_home("~/.ssh", None), None);
    }
}
