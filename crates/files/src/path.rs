//! A path in a workspace: relative, without `..`, of bounded length. The kernel gets the path
//! unchanged; it resolves symlinks, but never beyond the workspace.

use super::FileError;

const PATH_BYTES_MAX: usize = 4000;

/// Maximum number of parts of a path.
const DEPTH_MAX: usize = 128;

/// A path without `.`, `..`, empty parts or a leading slash. The empty path is the workspace itself.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct FilePath(String);

impl FilePath {
    /// The path of a file.
    pub fn file(text: &str) -> Result<Self, FileError> {
        let refused = |why| Err(FileError::Refused { path: text.to_owned(), why });
        if text.is_empty() {
            return refused("it is empty");
        }
        if text.len() > PATH_BYTES_MAX || text.split('/').count() > DEPTH_MAX {
            // The start of the path is enough to recognise it.
            let path = text.chars().take(80).collect();
            return Err(FileError::Refused { path, why: "it is too long or too deep" });
        }
        if text.starts_with('/') {
            return refused("it is absolute");
        }
        if text.contains('\0') {
            return refused("it contains a NUL byte");
        }
        if text.split('/').any(|part| matches!(part, "" | "." | "..")) {
            return refused("it has an empty part, `.` or `..`");
        }
        Ok(Self(text.to_owned()))
    }

    /// The path of a directory; the empty text or `.` is the workspace itself.
    pub fn directory(text: &str) -> Result<Self, FileError> {
        match text.strip_suffix('/').unwrap_or(text) {
            "" if text.is_empty() => Ok(Self(String::new())),
            "." => Ok(Self(String::new())),
            other => Self::file(other),
        }
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }

    pub fn is_workspace(&self) -> bool {
        self.0.is_empty()
    }

    /// The parent directory and the last part. `None` for the workspace itself.
    pub fn split(&self) -> Option<(Self, &str)> {
        match self.0.rsplit_once('/') {
            Some((above, name)) => Some((Self(above.to_owned()), name)),
            None if self.0.is_empty() => None,
            None => Some((Self(String::new()), &self.0)),
        }
    }

    /// The path of `name` in this directory.
    pub fn join(&self, name: &str) -> Self {
        if self.0.is_empty() { Self(name.to_owned()) } else { Self(format!("{}/{name}", self.0)) }
    }

    /// Whether this path is `other` or below it.
    pub fn is_within(&self, other: &Self) -> bool {
        match self.0.strip_prefix(&other.0) {
            Some(rest) => rest.is_empty() || other.0.is_empty() || rest.starts_with('/'),
            None => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_plain_relative_paths_are_paths() {
        for good in ["a", "a/b.txt", ".env", "a/..b", "ü/ö", "-", "a b"] {
            assert_eq!(FilePath::file(good).unwrap().as_str(), good);
        }
        let long = "x".repeat(PATH_BYTES_MAX + 1);
        let deep = vec!["d"; DEPTH_MAX + 1].join("/");
        for bad in
            ["", "/", "/etc/passwd", "..", "../a", "a/../b", "a//b", "./a", "a/.", "a/", "a\0b"]
                .into_iter()
                .chain([long.as_str(), deep.as_str()])
        {
            assert!(FilePath::file(bad).is_err(), "{bad:?}");
        }
        for root in ["", ".", "./"] {
            assert!(FilePath::directory(root).unwrap().is_workspace(), "{root:?}");
        }
        assert_eq!(FilePath::directory("a/b/").unwrap().as_str(), "a/b");
        assert!(FilePath::directory("/").is_err());
    }

    #[test]
    fn a_path_is_within_itself_and_what_is_above() {
        let path = |text| FilePath::directory(text).unwrap();
        assert!(path("a/b").is_within(&path("a")));
        assert!(path("a").is_within(&path("a")));
        assert!(path("a").is_within(&path("")));
        assert!(!path("ab").is_within(&path("a")));
        assert!(!path("a").is_within(&path("a/b")));
    }
}
