//! Package environments: virtual environments that the node builds from a package index and that sessions read. The
//! requests and replies of the HTTP door, and the rules for names and packages.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::SessionId;

/// Maximum number of package environments of one node. At the limit, an unnamed environment that no session uses is
/// removed; without one, the request is refused.
pub const PACKAGE_ENVIRONMENTS_MAX: usize = 64;

/// Maximum number of packages that one request names.
pub const PACKAGES_MAX: usize = 128;

/// Maximum characters of one package with its version.
pub const PACKAGE_CHARS_MAX: usize = 256;

/// Maximum characters of an environment's name.
pub const NAME_CHARS_MAX: usize = 64;

/// Maximum bytes of a lock file.
pub const LOCK_BYTES_MAX: usize = 1024 * 1024;

/// The prefix of the names that the node gives to environments without a name.
pub const UNNAMED_PREFIX: &str = "with-";

/// The request for an environment. If it is there already, nothing is built.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct CreatePackageEnvironment {
    /// Letters, digits, `-`, `_` and `.`. Default: the node derives a name from the packages and the interpreter, so the
    /// same request finds the same environment.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// The version of Python (`3.12`), or the interpreter as for a session. Default: `python3` on PATH.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub python: Option<String>,
    /// Packages of the index, each with an optional version: `pandas`, `numpy>=2,<3`, `requests[socks]==2.32.5`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub packages: Vec<String>,
    /// The text of a lock file, instead of packages. Every package in it needs a hash.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lock: Option<String>,
    /// Also packages that have no wheel: their own code builds them, in the sandbox of the build. Default: wheels only.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub allow_source_builds: bool,
    /// How long the reply may wait for the build. Default: 0.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub wait_ms: u64,
}

/// A package environment.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct PackageEnvironment {
    pub name: String,
    pub state: PackageEnvironmentState,
    /// The packages of the request.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub packages: Vec<String>,
    /// The interpreter that it was made with.
    pub python: String,
    /// The directory of the virtual environment.
    pub directory: String,
    pub created_at_ms: u64,
    /// When a session last used it.
    pub used_at_ms: u64,
    /// The session that builds it, or that built it. Its output is the output of the build.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub build: Option<SessionId>,
    /// Why the build failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// The lock file: all packages with version and hashes. Only in the reply for one environment.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lock: Option<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum PackageEnvironmentState {
    Building,
    Ready,
    /// The build failed. The same request builds it again.
    Failed,
}

/// Why a request for an environment is invalid.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BadPackageRequest {
    #[error(
        "{0:?} is not a name of an environment: use at most {NAME_CHARS_MAX} letters, digits, `-`, `_` and `.`, and begin \
         with a letter or a digit"
    )]
    Name(String),
    #[error("names that begin with {UNNAMED_PREFIX:?} are for environments without a name")]
    Unnamed,
    #[error(
        "{0:?} is not a package of an index, with an optional version such as `pandas` or `numpy>=2,<3`"
    )]
    Package(String),
    #[error("the request names more than {PACKAGES_MAX} packages")]
    TooMany,
    #[error("the request names no packages")]
    Empty,
    #[error("the request names packages and has a lock file; one of them is enough")]
    Both,
    #[error("the lock file is longer than {LOCK_BYTES_MAX} bytes")]
    Lock,
}

impl CreatePackageEnvironment {
    pub fn check(&self) -> Result<(), BadPackageRequest> {
        if let Some(name) = &self.name {
            check_name(name)?;
            if name.starts_with(UNNAMED_PREFIX) {
                return Err(BadPackageRequest::Unnamed);
            }
        }
        if self.packages.len() > PACKAGES_MAX {
            return Err(BadPackageRequest::TooMany);
        }
        if let Some(bad) = self.packages.iter().find(|package| !is_package(package)) {
            return Err(BadPackageRequest::Package(bad.clone()));
        }
        match &self.lock {
            Some(_) if !self.packages.is_empty() => Err(BadPackageRequest::Both),
            Some(lock) if lock.len() > LOCK_BYTES_MAX => Err(BadPackageRequest::Lock),
            None if self.packages.is_empty() => Err(BadPackageRequest::Empty),
            _ => Ok(()),
        }
    }
}

