//! Finds the directories that the sessions of a journal can write. The node runs nothing from there.

use std::path::PathBuf;

use windlass_journal::{Journal, NewSession};
use windlass_protocol::policy::expand_home;

use super::spec::Spec;

/// Maximum number of sessions to read from a journal.
const SESSIONS_MAX: usize = 1_000_000;

/// The directories that the sessions of a journal can write. For sessions of releases that kept no record of
/// these directories.
pub(crate) fn of_journal(journal: &Journal) -> Result<Vec<PathBuf>, String> {
    let sessions = journal.sessions(SESSIONS_MAX).map_err(|error| error.to_string())?;
    let mut roots = Vec::new();
    for facts in sessions {
        let id = &facts.created.id;
        roots.extend(of_created(&facts.created).map_err(|error| format!("session {id}: {error}"))?);
    }
    Ok(roots)
}

fn of_created(created: &NewSession) -> Result<Vec<PathBuf>, serde_json::Error> {
    let spec: Spec = serde_json::from_value(created.spec.clone())?;
    let home = std::env::home_dir();
    let writable = spec.policy.map_or_else(Vec::new, |policy| policy.writable);
    let writable = writable.iter().filter_map(|path| expand_home(path, home.as_deref()));
    let roots = writable.chain([PathBuf::from(&created.workspace)]);
    let real = |path: PathBuf| std::fs::canonicalize(&path).unwrap_or(path);
    // Leave out `/`: with it, no directory would be trusted at all.
    Ok(roots.map(real).filter(|root| root.is_absolute() && root.parent().is_some()).collect())
}
