//! Plans the change of a configuration file for an installation or a removal, and carries it out.

use std::path::{Path, PathBuf};

use serde_json::{Map, Value};

use super::client::{AgentClient, ClientFacts, ConfigScope};
use super::config_paths::ConfigPaths;
use super::document::{self, EditError, EmptySection};
use super::store::{self, Backup, BackupNeed, StoreError};

/// What happens to a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub enum ConfigAction {
    /// The file is new and holds the Windlass entry.
    Created,
    Added,
    Updated,
    Unchanged,
    Removed,
    /// The file gets back its content from before the installation, byte for byte.
    Restored,
    /// The file held only the Windlass entry and is deleted.
    Deleted,
    /// The file has no Windlass entry.
    Absent,
}

/// A planned change of one file.
#[derive(Debug)]
pub struct ConfigPlan {
    pub client: AgentClient,
    pub scope: ConfigScope,
    pub file: PathBuf,
    pub action: ConfigAction,
    /// The Windlass entry after an installation, or before a removal.
    pub entry: Value,
    pub before: Option<String>,
    pub after: Option<String>,
}

#[derive(Debug, thiserror::Error)]
pub enum ConfigPlanError {
    #[error("{file}: {cause}")]
    Edit { file: PathBuf, cause: EditError },
    #[error(transparent)]
    Store(#[from] StoreError),
}

impl ConfigPlanError {
    pub fn code(&self) -> &'static str {
        match self {
            Self::Edit { cause: EditError::Syntax { .. }, .. } => "config_invalid",
            Self::Edit { .. } => "config_unexpected",
            Self::Store(error) => error.code(),
        }
    }

    pub fn remedy(&self) -> String {
        match self {
            Self::Edit { cause: EditError::Syntax { .. }, .. } => {
                "the file was not changed; fix the syntax error and run this again".to_owned()
            }
            Self::Edit { .. } => {
                "the file was not changed; add or remove the entry by hand, as docs/mcp.md shows"
                    .to_owned()
            }
            Self::Store(error) => error.remedy(),
        }
    }
}

impl ConfigPlan {
    /// A file with nothing but the Windlass entry needs no backup: the backup would be left behind after an
    /// uninstall.
    fn backup_need(&self) -> BackupNeed {
        let facts = self.client.facts();
        let before = self.before.as_deref().unwrap_or_default();
        match document::read(facts, before) {
            Ok(Some(Value::Object(entry))) if is_installed_over(facts, "", &entry, before) => {
                BackupNeed::Skip
            }
            _ => BackupNeed::Copy,
        }
    }
}

/// Plans to set the Windlass entry.
pub fn install(
    paths: &ConfigPaths,
    client: AgentClient,
    scope: ConfigScope,
    command: &str,
) -> Result<ConfigPlan, ConfigPlanError> {
    let facts = client.facts();
    let (file, before) = choose(facts, &paths.files(client, scope))?;
    let failed = |cause| ConfigPlanError::Edit { file: file.clone(), cause };
    let text = before.as_deref().unwrap_or_default();
    let existing = document::read(facts, text).map_err(failed)?;
    let entry = match &existing {
        Some(existing) => client.entry_over(command, existing),
        None => client.entry(command),
    };
    let after = document::set(facts, text, &entry).map_err(failed)?;
    let action = match (&before, &existing) {
        (None, _) => ConfigAction::Created,
        (Some(_), None) => ConfigAction::Added,
        (Some(before), Some(_)) if *before == after => ConfigAction::Unchanged,
        (Some(_), Some(_)) => ConfigAction::Updated,
    };
    let entry = document::read(facts, &after).map_err(failed)?.unwrap_or_default();
    Ok(ConfigPlan { client, scope, action, entry, before, after: Some(after), file })
}