/// Checks the name of an environment. A good name is one plain part of a path.
pub fn check_name(name: &str) -> Result<(), BadPackageRequest> {
    let good = name.len() <= NAME_CHARS_MAX
        && name.starts_with(|first: char| first.is_ascii_alphanumeric())
        && name.chars().all(|char| char.is_ascii_alphanumeric() || "-_.".contains(char));
    good.then_some(()).ok_or_else(|| BadPackageRequest::Name(name.to_owned()))
}

/// Whether the text is a package with an optional version: no option of an installer, no path and no URL.
fn is_package(text: &str) -> bool {
    let allowed = |char: char| char.is_ascii_alphanumeric() || "-_.[],<>=!~*+ ".contains(char);
    text.len() <= PACKAGE_CHARS_MAX
        && text.starts_with(|first: char| first.is_ascii_alphanumeric())
        && text.chars().all(allowed)
}

fn is_zero(value: &u64) -> bool {
    *value == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    fn checked(
        change: impl FnOnce(&mut CreatePackageEnvironment),
    ) -> Result<(), BadPackageRequest> {
        let mut request =
            CreatePackageEnvironment { packages: vec!["pandas".into()], ..<_>::default() };
        change(&mut request);
        request.check()
    }

    #[test]
    fn packages_are_names_with_versions_and_nothing_else() {
        for good in ["pandas", "numpy>=2,<3", "requests[socks]==2.32.5", "a~=1.0", "a ==1.*"] {
            assert_eq!(checked(|request| request.packages = vec![good.into()]), Ok(()));
        }
        for bad in [
            "",
            "-r file",
            "--index-url=x",
            "./here",
            "/tmp/x",
            "a @ https://x.example/y",
            "git+https://x.example",
            "a\nb",
            "a;python_version>'3'",
            "../x",
            "a$b",
        ] {
            let refused = checked(|request| request.packages = vec![bad.into()]);
            assert_eq!(refused, Err(BadPackageRequest::Package(bad.into())), "{bad:?}");
        }
        let long = "a".repeat(PACKAGE_CHARS_MAX + 1);
        assert!(checked(|request| request.packages = vec![long]).is_err());
        let many = vec!["a".to_owned(); PACKAGES_MAX + 1];
        assert_eq!(checked(|request| request.packages = many), Err(BadPackageRequest::TooMany));
    }

    #[test]
    fn a_name_is_one_plain_part_of_a_path() {
        for good in ["data", "a.b-c_d", "3"] {
            assert_eq!(checked(|request| request.name = Some(good.into())), Ok(()));
        }
        for bad in ["", ".", "..", "a/b", "-a", ".hidden", "ä", "a b"] {
            assert!(checked(|request| request.name = Some(bad.into())).is_err(), "{bad:?}");
        }
        let taken = checked(|request| request.name = Some("with-1".into()));
        assert_eq!(taken, Err(BadPackageRequest::Unnamed));
    }

    #[test]
    fn a_request_has_packages_or_a_lock_file() {
        assert_eq!(checked(|request| request.packages.clear()), Err(BadPackageRequest::Empty));
        let both = checked(|request| request.lock = Some("a==1".into()));
        assert_eq!(both, Err(BadPackageRequest::Both));
        let lock = |bytes| {
            checked(|request| {
                request.packages.clear();
                request.lock = Some("a".repeat(bytes));
            })
        };
        assert_eq!(lock(LOCK_BYTES_MAX), Ok(()));
        assert_eq!(lock(LOCK_BYTES_MAX + 1), Err(BadPackageRequest::Lock));
    }
}
