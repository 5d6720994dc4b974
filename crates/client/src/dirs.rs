//! The two directories that a node and its clients share. Owns where they are, and checks that only
//! their user can write to them. Never reads their files.

use std::ffi::OsString;
use std::fs::{self, DirBuilder};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};

/// The longest path a unix socket can have: `sun_path` without its closing NUL.
const SOCKET_PATH_BYTES_MAX: usize = 107;

/// The directories of one node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Dirs {
    /// Sockets and locks; may vanish at a reboot.
    pub runtime: PathBuf,
    /// Journal, log and history; survives a reboot.
    pub state: PathBuf,
}

/// Why a directory cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum DirsError {
    #[error("cannot create the directory {path}: {cause}")]
    Create { path: PathBuf, cause: io::Error },
    #[error("{path} is not a directory")]
    NotADirectory { path: PathBuf },
    #[error("{path} belongs to user {owner}, not to you (user {user})")]
    Foreign { path: PathBuf, owner: u32, user: u32 },
    #[error("{path} can be written by others (mode {mode:o})")]
    Open { path: PathBuf, mode: u32 },
    #[error(
        "the socket path {path} is {bytes} bytes long; a unix socket holds {SOCKET_PATH_BYTES_MAX}"
    )]
    SocketPathTooLong { path: PathBuf, bytes: usize },
    #[error("no state directory: neither XDG_STATE_HOME nor HOME is set")]
    NoHome,
}

impl DirsError {
    pub fn remedy(&self) -> String {
        match self {
            Self::Create { .. } => {
                "make its parent writable, or set WINDLASS_RUNTIME_DIR and WINDLASS_STATE_DIR"
                    .into()
            }
            Self::NotADirectory { path } => {
                format!(
                    "remove {}, or set WINDLASS_RUNTIME_DIR and WINDLASS_STATE_DIR",
                    path.display()
                )
            }
            Self::Foreign { .. } => {
                "set WINDLASS_RUNTIME_DIR and WINDLASS_STATE_DIR to directories of your own".into()
            }
            Self::Open { path, .. } => format!("run: chmod 700 {}", path.display()),
            Self::SocketPathTooLong { .. } => "set WINDLASS_RUNTIME_DIR to a shorter path".into(),
            Self::NoHome => "set HOME or WINDLASS_STATE_DIR".into(),
        }
    }
}

impl Dirs {
    /// The directories that the environment names, created and checked.
    pub fn from_env() -> Result<Self, DirsError> {
        let uid = rustix::process::geteuid().as_raw();
        let (runtime, state) = choose(uid, |name| std::env::var_os(name), is_own_directory)?;
        Self::at(runtime, state)
    }

    /// These directories, created and checked.
    pub fn at(runtime: impl Into<PathBuf>, state: impl Into<PathBuf>) -> Result<Self, DirsError> {
        let uid = rustix::process::geteuid().as_raw();
        let dirs = Self { runtime: own(runtime.into(), uid)?, state: own(state.into(), uid)? };
        let path = dirs.socket();
        let bytes = path.as_os_str().as_bytes().len();
        if bytes > SOCKET_PATH_BYTES_MAX {
            return Err(DirsError::SocketPathTooLong { path, bytes });
        }
        Ok(dirs)
    }

    /// Where the node listens.
    pub fn socket(&self) -> PathBuf {
        self.runtime.join("node.sock")
    }

    /// Held by the client that starts a node.
    pub fn start_lock(&self) -> PathBuf {
        self.runtime.join("start.lock")
    }

    /// The file that holds the token of the node's TCP door.
    pub fn token(&self) -> PathBuf {
        self.state.join("token")
    }

    /// The file with the named tokens of the node's TCP door.
    pub fn named_tokens(&self) -> PathBuf {
        self.state.join("tokens")
    }

    /// The file that gets the node's standard error.
    pub fn log(&self) -> PathBuf {
        self.state.join("node.log")
    }
}

