//! The session directory: what the node makes on disk for one session. This is its workspace, its family
//! directory and its temporary directory.

use std::io;
use std::path::{Path, PathBuf};

use windlass_beneath::Directory;
use windlass_protocol::api::CreateSession;
use windlass_protocol::kinds::agent::is_agent;
use windlass_protocol::{ErrorCode, SessionId};

use super::SessionSpec;
use crate::agents::homes;
use crate::config::Config;
use crate::failure::Failure;
use crate::session_dirs;
use crate::trust::{CodeDirs, Trust, way};

/// The directories of one session.
#[derive(Debug, Clone)]
pub(crate) struct SessionDir {
    pub workspace: PathBuf,
    /// The node made the workspace for this session. Otherwise the client named it.
    pub workspace_is_new: bool,
    /// Whether the node made the workspace, for this session or for its parent.
    pub made_by_node: bool,
    /// The family directory. It is the session's first room: its twins' directories are made in it.
    pub family_dir: PathBuf,
    /// Its temporary directory, if it has no private `/tmp` or installs packages.
    pub tmp: Option<PathBuf>,
    /// Its code installs packages below the temporary directory.
    pub installs_packages: bool,
    /// The home of its agent, if its worker is one.
    pub agent_home: Option<PathBuf>,
    /// The virtual environment of its package environment, which it reads.
    pub environment: Option<PathBuf>,
}

impl SessionDir {
    /// Makes the directories, except the temporary one.
    pub fn make(config: &Config, trust: &Trust, spec: &SessionSpec<'_>) -> Result<Self, Failure> {
        let SessionSpec { id, wanted, in_new_workspace: made_by_node, .. } = *spec;
        let workspace = match &wanted.workspace {
            Some(named) => client_workspace(config, named, trust)?,
            None => {
                let fresh = config.workspace_of(id);
                make(config, &fresh, 0o755)
                    .map_err(|error| Failure::while_making("cannot create a workspace", &error))?;
                fresh
            }
        };
        let family_dir = session_dirs::make(config, id).map_err(|error| {
            Failure::while_making("cannot create the session's family directory", &error)
        })?;
        let workspace_is_new = wanted.workspace.is_none();
        let agent_home = agent_home(config, id, wanted)?;
        let environment = spec.environment.map(Path::to_owned);
        let (tmp, installs_packages) = (None, wanted.allow_packages);
        Ok(Self {
            workspace,
            workspace_is_new,
            made_by_node,
            family_dir,
            tmp,
            installs_packages,
            agent_home,
            environment,
        })
    }

    /// Makes the temporary directory.
    pub fn make_tmp(&mut self, config: &Config, path: PathBuf) -> Result<(), Failure> {
        make(config, &path, 0o700).map_err(|error| {
            Failure::while_making("cannot create the session's temporary directory", &error)
        })?;
        self.tmp = Some(path);
        Ok(())
    }

    /// The directory that its code installs packages in. It counts for the disk limit.
    pub fn scratch(&self) -> Option<PathBuf> {
        self.tmp.clone().filter(|_| self.installs_packages)
    }

    /// Removes the directories of a session that is not made. An empty workspace stays: it may be of an
    /// earlier session with the same id.
    pub fn remove(&self, config: &Config) {
        if let Some(tmp) = &self.tmp {
            session_dirs::remove(config, tmp);
        }
        session_dirs::remove_empty(config, &self.family_dir);
    }
}

/// The home of the session's agent, if its worker is one.
fn agent_home(
    config: &Config,
    id: &SessionId,
    wanted: &CreateSession,
) -> Result<Option<PathBuf>, Failure> {
    let is_agent = wanted.worker.as_deref().is_some_and(is_agent);
    let resume = wanted.agent.as_ref().and_then(|agent| agent.resume.as_ref());
    is_agent.then(|| homes::of_session(config, id, resume)).transpose()
}

/// Makes a directory in the node's state directory, if it is missing.
pub(super) fn make(config: &Config, path: &Path, mode: u32) -> io::Result<()> {
    let state = session_dirs::state(config)?;
    state.make_directory(session_dirs::inside(config, path)?, mode).map(drop)
}

/// The path with the part resolved that exists.
pub(super) fn real_beginning(path: &Path) -> PathBuf {
    let resolved = |above: &Path| {
        let real = above.canonicalize().ok()?;
        path.strip_prefix(above).ok().map(|rest| real.join(rest))
    };
    path.ancestors().find_map(resolved).unwrap_or_else(|| path.to_owned())
}

/// Refuses a real path in the node's own directories, which hold its tokens, secrets and records. What the node makes for
/// sessions is below them and is not refused.
pub(super) fn check_outside(config: &Config, path: &Path) -> Result<(), Failure> {
    for own in [&config.state_dir, &config.runtime_dir] {
        let real = own.canonicalize().unwrap_or_else(|_| own.clone());
        let Ok(inside) = path.strip_prefix(&real) else { continue };
        let is_for_sessions = config.written_dirs().iter().any(|dir| {
            dir.strip_prefix(own).is_ok_and(|dir| inside != dir && inside.starts_with(dir))
        });
        if !is_for_sessions {
            let message = format!(
                "a session cannot have {}: it is in a directory of the node itself",
                path.display()
            );
            return Err(Failure::new(ErrorCode::BadRequest, message));
        }
    }
    Ok(())
}

/// Resolves the workspace that a client named. A symlink on the path must not be one that a session could
/// have made, because it would choose the directory of the next session. The path is resolved once, so a
/// symlink that is swapped meanwhile is not followed. The recorded path has no symlinks, so a symlink found
/// on it later was made since then.
pub(super) fn client_workspace(
    config: &Config,
    named: &str,
    trust: &Trust,
) -> Result<PathBuf, Failure> {
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
    let places = CodeDirs { directories: way.with_links, ..CodeDirs::default() };
    if let Err(why) = trust.check(&places) {
        let real = way.real.display();
        return Err(refused(format!(
            "leads through a symlink: {why}; name the directory itself, {real}"
        )));
    }
    check_outside(config, &way.real)?;
    Directory::recorded(&way.real).map_err(|error| unusable(&error))?;
    if way.real.to_str().is_none() {
        return Err(refused(format!("is {}, whose path is not UTF-8", way.real.display())));
    }
    Ok(way.real)
}
