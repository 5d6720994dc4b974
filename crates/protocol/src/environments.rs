//! Environments: interpreters with a pool of ready workers. The user's configuration file, and the node's
//! report of each environment.

use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use crate::event::StartedBy;
use crate::kinds::{self, WorkerKind};
use crate::packages::PackageEnvironment;

/// The version of the configuration file.
pub const FILE_VERSION: u32 = 1;

/// Maximum pool size of one environment.
pub const POOL_MAX: usize = 64;

/// Pool size if the file sets none.
pub const POOL_DEFAULT: usize = 3;

/// Maximum number of modules in one preload list.
pub const PRELOAD_MAX: usize = 256;

/// Maximum number of environments of one node. Each environment is a long-running process.
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
    /// The kind of worker. Default: `python`.
    #[serde(default = "default_worker", skip_serializing_if = "is_default_worker")]
    pub worker: String,
    /// A path to an interpreter or a virtual environment, or a name on PATH.
    pub interpreter: String,
    /// Modules that are preloaded into its workers, in addition to those of the standard library.
    #[serde(default)]
    pub preload: Vec<String>,
    /// The pool size. Default: [`POOL_DEFAULT`].
    #[serde(default)]
    pub pool: Option<usize>,
}

/// Why a configuration file of environments is invalid.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum EnvironmentsFileError {
    #[error("{0}")]
    Json(String),
    #[error("the file's version is {0}, but this release reads version {FILE_VERSION}")]
    Version(u32),
    #[error("the file names {0} environments, more than the limit of {ENVIRONMENTS_MAX}")]
    Environments(usize),
    #[error("the environment {0:?} has a pool size of more than {POOL_MAX}")]
    Pool(String),
    #[error("the environment {0:?} preloads more than {PRELOAD_MAX} modules")]
    Preload(String),
    #[error("{0:?} in a preload list is not a module name")]
    Module(String),
    #[error("the environment {interpreter:?} has the worker {worker:?}, which has no zygotes")]
    Worker { interpreter: String, worker: String },
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
            if !kinds::find(&entry.worker).is_some_and(|kind| kind.starts_by(StartedBy::Zygote)) {
                let (interpreter, worker) = (entry.interpreter.clone(), entry.worker.clone());
                return Err(EnvironmentsFileError::Worker { interpreter, worker });
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

    /// The environments of a node without a configuration file: the default interpreter of each worker kind
    /// that a zygote can fork, with only its standard library.
    pub fn default_entries() -> Vec<EnvironmentEntry> {
        let forked = kinds::ALL.iter().filter(|kind| kind.starts_by(StartedBy::Zygote));
        let entry = |kind: &WorkerKind| EnvironmentEntry {
            worker: kind.name.to_owned(),
            interpreter: kind.interpreter.to_owned(),
            preload: Vec::new(),
            pool: None,
        };
        forked.map(entry).collect()
    }
}

fn default_worker() -> String {
    kinds::DEFAULT.name.to_owned()
}

fn is_default_worker(worker: &String) -> bool {
    *worker == kinds::DEFAULT.name
}

/// Whether the name consists of identifiers separated by dots.
fn is_module(name: &str) -> bool {
    let is_word = |word: &str| {
        word.chars().next().is_some_and(|first| first.is_alphabetic() || first == '_')
            && word.chars().all(|char| char.is_alphanumeric() || char == '_')
    };
    name.split('.').all(is_word)
}

/// The query of `GET /v1/environments`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub struct EnvironmentsQuery {
    /// Wait at most this long until no environment is starting.
    #[serde(default)]
    pub wait_ms: u64,
}

/// The reply of `GET /v1/environments`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct EnvironmentList {
    pub environments: Vec<Environment>,
    /// Why the user's configuration file is not used.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// The package environments, which the node builds.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub packages: Vec<PackageEnvironment>,
}

/// The current state of an environment.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Environment {
    /// The kind of worker.
    #[serde(default = "default_worker")]
    pub worker: String,
    /// The interpreter as the file names it.
    pub interpreter: String,
    /// The program that the name resolves to.
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
    /// Proportional set size: memory shared with workers counts in proportion.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pss_kib: Option<u64>,
    /// Modules that could not be imported, with the reason.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub missing: Vec<String>,
    /// Why there is no zygote.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum ZygoteState {
    /// Not needed: no session used the environment for a while, or workers start without a zygote.
    None,
    Starting,
    Ready,
    /// The start failed; the node retries it later.
    Failed,
}

/// The pool of an environment.
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
            (many, "names 17 environments, more than the limit of 16"),
            (good.replace("\"version\": 1", "\"version\": 2"), "version is 2"),
            (good.replace("\"pool\": 4", "\"pool\": 65"), "more than 64"),
            (good.replace("numpy", "import os"), "not a module name"),
            (good.replace("\"pool\"", "\"pools\""), "unknown field"),
            (good.replace("\"pool\"", "\"worker\": \"shell\", \"pool\""), "has no zygotes"),
        ] {
            let error = EnvironmentsFile::parse(&bad).unwrap_err().to_string();
            assert!(error.contains(why), "{error}");
        }
    }
}
