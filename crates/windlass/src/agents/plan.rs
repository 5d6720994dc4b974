//! What an installation or its removal would change: decided from what the files say, and only
//! then done.

use std::path::{Path, PathBuf};

use serde_json::{Map, Value};

use super::client::{Client, Facts, Scope};
use super::document::{self, EditError, Emptied};
use super::places::Places;
use super::store::{self, Backup, StoreError, Worth};

/// What happens to a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Action {
    /// Made, with our entry in it.
    Created,
    Added,
    Updated,
    Unchanged,
    Removed,
    /// Put back as it was before we came, to the byte.
    Restored,
    /// It held nothing but our entry.
    Deleted,
    /// Our entry is not in it.
    Absent,
}

/// A change that has not been made yet.
#[derive(Debug)]
pub struct Plan {
    pub client: Client,
    pub scope: Scope,
    pub file: PathBuf,
    pub action: Action,
    /// Our entry: as it will be, or as it was.
    pub entry: Value,
    pub before: Option<String>,
    pub after: Option<String>,
}

#[derive(Debug, thiserror::Error)]
pub enum PlanError {
    #[error("{file}: {cause}")]
    Edit { file: PathBuf, cause: EditError },
    #[error(transparent)]
    Store(#[from] StoreError),
}

impl PlanError {
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
                "the file was left as it is; mend it there and run this again".to_owned()
            }
            Self::Edit { .. } => {
                "the file was left as it is; add or remove the entry by hand, docs/mcp.md shows it"
                    .to_owned()
            }
            Self::Store(error) => error.remedy(),
        }
    }
}

impl Plan {
    /// A file that we made, and that says nothing else, is not worth a copy when it is updated: it
    /// would stay behind when we leave.
    fn worth(&self) -> Worth {
        let facts = self.client.facts();
        let before = self.before.as_deref().unwrap_or_default();
        match document::read(facts, before) {
            Ok(Some(Value::Object(entry))) if is_installed_over(facts, "", &entry, before) => {
                Worth::Nothing
            }
            _ => Worth::Copy,
        }
    }
}

/// What putting our entry in would change.
pub fn install(
    places: &Places,
    client: Client,
    scope: Scope,
    command: &str,
) -> Result<Plan, PlanError> {
    let facts = client.facts();
    let (file, before) = choose(facts, &places.files(client, scope))?;
    let failed = |cause| PlanError::Edit { file: file.clone(), cause };
    let text = before.as_deref().unwrap_or_default();
    let existing = document::read(facts, text).map_err(failed)?;
    let entry = match &existing {
        Some(existing) => client.entry_over(command, existing),
        None => client.entry(command),
    };
    let after = document::set(facts, text, &entry).map_err(failed)?;
    let action = match (&before, &existing) {
        (None, _) => Action::Created,
        (Some(_), None) => Action::Added,
        (Some(before), Some(_)) if *before == after => Action::Unchanged,
        (Some(_), Some(_)) => Action::Updated,
    };
    let entry = document::read(facts, &after).map_err(failed)?.unwrap_or_default();
    Ok(Plan { client, scope, action, entry, before, after: Some(after), file })
}

/// What taking our entry out would change, for each file that has it.
pub fn uninstall(places: &Places, client: Client, scope: Scope) -> Result<Vec<Plan>, PlanError> {
    let facts = client.facts();
    let mut plans = Vec::new();
    for file in places.files(client, scope) {
        let Some(before) = store::read(&file)? else { continue };
        let failed = |cause| PlanError::Edit { file: file.clone(), cause };
        let Some(entry) = document::read(facts, &before).map_err(failed)? else { continue };
        let backup = store::read(&store::backup_path(&file)).ok().flatten();
        let (action, after) =
            taken_out(facts, &before, &entry, backup.as_deref()).map_err(failed)?;
        plans.push(Plan { client, scope, action, entry, before: Some(before), after, file });
    }
    Ok(plans)
}

/// The change that says that there is nothing to take out.
pub fn absent(places: &Places, client: Client, scope: Scope) -> Plan {
    let file = places.files(client, scope).swap_remove(0);
    let (entry, before, after) = (Value::Null, None, None);
    Plan { client, scope, file, action: Action::Absent, entry, before, after }
}

/// The text without our entry. If it is the backup and our entry, nobody else has changed it, and
/// it becomes the backup again, byte for byte; whether an empty list of servers was ours cannot be
/// told from the text alone.
fn taken_out(
    facts: &Facts,
    before: &str,
    entry: &Value,
    backup: Option<&str>,
) -> Result<(Action, Option<String>), EditError> {
    // A backup that has an entry of ours is of no use here.
    let backup = backup.filter(|text| matches!(document::read(facts, text), Ok(None)));
    let whole = entry.as_object().cloned().unwrap_or_default();
    if is_installed_over(facts, backup.unwrap_or_default(), &whole, before) {
        return Ok(match backup {
            Some(backup) => (Action::Restored, Some(backup.to_owned())),
            None => (Action::Deleted, None),
        });
    }
    let emptied = match backup {
        Some(backup) if document::has_section(facts, backup)? => Emptied::Keep,
        _ => Emptied::Remove,
    };
    Ok((Action::Removed, Some(document::remove(facts, before, emptied)?)))
}

fn is_installed_over(facts: &Facts, old: &str, entry: &Map<String, Value>, now: &str) -> bool {
    document::set(facts, old, entry).is_ok_and(|text| text == now)
}

/// Does it.
pub fn carry_out(plan: &Plan) -> Result<Backup, PlanError> {
    match (plan.action, plan.before.as_deref(), plan.after.as_deref()) {
        (Action::Unchanged | Action::Absent, ..) => Ok(Backup::None),
        (Action::Deleted, Some(before), _) => {
            store::delete(&plan.file, before)?;
            Ok(Backup::None)
        }
        (action, before, Some(after)) => {
            let worth = (plan.scope, plan.worth());
            let backup = store::replace(&plan.file, before, after, worth)?;
            if action == Action::Restored {
                store::drop_backup(&plan.file)?;
                return Ok(Backup::Removed);
            }
            Ok(backup)
        }
        (_, _, None) => Ok(Backup::None),
    }
}

/// The file to change: the one that has our entry, else the one with the last word, else a new one.
fn choose(facts: &Facts, files: &[PathBuf]) -> Result<(PathBuf, Option<String>), PlanError> {
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
