//! The `[workers.NAME]` tables of the user's configuration file `config.toml`: further kinds of worker, and
//! settings of the built-in kinds. The file belongs to the user; no session can write it.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::Deserialize;
use serde::de::IgnoredAny;
use windlass_protocol::kinds;
use windlass_protocol::policy::PolicyRequest;

/// Maximum number of `[workers.NAME]` tables.
const WORKERS_MAX: usize = 64;

/// Maximum length of a worker's name.
const NAME_MAX: usize = 32;

/// The longest time that a worker may be given to become ready.
const READY_S_MAX: u64 = 600;

/// Maximum number of words of a command, files, extensions and variables of one worker.
const LIST_MAX: usize = 256;

/// The workers of the configuration file, or why the file is not used.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct WorkersConfig {
    pub entries: BTreeMap<String, WorkerEntry>,
    /// Whether what the start of each worker cost is recorded.
    pub start_figures: bool,
    pub error: Option<String>,
}

/// One `[workers.NAME]` table.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct WorkerEntry {
    /// The worker's program and its arguments. Required, except for a built-in kind.
    pub command: Vec<String>,
    /// The name of the language. Default: the worker's name.
    pub language: Option<String>,
    /// File name extensions, without the dot.
    pub extensions: Vec<String>,
    /// Environment variables of each session.
    pub environment: BTreeMap<String, String>,
    /// Files and directories that each session may read.
    pub files: Vec<PathBuf>,
    /// The policy of sessions that request none.
    pub policy: Option<PolicyRequest>,
    /// How many seconds a worker may take to become ready.
    pub ready_s: Option<u64>,
    /// The interpreter of a built-in kind.
    pub interpreter: Option<String>,
    /// The directory of the npm package `pyodide`, for the kind `pyodide`.
    pub package: Option<PathBuf>,
    /// A directory with wheels, for the kind `pyodide`.
    pub wheels: Option<PathBuf>,
}

/// A key of a `[workers.NAME]` table, for `docs/reference/configuration.md`.
#[derive(Debug, Clone, Copy)]
pub struct WorkerKey {
    pub key: &'static str,
    /// The kinds that take it: new ones, built-in ones, or all.
    pub kinds: &'static str,
    pub meaning: &'static str,
}

const fn worker_key(key: &'static str, kinds: &'static str, meaning: &'static str) -> WorkerKey {
    WorkerKey { key, kinds, meaning }
}

/// Every key of a `[workers.NAME]` table.
pub const WORKER_KEYS: [WorkerKey; 10] = [
    worker_key(
        "command",
        "new",
        "the worker's program and its arguments; required. The program is a name on PATH or an absolute path",
    ),
    worker_key("language", "new", "the name of the language; default: the name of the kind"),
    worker_key("extensions", "new", "file name extensions without the dot. No two kinds share one"),
    worker_key(
        "environment",
        "all",
        "environment variables of each session. A variable of the session's client wins",
    ),
    worker_key(
        "files",
        "all",
        "files and directories that each session may read, as absolute paths",
    ),
    worker_key(
        "policy",
        "all",
        "the policy of sessions that request none, in the form of the HTTP API",
    ),
    worker_key(
        "ready_s",
        "all",
        "how many seconds a worker may take to become ready: 1 to 600; default 120 for `pyodide`, else 30",
    ),
    worker_key(
        "interpreter",
        "built in",
        "the interpreter of sessions that name none: a name on PATH or an absolute path. `python` and \
         `jupyter` do not use it",
    ),
    worker_key("package", "`pyodide`", "the directory of the npm package `pyodide`"),
    worker_key("wheels", "`pyodide`", "a directory with wheels, which each session can import"),
];