/// Chooses the runtime and the state directory from environment variables. Many agents start their
/// servers with only a few variables. Without XDG_RUNTIME_DIR, this function tries the conventional
/// `/run/user/UID` before `/tmp`, so that such servers reach the same node as all other programs.
fn choose(
    uid: u32,
    variable: impl Fn(&str) -> Option<OsString>,
    is_own: impl Fn(&Path, u32) -> bool,
) -> Result<(PathBuf, PathBuf), DirsError> {
    let path = |name: &str| variable(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let usual = || Some(PathBuf::from(format!("/run/user/{uid}"))).filter(|dir| is_own(dir, uid));
    let runtime = path("WINDLASS_RUNTIME_DIR")
        .or_else(|| path("XDG_RUNTIME_DIR").or_else(usual).map(|base| base.join("windlass")))
        .unwrap_or_else(|| PathBuf::from(format!("/tmp/windlass-{uid}")));
    let state = path("WINDLASS_STATE_DIR")
        .or_else(|| path("XDG_STATE_HOME").map(|base| base.join("windlass")))
        .or_else(|| path("HOME").map(|home| home.join(".local/state/windlass")))
        .ok_or(DirsError::NoHome)?;
    Ok((runtime, state))
}

fn is_own_directory(path: &Path, uid: u32) -> bool {
    fs::symlink_metadata(path).is_ok_and(|about| about.is_dir() && about.uid() == uid)
}

/// Creates `path` with access for its user only, or checks an existing one.
fn own(path: PathBuf, uid: u32) -> Result<PathBuf, DirsError> {
    let create = |path: &Path, cause| DirsError::Create { path: path.to_owned(), cause };
    // A node that is started from here runs in another directory, where a relative path means
    // another path.
    let path = std::path::absolute(&path).map_err(|cause| create(&path, cause))?;
    let made = DirBuilder::new().recursive(true).mode(0o700).create(&path);
    // Check the symlink as well as its target: in a shared /tmp another user's symlink may lead
    // anywhere.
    let link = fs::symlink_metadata(&path).map_err(|cause| match made {
        Err(cause) => create(&path, cause),
        Ok(()) => create(&path, cause),
    })?;
    let target = fs::metadata(&path).map_err(|cause| create(&path, cause))?;
    if !target.is_dir() {
        return Err(DirsError::NotADirectory { path });
    }
    if let Some(owner) = [link.uid(), target.uid()].into_iter().find(|owner| *owner != uid) {
        return Err(DirsError::Foreign { path, owner, user: uid });
    }
    let mode = target.mode() & 0o777;
    if mode & 0o022 != 0 {
        return Err(DirsError::Open { path, mode });
    }
    Ok(path)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[track_caller]
    fn check_choice(environment: &[(&str, &str)], runtime: &str, state: &str) {
        let found = choose(
            7,
            |name| environment.iter().find(|(key, _)| *key == name).map(|(_, value)| value.into()),
            |_, _| false,
        );
        assert_eq!(found.unwrap(), (PathBuf::from(runtime), PathBuf::from(state)));
    }

    #[test]
    fn the_environment_chooses_the_directories_most_specific_first() {
        check_choice(&[("HOME", "/h")], "/tmp/windlass-7", "/h/.local/state/windlass");
        check_choice(
            &[("HOME", "/h"), ("XDG_RUNTIME_DIR", "/run/7"), ("XDG_STATE_HOME", "/s")],
            "/run/7/windlass",
            "/s/windlass",
        );
        check_choice(
            &[
                ("WINDLASS_RUNTIME_DIR", "/r"),
                ("WINDLASS_STATE_DIR", "/w"),
                ("XDG_RUNTIME_DIR", "/x"),
            ],
            "/r",
            "/w",
        );
        check_choice(
            &[("HOME", "/h"), ("XDG_RUNTIME_DIR", "")],
            "/tmp/windlass-7",
            "/h/.local/state/windlass",
        );
        assert!(matches!(choose(7, |_| None, |_, _| false), Err(DirsError::NoHome)));
    }

    #[test]
    fn a_filtered_environment_leads_to_the_same_runtime_directory() {
        let home = |name: &str| (name == "HOME").then(|| OsString::from("/h"));
        let usual = choose(7, home, |path, uid| path == Path::new("/run/user/7") && uid == 7);
        assert_eq!(usual.unwrap().0, Path::new("/run/user/7/windlass"));
        assert_eq!(choose(7, home, |_, _| false).unwrap().0, Path::new("/tmp/windlass-7"));
    }

    #[test]
    fn missing_directories_are_made_for_their_user_alone() {
        let base = tempfile::tempdir().unwrap();
        let dirs = Dirs::at(base.path().join("a/run"), base.path().join("b")).unwrap();
        for path in [&dirs.runtime, &dirs.state] {
            assert_eq!(fs::metadata(path).unwrap().mode() & 0o777, 0o700);
        }
    }

    #[test]
    fn a_directory_that_others_can_write_is_refused_with_the_remedy() {
        let base = tempfile::tempdir().unwrap();
        let open = base.path().join("open");
        fs::create_dir(&open).unwrap();
        fs::set_permissions(&open, fs::Permissions::from_mode(0o770)).unwrap();
        let error = Dirs::at(&open, base.path().join("state")).unwrap_err();
        assert!(matches!(error, DirsError::Open { mode: 0o770, .. }), "{error:?}");
        assert_eq!(error.remedy(), format!("run: chmod 700 {}", open.display()));
    }

    #[test]
    fn a_directory_of_someone_else_is_refused() {
        let error = own(std::env::temp_dir(), 12_345).unwrap_err();
        assert!(matches!(error, DirsError::Foreign { user: 12_345, .. }), "{error:?}");
    }

    #[test]
    fn a_file_in_the_place_of_a_directory_is_refused() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let uid = rustix::process::geteuid().as_raw();
        let error = own(file.path().to_owned(), uid).unwrap_err();
        assert!(matches!(error, DirsError::NotADirectory { .. }), "{error:?}");
    }

    #[test]
    fn a_socket_path_that_does_not_fit_is_refused() {
        let base = tempfile::tempdir().unwrap();
        let long = base.path().join("x".repeat(100));
        let error = Dirs::at(long, base.path().join("s")).unwrap_err();
        assert!(matches!(error, DirsError::SocketPathTooLong { .. }), "{error:?}");
    }
}
