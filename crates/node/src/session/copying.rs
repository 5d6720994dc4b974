//! Copies of workspaces, for twins and branches: [`copy`] copies a workspace, [`hidden`] decides whether it may be
//! copied.

pub(super) mod copy;
mod hidden;

use std::path::Path;

use windlass_protocol::ErrorCode;
use windlass_protocol::confinement::Isolation;
use windlass_protocol::policy::Policy;

use self::copy::InstalledDirs;
use crate::context::Context;
use crate::failure::Failure;

/// Links to installed directories of the original's workspace only if the twin cannot write through the link.
/// Nothing separates twins without confinement, or in directories that both may write.
pub(super) fn installed_dirs(
    isolation: Option<Isolation>,
    policy: Option<&Policy>,
    workspace: &Path,
) -> InstalledDirs {
    let Some(policy) = policy else { return InstalledDirs::Omit };
    let is_confined = matches!(isolation, Some(Isolation::Full | Isolation::Landlock));
    let home = std::env::home_dir();
    if is_confined && !hidden::is_shared_writable(workspace, policy, home.as_deref()) {
        InstalledDirs::Link
    } else {
        InstalledDirs::Omit
    }
}

/// Refuses a workspace that holds hidden paths: the copy would show them.
pub(super) fn check_hidden(
    context: &Context,
    policy: Option<&Policy>,
    workspace: &Path,
) -> Result<(), Failure> {
    let home = std::env::home_dir();
    match hidden::hidden_in(workspace, policy, home.as_deref(), &context.config) {
        None => Ok(()),
        Some(path) => Err(refused(&format!(
            "{} is hidden from the session, but would be visible in a copy of its workspace {}; \
             use a workspace that holds no hidden path",
            path.display(),
            workspace.display()
        ))),
    }
}

pub(super) fn cannot_copy(error: &std::io::Error) -> Failure {
    Failure::while_making("cannot copy the workspace", error)
}

pub(super) fn refused(message: &str) -> Failure {
    Failure::new(ErrorCode::ForkRefused, message)
}