/// `config.toml`, as the user writes it. The command `windlass node` reads the tables `[node]`,
/// `[fleet]`, `[tenants]` and `[telemetry]`.
#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct ConfigText {
    start_figures: bool,
    workers: BTreeMap<String, WorkerEntry>,
    #[serde(rename = "node")]
    _node: IgnoredAny,
    #[serde(rename = "fleet")]
    _fleet: IgnoredAny,
    #[serde(rename = "tenants")]
    _tenants: IgnoredAny,
    #[serde(rename = "telemetry")]
    _telemetry: IgnoredAny,
}

/// Why a configuration file is not used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum WorkerConfigError {
    #[error("{0}")]
    Toml(String),
    #[error("the file has more than {WORKERS_MAX} workers")]
    TooMany,
    #[error(
        "[workers.{0}]: a name has at most {NAME_MAX} lowercase letters, digits and hyphens, and begins \
         with a letter"
    )]
    Name(String),
    #[error("[workers.{0}]: there is no command")]
    NoCommand(String),
    #[error("[workers.{0}]: the kind is built in, so it takes no {1}")]
    BuiltIn(String, &'static str),
    #[error("[workers.{0}]: only a built-in kind takes {1}")]
    NotBuiltIn(String, &'static str),
    #[error("[workers.{0}]: the path {1:?} is not absolute")]
    Relative(String, PathBuf),
    #[error("[workers.{0}]: the extension {1:?} belongs to {2}")]
    Extension(String, String, String),
    #[error("[workers.{0}]: ready_s is not between 1 and {READY_S_MAX}")]
    Ready(String),
    #[error("[workers.{0}]: a list has more than {LIST_MAX} items")]
    List(String),
}

impl WorkersConfig {
    pub fn parse(text: &str) -> Result<Self, WorkerConfigError> {
        let file: ConfigText = toml_edit::de::from_str(text)
            .map_err(|error| WorkerConfigError::Toml(error.to_string()))?;
        if file.workers.len() > WORKERS_MAX {
            return Err(WorkerConfigError::TooMany);
        }
        let mut extensions = BTreeMap::new();
        for (name, entry) in &file.workers {
            entry.check(name)?;
            for extension in &entry.extensions {
                let owner = kinds::by_extension(extension).map(|kind| kind.name.to_owned());
                let owner = owner.or_else(|| extensions.insert(extension.clone(), name.clone()));
                if let Some(owner) = owner {
                    let (name, extension) = (name.clone(), extension.clone());
                    return Err(WorkerConfigError::Extension(name, extension, owner));
                }
            }
        }
        Ok(Self { entries: file.workers, start_figures: file.start_figures, error: None })
    }
}

impl WorkerEntry {
    fn check(&self, name: &str) -> Result<(), WorkerConfigError> {
        let named = || name.to_owned();
        let is_plain = |one: char| one.is_ascii_lowercase() || one.is_ascii_digit() || one == '-';
        let begins = name.starts_with(|first: char| first.is_ascii_lowercase());
        if !begins || name.len() > NAME_MAX || !name.chars().all(is_plain) {
            return Err(WorkerConfigError::Name(named()));
        }
        let only_built_in = [
            ("interpreter", self.interpreter.is_some()),
            ("package", self.package.is_some()),
            ("wheels", self.wheels.is_some()),
        ];
        let never_built_in = [
            ("command", !self.command.is_empty()),
            ("language", self.language.is_some()),
            ("extensions", !self.extensions.is_empty()),
        ];
        let set = |fields: &[(&'static str, bool)]| {
            fields.iter().find(|(_, is_set)| *is_set).map(|(field, _)| *field)
        };
        match kinds::find(name) {
            Some(_) => {
                if let Some(field) = set(&never_built_in) {
                    return Err(WorkerConfigError::BuiltIn(named(), field));
                }
            }
            None => {
                if let Some(field) = set(&only_built_in) {
                    return Err(WorkerConfigError::NotBuiltIn(named(), field));
                }
                if self.command.first().is_none_or(String::is_empty) {
                    return Err(WorkerConfigError::NoCommand(named()));
                }
            }
        }
        let paths = self.files.iter().chain(&self.package).chain(&self.wheels);
        if let Some(relative) = paths.into_iter().find(|path| !path.is_absolute()) {
            return Err(WorkerConfigError::Relative(named(), relative.clone()));
        }
        let program = self.command.first().filter(|program| program.contains('/'));
        if let Some(relative) = program.filter(|program| !Path::new(program).is_absolute()) {
            return Err(WorkerConfigError::Relative(named(), relative.into()));
        }
        if self.ready_s.is_some_and(|seconds| !(1..=READY_S_MAX).contains(&seconds)) {
            return Err(WorkerConfigError::Ready(named()));
        }
        let lengths =
            [self.command.len(), self.files.len(), self.extensions.len(), self.environment.len()];
        if lengths.into_iter().any(|length| length > LIST_MAX) {
            return Err(WorkerConfigError::List(named()));
        }
        Ok(())
    }

    pub(crate) fn ready(&self) -> Option<Duration> {
        self.ready_s.map(Duration::from_secs)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PERL: &str = r#"
        [workers.perl]
        command = ["perl", "/opt/worker.pl"]
        language = "Perl"
        extensions = ["pl"]
        files = ["/opt/worker.pl"]
        policy = { network = "none" }
    "#;

    #[test]
    fn a_worker_is_read() {
        let config = WorkersConfig::parse(PERL).unwrap();
        assert_eq!(config.entries["perl"].command, ["perl", "/opt/worker.pl"]);
        assert!(config.entries["perl"].policy.is_some());
        let config = WorkersConfig::parse("[workers.node]\ninterpreter = \"/opt/node\"").unwrap();
        assert_eq!(config.entries["node"].interpreter.as_deref(), Some("/opt/node"));
        assert_eq!(WorkersConfig::parse("").unwrap(), WorkersConfig::default());
        // The tables that `windlass node` reads do not make the file invalid.
        let others = "[node]\nlisten = \"127.0.0.1:0\"\n[fleet]\n[tenants.acme]\nsessions = 2\n\
            [telemetry]\nsample = 1";
        assert_eq!(WorkersConfig::parse(others).unwrap(), WorkersConfig::default());
    }

    #[test]
    fn the_table_has_each_key_of_a_worker() {
        let error = WorkersConfig::parse("[workers.x]\nother = 1").unwrap_err().to_string();
        let (_, listed) = error.split_once("expected one of ").unwrap();
        let mut known: Vec<&str> = listed.split('`').skip(1).step_by(2).collect();
        let mut named = WORKER_KEYS.map(|one| one.key);
        known.sort_unstable();
        named.sort_unstable();
        assert_eq!(known, named);
    }

    #[test]
    fn a_wrong_entry_is_named() {
        for (from, to, why) in [
            ("workers.perl", "workers.Perl", "[workers.Perl]: a name has"),
            ("workers.perl", "workers.python", "built in, so it takes no command"),
            ("\"perl\", ", "\"./perl\", ", "\"./perl\" is not absolute"),
            (
                "\"/opt/worker.pl\"]\n        policy",
                "\"worker.pl\"]\n        policy",
                "not absolute",
            ),
            ("extensions = [\"pl\"]", "extensions = [\"R\"]", "\"R\" belongs to r"),
            ("language", "speech", "unknown field"),
            ("policy", "ready_s = 0\npolicy", "ready_s is not between"),
            ("policy", "interpreter = \"x\"\npolicy", "only a built-in kind takes interpreter"),
            ("command", "environment = { A = \"b\" } #", "there is no command"),
            ("network = \"none\"", "network = 7", "network"),
        ] {
            let text = PERL.replacen(from, to, 1);
            assert_ne!(text, PERL, "{from}");
            let error = WorkersConfig::parse(&text).unwrap_err().to_string();
            assert!(error.contains(why), "{error}");
        }
    }
}
