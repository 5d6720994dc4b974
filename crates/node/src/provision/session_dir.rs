//! What the node makes on disk for one session: its workspace, the directory for its twins, and its
//! temporary directory.

use std::io;
use std::path::{Path, PathBuf};

use windlass_beneath::Directory;
use windlass_protocol::api::CreateSession;
use windlass_protocol::{ErrorCode, SessionId};

use crate::config::Config;
use crate::failure::Failure;
use crate::session_dirs;
use crate::trust::{Places, Trust, way};

/// The directories of one session.
#[derive(Debug, Clone)]
pub(crate) struct SessionDir {
    pub workspace: PathBuf,
    /// The workspace was made for this session; otherwise it is the client's.
    pub workspace_is_new: bool,
    /// Where the directories of its twins are made.
    pub family: PathBuf,
    /// Its temporary directory, where it has no private `/tmp`.
    pub tmp: Option<PathBuf>,
}

impl SessionDir {
    /// Makes them, but for the temporary directory.
    pub fn make(
        config: &Config,
        trust: &Trust,
        id: &SessionId,
        wanted: &CreateSession,
    ) -> Result<Self, Failure> {
        let workspace = match &wanted.workspace {
            Some(named) => client_workspace(named, trust)?,
            None => {
                let fresh = config.workspace_of(id);
                make(config, &fresh, 0o755)
                    .map_err(|error| Failure::while_making("cannot create a workspace", &error))?;
                fresh
            }
        };
        let family = session_dirs::make(config, id).map_err(|error| {
            Failure::while_making("cannot create the session's directory for twins", &error)
        })?;
        Ok(Self { workspace, workspace_is_new: wanted.workspace.is_none(), family, tmp: None })
    }

    /// Makes the temporary directory.
    pub fn make_tmp(&mut self, config: &Config, path: PathBuf) -> Result<(), Failure> {
        make(config, &path, 0o700).map_err(|error| {
            Failure::while_making("cannot create the session's temporary directory", &error)
        })?;
        self.tmp = Some(path);
        Ok(())
    }

    /// Removes what was made for a session that does not come to be. An empty workspace stays: it may be
    /// that of an earlier session of the same id.
    pub fn remove(&self, config: &Config) {
        if let Some(tmp) = &self.tmp {
            session_dirs::remove(config, tmp);
        }
        session_dirs::remove_empty(config, &self.family);
    }
}

/// Makes one of the node's own directories, where it is missing.
pub(super) fn make(config: &Config, path: &Path, mode: u32) -> io::Result<()> {
    let state = session_dirs::state(config)?;
    state.make_directory(session_dirs::inside(config, path)?, mode).map(drop)
}

/// Where a client's workspace really is. A link on the way must not be one that a session could have
/// put there: it would choose the directory in which the next session works. The path is resolved once,
/// so a link that is swapped meanwhile is not followed. It is recorded without links, so that a link that
/// is on it later is known to have been put there since.
fn client_workspace(named: &str, trust: &Trust) -> Result<PathBuf, Failure> {
    let refused =
        |why: String| Failure::new(ErrorCode::BadRequest, format!("the workspace {named:?} {why}"));
    if !Path::new(named).is_absolute() {
        return Err(refused("is not an absolute path".to_owned()));
    }
    let unusable = |error: &(dyn std::error::Error + 'static)| {
        Failure::of_machine(format_args!("cannot open the workspace {named:?}"), error)
            .unwrap_or_else(|| refused(format!("is not a directory: {error}")))
    };
    let way = way::resolve(Path::new(named)).map_err(|error| unusable(&error))?;
    let places = Places { directories: way.with_links, ..Places::default() };
    if let Err(why) = trust.check(&places) {
        let real = way.real.display();
        return Err(refused(format!(
            "leads through a link: {why}; name the directory itself, {real}"
        )));
    }
    Directory::recorded(&way.real).map_err(|error| unusable(&error))?;
    if way.real.to_str().is_none() {
        return Err(refused(format!("is {}, whose path is not UTF-8", way.real.display())));
    }
    Ok(way.real)
}