/// Plans to remove the Windlass entry from each file that has it.
pub fn uninstall(
    paths: &ConfigPaths,
    client: AgentClient,
    scope: ConfigScope,
) -> Result<Vec<ConfigPlan>, ConfigPlanError> {
    let facts = client.facts();
    let mut plans = Vec::new();
    for file in paths.files(client, scope) {
        let Some(before) = store::read(&file)? else { continue };
        let failed = |cause| ConfigPlanError::Edit { file: file.clone(), cause };
        let Some(entry) = document::read(facts, &before).map_err(failed)? else { continue };
        let backup = store::read(&store::backup_path(&file)).ok().flatten();
        let (action, after) = removal(facts, &before, &entry, backup.as_deref()).map_err(failed)?;
        plans.push(ConfigPlan { client, scope, action, entry, before: Some(before), after, file });
    }
    Ok(plans)
}

/// The plan for a client without a Windlass entry.
pub fn absent(paths: &ConfigPaths, client: AgentClient, scope: ConfigScope) -> ConfigPlan {
    let file = paths.files(client, scope).swap_remove(0);
    let (entry, before, after) = (Value::Null, None, None);
    ConfigPlan { client, scope, file, action: ConfigAction::Absent, entry, before, after }
}

/// The action and the text without the Windlass entry. If the text equals the backup plus the entry, nothing
/// else changed since the installation, and the text becomes the backup byte for byte. The text alone does
/// not show whether Windlass created an empty list of servers.
fn removal(
    facts: &ClientFacts,
    before: &str,
    entry: &Value,
    backup: Option<&str>,
) -> Result<(ConfigAction, Option<String>), EditError> {
    // Ignore a backup that already has a Windlass entry.
    let backup = backup.filter(|text| matches!(document::read(facts, text), Ok(None)));
    let whole = entry.as_object().cloned().unwrap_or_default();
    if is_installed_over(facts, backup.unwrap_or_default(), &whole, before) {
        return Ok(match backup {
            Some(backup) => (ConfigAction::Restored, Some(backup.to_owned())),
            None => (ConfigAction::Deleted, None),
        });
    }
    let emptied = match backup {
        Some(backup) if document::has_section(facts, backup)? => EmptySection::Keep,
        _ => EmptySection::Remove,
    };
    Ok((ConfigAction::Removed, Some(document::remove(facts, before, emptied)?)))
}

fn is_installed_over(
    facts: &ClientFacts,
    old: &str,
    entry: &Map<String, Value>,
    now: &str,
) -> bool {
    document::set(facts, old, entry).is_ok_and(|text| text == now)
}

/// Carries out a plan.
pub fn carry_out(plan: &ConfigPlan) -> Result<Backup, ConfigPlanError> {
    match (plan.action, plan.before.as_deref(), plan.after.as_deref()) {
        (ConfigAction::Unchanged | ConfigAction::Absent, ..) => Ok(Backup::None),
        (ConfigAction::Deleted, Some(before), _) => {
            store::delete(&plan.file, before)?;
            Ok(Backup::None)
        }
        (action, before, Some(after)) => {
            let options = (plan.scope, plan.backup_need());
            let backup = store::replace(&plan.file, before, after, options)?;
            if action == ConfigAction::Restored {
                store::drop_backup(&plan.file)?;
                return Ok(Backup::Removed);
            }
            Ok(backup)
        }
        (_, _, None) => Ok(Backup::None),
    }
}

/// The file to change: the one with the Windlass entry, else the one that overrides the others, else a new
/// one.
fn choose(
    facts: &ClientFacts,
    files: &[PathBuf],
) -> Result<(PathBuf, Option<String>), ConfigPlanError> {
    let mut chosen: Option<(&Path, String)> = None;
    for file in files.iter().rev() {
        let Some(text) = store::read(file)? else { continue };
        if matches!(document::read(facts, &text), Ok(Some(_))) {
            return Ok((file.clone(), Some(text)));
        }
        chosen.get_or_insert((file, text));
    }
    Ok(match chosen {
        Some((file, text)) => (file.to_owned(), Some(text)),
        None => (files[0].clone(), None),
    })
}
