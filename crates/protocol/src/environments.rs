//! Environments: interpreters for which workers are kept ready. What the user's file says of them,
//! and what a node tells of each.

use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use crate::event::StartedBy;
use crate::kinds::{self, WorkerKind};

/// The version of the file.
pub const FILE_VERSION: u32 = 1;

/// Workers that may wait for one environment at once.
pub const POOL_MAX: usize = 64;

/// Workers that wait where the file does not say how many.
pub const POOL_DEFAULT: usize = 3;

/// Modules in one preload list.
pub const PRELOAD_MAX: usize = 256;

/// Environments of one node: each is a process that stays.
pub const ENVIRONMENTS_MAX: usize = 16;

/// `environments.json`, as the user writes it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EnvironmentsFile {
    pub version: u32,
    pub environments: Vec<EnvironmentEntry>,
}

/// One environment.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EnvironmentEntry {
    /// A path to an interpreter or a virtual environment, or a name on PATH.
    pub interpreter: String,
    /// Modules that its workers have from the start, besides those of the standard library.
    #[serde(default)]
    pub preload: Vec<String>,
    /// How many workers wait.
    #[serde(default)]
    pub pool: Option<usize>,
}

/// Why a file of environments is not understood.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum EnvironmentsFileError {
    #[error("{0}")]
    Json(String),
    #[error("its version is {0}, and this release knows {FILE_VERSION}")]
    Version(u32),
    #[error("it names {0} environments, and {ENVIRONMENTS_MAX} is the most")]
    Environments(usize),
    #[error("the environment {0:?} has a pool of more than {POOL_MAX}")]
    Pool(String),
    #[error("the environment {0:?} preloads more than {PRELOAD_MAX} modules")]
    Preload(String),
    #[error("{0:?} is not the name of a module")]
    Module(String),
}

impl EnvironmentsFile {
    pub fn parse(text: &str) -> Result<Self, EnvironmentsFileError> {
        let file: Self = serde_json::from_str(text)
            .map_err(|error| EnvironmentsFileError::Json(error.to_string()))?;
        if file.version != FILE_VERSION {
            return Err(EnvironmentsFileError::Version(file.version));
        }
        if file.environments.len() > ENVIRONMENTS_MAX {
            return Err(EnvironmentsFileError::Environments(file.environments.len()));
        }
        for entry in &file.environments {
            if entry.pool.is_some_and(|pool| pool > POOL_MAX) {
                return Err(EnvironmentsFileError::Pool(entry.interpreter.clone()));
            }
            if entry.preload.len() > PRELOAD_MAX {
                return Err(EnvironmentsFileError::Preload(entry.interpreter.clone()));
            }
            if let Some(module) = entry.preload.iter().find(|name| !is_module(name)) {
                return Err(EnvironmentsFileError::Module(module.clone()));
            }
        }
        Ok(file)
    }

    /// What there is without a file: the usual interpreter of each kind whose workers can be forked from a
    /// zygote, and nothing but its standard library.
    pub fn default_entries() -> Vec<EnvironmentEntry> {
        let forked = kinds::ALL.iter().filter(|kind| kind.starts_by(StartedBy::Zygote));
        let entry = |kind: &WorkerKind| EnvironmentEntry {
            interpreter: kind.interpreter.to_owned(),
            preload: Vec::new(),
            pool: None,
        };
        forked.map(entry).collect()
    }
}

/// Identifiers with dots between them.
fn is_module(name: &str) -> bool {
    let is_word = |word: &str| {
        word.chars().next().is_some_and(|first| first.is_alphabetic() || first == '_')
            && word.chars().all(|char| char.is_alphanumeric() || char == '_')
    };
    name.split('.').all(is_word)
}

/// `GET /v1/environments`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, IntoParams)]
pub struct EnvironmentsQuery {
    /// First wait until none of them is on its way, for so long at most.
    #[serde(default)]
    pub wait_ms: u64,
}

/// Its answer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct EnvironmentList {
    pub environments: Vec<Environment>,
    /// Why the user's file is not used.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

/// An environment as it is at this moment.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Environment {
    /// As the file names it.
    pub interpreter: String,
    /// The program that this is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub program: Option<String>,
    pub preload: Vec<String>,
    pub zygote: ZygoteInfo,
    pub pool: PoolInfo,
}

/// The process that an environment's workers are forked from.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ZygoteInfo {
    pub state: ZygoteState,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pid: Option<u32>,
    /// What it takes, counting what it shares with its workers as its share.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pss_kib: Option<u64>,
    /// Modules that could not be imported, and why.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub missing: Vec<String>,
    /// Why there is none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum ZygoteState {
    /// Not wanted: nobody has asked for a while, or workers are started without.
    None,
    Starting,
    Ready,
    /// Tried again later.
    Failed,
}

/// Workers that wait.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct PoolInfo {
    pub size: usize,
    pub ready: usize,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_read_and_checked() {
        let good = r#"{"version": 1, "environments": [
            {"interpreter": "python3", "preload": ["numpy", "os.path"], "pool": 4}]}"#;
        let file = EnvironmentsFile::parse(good).unwrap();
        assert_eq!(file.environments[0].preload, ["numpy", "os.path"]);
        let many = vec![r#"{"interpreter": "python3"}"#; ENVIRONMENTS_MAX + 1].join(",");
        let many = format!(r#"{{"version": 1, "environments": [{many}]}}"#);
        for (bad, why) in [
            (many, "names 17 environments"),
            (good.replace("\"version\": 1", "\"version\": 2"), "version is 2"),
            (good.replace("\"pool\": 4", "\"pool\": 65"), "more than 64"),
            (good.replace("numpy", "import os"), "not the name of a module"),
            (good.replace("\"pool\"", "\"pools\""), "unknown field"),
        ] {
            let error = EnvironmentsFile::parse(&bad).unwrap_err().to_string();
            assert!(error.contains(why), "{error}");
        }
    }
}
