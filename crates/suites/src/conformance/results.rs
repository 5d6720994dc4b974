//! Reads the results that a suite wrote: one directory per scenario, named after scenario and time, with the
//! checks as JSON. The module `judge` decides what they mean.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result};
use serde::Deserialize;

/// The name of a scenario's directory is `server-NAME-2026-01-31T12-34-56-789Z`.
const DIRECTORY_START: &str = "server-";
const TIME_CHARS: usize = "-2026-01-31T12-34-56-789Z".len();

const CHECKS: &str = "checks.json";

/// The suite adds this check to every scenario: the messages match the schema of the revision.
const WIRE_CHECK: &str = "wire-schema-valid";

/// One check of a scenario.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct Check {
    pub id: String,
    pub status: CheckStatus,
    #[serde(default, rename = "errorMessage")]
    pub message: Option<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "UPPERCASE")]
pub enum CheckStatus {
    Success,
    Failure,
    /// The server does not follow a recommendation.
    Warning,
    Skipped,
    Info,
}

impl Check {
    pub fn is_bad(&self) -> bool {
        matches!(self.status, CheckStatus::Failure | CheckStatus::Warning)
    }

    /// Whether the check tested something other than the schema.
    pub fn is_tried(&self) -> bool {
        self.id != WIRE_CHECK && (self.is_bad() || self.status == CheckStatus::Success)
    }
}

/// The checks of every scenario that has a result, by the scenario's name.
pub fn read(directory: &Path) -> Result<BTreeMap<String, Vec<Check>>> {
    let mut results = BTreeMap::new();
    let entries =
        fs::read_dir(directory).with_context(|| format!("cannot read {}", directory.display()))?;
    for entry in entries {
        let entry = entry?;
        let name = entry.file_name();
        let Some(scenario) = name.to_str().and_then(scenario_of) else { continue };
        let path = entry.path().join(CHECKS);
        // A scenario that does not exist at a revision has an empty directory.
        let Ok(text) = fs::read_to_string(&path) else { continue };
        let checks = parse(&text).with_context(|| format!("cannot parse {}", path.display()))?;
        results.insert(scenario.to_owned(), checks);
    }
    Ok(results)
}

pub fn parse(text: &str) -> Result<Vec<Check>> {
    Ok(serde_json::from_str(text)?)
}

fn scenario_of(directory: &str) -> Option<&str> {
    let rest = directory.strip_prefix(DIRECTORY_START)?;
    let (name, time) = rest.split_at_checked(rest.len().checked_sub(TIME_CHARS)?)?;
    (time.starts_with('-') && time.ends_with('Z') && !name.is_empty()).then_some(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_scenario_is_named_by_its_directory_without_the_time() {
        let named = |directory| scenario_of(directory);
        assert_eq!(named("server-ping-2026-11-15T08-49-40-654Z"), Some("ping"));
        assert_eq!(
            named("server-server-sse-polling-2026-11-15T08-49-41-613Z"),
            Some("server-sse-polling")
        );
        assert_eq!(named("server--2026-11-15T08-49-41-613Z"), None);
        assert_eq!(named("server-ping"), None);
        assert_eq!(named("client-ping-2026-11-15T08-49-40-654Z"), None);
    }

    #[test]
    fn checks_are_read_with_their_words_and_without_the_rest() {
        let text = r#"[
            {"id": "a", "name": "A", "description": "d", "status": "SUCCESS", "timestamp": "t",
             "details": {"n": 1}},
            {"id": "b", "status": "WARNING", "errorMessage": "it should"},
            {"id": "wire-schema-valid", "status": "SUCCESS"},
            {"id": "c", "status": "SKIPPED"},
            {"id": "d", "status": "INFO"}
        ]"#;
        let checks = parse(text).unwrap();
        let seen: Vec<_> = checks.iter().map(|c| (&*c.id, c.is_bad(), c.is_tried())).collect();
        assert_eq!(
            seen,
            [
                ("a", false, true),
                ("b", true, true),
                ("wire-schema-valid", false, false),
                ("c", false, false),
                ("d", false, false),
            ]
        );
        assert_eq!(checks[1].message.as_deref(), Some("it should"));
    }

    #[test]
    fn a_message_of_the_wrong_shape_counts_as_tried() {
        let checks = parse(r#"[{"id": "wire-schema-valid", "status": "FAILURE"}]"#).unwrap();
        assert!(checks[0].is_bad());
    }

    #[test]
    fn a_status_that_nobody_knows_is_an_error_and_not_a_pass() {
        assert!(parse(r#"[{"id": "a", "status": "MAYBE"}]"#).is_err());
        assert!(parse(r#"{"id": "a"}"#).is_err());
    }

    #[test]
    fn results_are_read_from_a_directory_and_empty_ones_passed_over() {
        let directory = tempfile::tempdir().unwrap();
        let make = |name: &str| {
            let path = directory.path().join(format!("server-{name}-2026-11-15T08-49-40-654Z"));
            fs::create_dir(&path).unwrap();
            path
        };
        let checks = r#"[{"id": "ping", "status": "SUCCESS"}]"#;
        fs::write(make("ping").join(CHECKS), checks).unwrap();
        make("tools-list");
        let results = read(directory.path()).unwrap();
        assert_eq!(results.keys().collect::<Vec<_>>(), ["ping"]);
        assert_eq!(results["ping"].len(), 1);
    }
}
