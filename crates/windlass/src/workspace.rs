//! Where a new session works: the current directory, one that was named, or a directory of the
//! session's own where the current one is a home or holds programs. From there the user's shell runs
//! what it runs next.

use std::path::{Path, PathBuf};

use anyhow::Context;
use windlass_confine::survey::homes::{homes, is_a_place_to_work, programs};
use windlass_protocol::confinement::Control;
use windlass_protocol::policy::PolicyRequest;

use crate::terminal::Terminal;

/// The directory of a new session.
#[derive(Debug, PartialEq, Eq)]
pub enum Workspace {
    /// The node makes one for the session.
    Own,
    Directory(PathBuf),
    /// Named although shells run what is in it: the session starts only if that can be held.
    Guarded(PathBuf),
}

impl Workspace {
    /// The named directory, or the current one if a session may work there. Says so if not.
    pub fn choose(named: Option<&Path>, terminal: &mut Terminal) -> anyhow::Result<Self> {
        if let Some(named) = named {
            let path = named.canonicalize().with_context(|| format!("no {}", named.display()))?;
            return Ok(match may_work_in(&path) {
                true => Self::Directory(path),
                false => Self::Guarded(path),
            });
        }
        let here = std::env::current_dir().context("the current directory is gone")?;
        if may_work_in(&here) {
            return Ok(Self::Directory(here));
        }
        terminal.note(&format!(
            "the session works in a directory of its own: {} is a home, holds one, or is where programs \
             are, and your shell runs what is in it; name another directory with --workspace DIR",
            here.display()
        ))?;
        Ok(Self::Own)
    }

    pub fn directory(&self) -> Option<&Path> {
        match self {
            Self::Own => None,
            Self::Directory(path) | Self::Guarded(path) => Some(path),
        }
    }

    /// The policy that was asked for; in a guarded directory it requires that names are protected.
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

/// Whether a session may work in a directory and write there as a whole.
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
    fn a_guarded_directory_requires_that_names_are_protected() {
        let guarded = Workspace::Guarded("/people/ada".into());
        let required = guarded.required(None).unwrap().unwrap().required.unwrap();
        assert!(required.contains(&Control::Protected) && required.contains(&Control::Hidden));
        assert_eq!(Workspace::Own.required(None).unwrap(), None);
    }
}
