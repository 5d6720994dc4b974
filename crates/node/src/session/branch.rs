//! Sessions that work in a copy of a directory, to try something while the directory stays as it is.

use std::io;
use std::path::{Path, PathBuf};

use windlass_beneath::Directory;
use windlass_protocol::api::{CopyScope, CreateSession};
use windlass_protocol::policy::Policy;
use windlass_protocol::{ErrorCode, SessionId};

use super::copying::copy::{self, InstalledDirs, NotCopied};
use super::copying::{cannot_copy, check_hidden};
use crate::config::Config;
use crate::context::Context;
use crate::failure::Failure;
use crate::session_dirs;

/// The copy of a directory, as the workspace of a session.
#[derive(Debug)]
pub(super) struct WorkspaceCopy {
    pub path: PathBuf,
    /// The directory that was copied.
    pub from: String,
    pub left_out: NotCopied,
}

impl WorkspaceCopy {
    /// Makes the copy, if the client wants one. It is in the directory that the node has for the session, where no other
    /// session can write.
    pub fn make(
        context: &Context,
        id: &SessionId,
        wanted: &CreateSession,
        policy: &Policy,
    ) -> Result<Option<Self>, Failure> {
        let Some(scope) = wanted.copy_workspace else { return Ok(None) };
        let Some(named) = &wanted.workspace else {
            let message = "copy_workspace needs a workspace, which is copied";
            return Err(Failure::new(ErrorCode::BadRequest, message));
        };
        let from = context.host.provision.client_workspace(named)?;
        check_hidden(context, Some(policy), &from)?;
        // A worker that cannot be started is told before the copy, which may take long.
        context.host.workers.recipe(wanted, &from)?;
        let path = context.config.workspace_of(id);
        let into = new_directory(&context.config, &path).map_err(|error| cannot_copy(&error))?;
        match fill(&from, &into, scope) {
            Ok(left_out) => {
                for session in context.sessions.handles() {
                    context.host.placeholders.leave_out(&session.id, &from, &into);
                }
                let from = from.display().to_string();
                Ok(Some(Self { path, from, left_out }))
            }
            // Ok(Some(Self { path, from: from.display().to_string(), left_out })),
            Err(failure) => {
                session_dirs::remove(&context.config, &path);
                Err(failure)
            }
        }
    }
}

/// Makes a directory in the node's state directory. One that is there already is an error: it may be of an earlier session
/// with this id.
fn new_directory(config: &Config, path: &Path) -> io::Result<Directory> {
    let state = session_dirs::state(config)?;
    state.make_directory(session_dirs::inside(config, &config.workspaces_dir())?, 0o755)?;
    state.create_directory(session_dirs::inside(config, path)?, 0o755)
}

fn fill(from: &Path, into: &Directory, scope: CopyScope) -> Result<NotCopied, Failure> {
    // A link would lead to a directory that this session may not be able to read.
    copy::copy(from, into, scope, InstalledDirs::Omit)
}
