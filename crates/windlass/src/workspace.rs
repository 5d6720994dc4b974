//! Chooses the workspace of a new session: the named directory, or the current one. If the current
//! directory is a home or holds programs, the node creates a separate directory, because the user's shell
//! executes files from homes and program directories.

use std::path::{Path, PathBuf};

use anyhow::Context;
use windlass_client::{Client, ClientError};
use windlass_confine::survey::homes::{homes, is_a_place_to_work, programs};
use windlass_protocol::TenantName;
use windlass_protocol::confinement::Control;
use windlass_protocol::policy::PolicyRequest;

use crate::node_access;
use crate::terminal::Terminal;

/// The workspace of a new session.
#[derive(Debug, PartialEq, Eq)]
pub enum WorkspaceChoice {
    /// The node creates a directory for the session.
    MadeByNode,
    Directory(PathBuf),
    /// A named directory with files that shells execute. The session starts only if the machine can protect
    /// those files.
    Guarded(PathBuf),
}

impl WorkspaceChoice {
    /// The workspace of a session at the client's node. The directories of this machine are not for clients whose token
    /// has a tenant: the node creates a directory. It refuses a named one, and says why.
    pub async fn choose(
        client: &Client,
        named: Option<&Path>,
        terminal: &mut Terminal,
    ) -> anyhow::Result<Self> {
        if tenant_of(client).await?.is_some() {
            return Ok(named.map_or(Self::MadeByNode, |named| Self::Directory(named.to_owned())));
        }
        Self::choose_by(named, "--workspace", terminal)
    }

    /// The named directory, or the current one if a session may work there. Otherwise prints a note and lets
    /// the node create a directory. `option` is the option that names the directory.
    pub fn choose_by(
        named: Option<&Path>,
        option: &str,
        terminal: &mut Terminal,
    ) -> anyhow::Result<Self> {
        if let Some(named) = named {
            let failed = || format!("cannot use workspace {}", named.display());
            let path = named.canonicalize().with_context(failed)?;
            return Ok(match may_work_in(&path) {
                true => Self::Directory(path),
                false => Self::Guarded(path),
            });
        }
        let here = std::env::current_dir().context("the current directory does not exist")?;
        if may_work_in(&here) {
            return Ok(Self::Directory(here));
        }
        terminal.note(&format!(
            "the session gets a separate workspace: {} is a home, contains one, or holds programs that \
             your shell runs; choose another directory with {option} DIR",
            here.display()
        ))?;
        Ok(Self::MadeByNode)
    }

    pub fn directory(&self) -> Option<&Path> {
        match self {
            Self::MadeByNode => None,
            Self::Directory(path) | Self::Guarded(path) => Some(path),
        }
    }

    /// The requested policy. In a guarded directory it also requires the control `protected`.
    pub fn required(&self, policy: Option<PolicyRequest>) -> anyhow::Result<Option<PolicyRequest>> {
        let Self::Guarded(_) = self else { return Ok(policy) };
        let mut policy = policy.unwrap_or_default();
        let mut required = policy.resolve()?.required;
        if !required.contains(&Control::Protected) {
            required.push(Control::Protected);
        }
        policy.required = Some(required);
        Ok(Some(policy))
    }
}

/// The tenant of the client's token. Only tokens for a TCP door have one.
pub async fn tenant_of(client: &Client) -> Result<Option<TenantName>, ClientError> {
    if !node_access::is_remote() {
        return Ok(None);
    }
    Ok(client.node_status().await?.tenant)
}

/// Whether a session may use a directory as its workspace and write everywhere in it.
pub fn may_work_in(here: &Path) -> bool {
    let here = here.canonicalize().unwrap_or_else(|_| here.to_owned());
    is_a_place_to_work(&here, &homes(), &programs())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sessions_do_not_work_in_the_home_or_above_it() {
        let home = std::env::home_dir().unwrap();
        assert!(!may_work_in(Path::new("/")));
        assert!(!may_work_in(&home));
        assert!(may_work_in(&home.join("project")));
    }

    #[test]
    fn a_guarded_directory_requires_the_protected_control() {
        let guarded = WorkspaceChoice::Guarded("/people/ada".into());
        let required = guarded.required(None).unwrap().unwrap().required.unwrap();
        assert!(required.contains(&Control::Protected) && required.contains(&Control::Hidden));
        assert_eq!(WorkspaceChoice::MadeByNode.required(None).unwrap(), None);
    }
}
