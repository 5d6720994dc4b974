//! How the node launches workers of each kind. The binary contains the programs of the built-in workers;
//! this module writes them to disk and builds the command lines and environments. Workers of the user's
//! configuration file have commands of their own.

mod agent;
mod configured;
mod environment;
mod javascript;
mod jupyter;
mod lookup;
mod program_files;
mod pyodide;
mod python;
mod r;
mod shell;

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use windlass_protocol::ErrorCode;
use windlass_protocol::api::{CreateSession, WorkerInfo, WorkerList, WorkerSource};
use windlass_protocol::kinds::{self, VARIANT_SEPARATOR, WorkerKind};
use windlass_protocol::limits::TERMINAL_SIZE_MAX;
use windlass_protocol::policy::PolicyRequest;

use crate::config::Config;
use crate::failure::Failure;
use crate::trust::{CodeDirs, Trust};
use crate::worker_config::WorkerEntry;

use self::program_files::LazyProgram;

/// The variable with the size of a session's terminal, as `COLUMNSxROWS`.
const TERMINAL_VARIABLE: &str = "WINDLASS_TERMINAL";

/// How workers of one kind are launched.
pub(crate) trait Launcher: Debug + Send + Sync {
    /// The kind, as a client sees it. May run a program to find the interpreter.
    fn info(&self) -> WorkerInfo;

    /// How to start a worker for this session. May run a program to find the interpreter.
    fn recipe(&self, wanted: &CreateSession, workspace: &Path) -> Result<Recipe, Failure>;

    /// Finds the interpreter that the user named. May run a program for this.
    fn named_interpreter(&self, named: &str) -> Result<PathBuf, Failure>;

    /// How to start a zygote of that interpreter. Fails if the interpreter is not trusted, or if the kind
    /// has no zygotes.
    fn zygote(&self, interpreter: &Path, _preload: &[String]) -> Result<ZygoteRecipe, Failure> {
        let message = format!("workers of {} cannot be forked", interpreter.display());
        Err(Failure::new(ErrorCode::WorkerFailed, message))
    }

    /// A file that the last recipe found missing, and that makes later workers start faster. Returned once.
    fn preparation(&self) -> Option<Preparation> {
        None
    }

    /// How long a worker may take to become ready, if the default is too short for this kind.
    fn ready_timeout(&self) -> Option<Duration> {
        None
    }

    /// The directory of this release's worker program.
    fn program(&self) -> Option<&Path>;
}

/// A file to make: the session that makes it, the file's name in the session's workspace, and where it belongs.
#[derive(Debug, Clone)]
pub(crate) struct Preparation {
    pub wanted: CreateSession,
    pub file: &'static str,
    pub target: PathBuf,
}

/// The kinds of workers that this node can start, by name.
#[derive(Debug)]
pub(crate) struct Workers {
    launchers: BTreeMap<String, Box<dyn Launcher>>,
    /// The user's settings, by the name of the kind.
    entries: BTreeMap<String, WorkerEntry>,
    /// Why the user's settings are not used.
    error: Option<String>,
}

/// How to start a session's worker.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Recipe {
    /// The name of the kind, with its variant.
    pub name: String,
    pub argv: Vec<String>,
    pub env: BTreeMap<String, String>,
    /// The program that runs the worker.
    pub interpreter: PathBuf,
    /// The interpreter's path with all symlinks resolved.
    pub real: PathBuf,
    /// The directory of the worker's program files, which the worker must be able to read.
    pub program: Option<PathBuf>,
    /// What else the worker must be able to read, unless the policy hides it.
    pub needed: Vec<PathBuf>,
}

/// How to start a zygote.
#[derive(Debug, Clone)]
pub(crate) struct ZygoteRecipe {
    pub argv: Vec<String>,
    pub env: BTreeMap<String, String>,
    /// Whether the interpreter or its libraries read this variable only when they start. A forked worker
    /// has the zygote's value of such a variable.
    pub reads_at_start: fn(&str) -> bool,
    /// Files and directories that the zygote is made from. When one changes, the zygote is out of date. The
    /// zygote reports further ones.
    pub sources: Vec<PathBuf>,
    /// The locations of its code. No session could write them when this recipe was made.
    pub trusted: CodeDirs,
}

impl Workers {
    /// Writes the program of the default worker into the state directory. The others are written when a
    /// session first needs them.
    pub fn prepare(config: &Config, trust: Arc<Trust>) -> io::Result<Self> {
        let dir = config.programs_dir();
        let entries = &config.workers.entries;
        let settings = |kind: &WorkerKind| entries.get(kind.name).cloned().unwrap_or_default();
        let rust = LazyProgram::rust(&dir);
        let javascript = LazyProgram::javascript(&dir);
        let python = python::Python::prepare(&dir, trust.clone(), config.named_interpreters())?;
        let shell = shell::Shell::new(rust.clone(), trust.clone(), settings(&kinds::shell::KIND));
        let r = r::RLang::new(rust.clone(), trust.clone(), settings(&kinds::r::KIND));
        let set = settings(&kinds::javascript::KIND);
        let node = javascript::JavaScript::new(javascript.clone(), trust.clone(), set);
        let set = settings(&kinds::pyodide::KIND);
        let pyodide = pyodide::Pyodide::new(javascript, trust.clone(), set);
        let jupyter = jupyter::Jupyter::new(rust.clone(), trust.clone());
        let agent = |kind| Box::new(agent::AgentLauncher::new(kind, rust.clone(), trust.clone()));
        let built_in: [(&WorkerKind, Box<dyn Launcher>); 8] = [
            (&kinds::python::KIND, Box::new(python)),
            (&kinds::shell::KIND, Box::new(shell)),
            (&kinds::r::KIND, Box::new(r)),
            (&kinds::javascript::KIND, Box::new(node)),
            (&kinds::pyodide::KIND, Box::new(pyodide)),
            (&kinds::jupyter::KIND, Box::new(jupyter)),
            (&kinds::agent::KIND, agent(&kinds::agent::KIND)),
            (&kinds::agent::ACP_KIND, agent(&kinds::agent::ACP_KIND)),
        ];
        let mut launchers: BTreeMap<String, Box<dyn Launcher>> =
            built_in.into_iter().map(|(kind, launcher)| (kind.name.to_owned(), launcher)).collect();
        for (name, entry) in entries.iter().filter(|(name, _)| kinds::find(name).is_none()) {
            let worker = configured::Configured::new(name, entry.clone(), trust.clone());
            launchers.insert(name.clone(), Box::new(worker));
        }
        Ok(Self { launchers, entries: entries.clone(), error: config.workers.error.clone() })
    }

    /// The directories of this release's worker programs.
    pub fn programs(&self) -> Vec<PathBuf> {
        self.launchers
            .values()
            .filter_map(|launcher| launcher.program().map(Path::to_owned))
            .collect()
    }

    /// All kinds, with what is missing on this machine. Blocks: it looks for interpreters.
    pub fn list(&self) -> WorkerList {
        let mut workers: Vec<WorkerInfo> =
            self.launchers.values().map(|launcher| launcher.info()).collect();
        let place = |info: &WorkerInfo| kinds::ALL.iter().position(|kind| kind.name == info.name);
        workers.sort_by_key(|info| place(info).unwrap_or(kinds::ALL.len()));
        WorkerList { workers, error: self.error.clone() }
    }

    /// The policy that the user set for sessions of this kind that request none.
    pub fn policy(&self, wanted: &CreateSession) -> Option<&PolicyRequest> {
        self.entries.get(base_name(wanted)).and_then(|entry| entry.policy.as_ref())
    }

    /// How long a worker of this kind may take to become ready, if the user or the kind sets a time.
    pub fn ready_timeout(&self, kind: &str) -> Option<Duration> {
        let base = without_variant(kind);
        let of_user = self.entries.get(base).and_then(WorkerEntry::ready);
        of_user.or_else(|| self.launchers.get(base)?.ready_timeout())
    }

    /// The launcher of a kind.
    pub fn launcher(&self, kind: &str) -> Result<&dyn Launcher, Failure> {
        self.launchers.get(kind).map(|launcher| &**launcher).ok_or_else(|| {
            let names = self.launchers.keys().map(String::as_str).collect::<Vec<_>>().join(", ");
            let message = format!("unknown worker {kind:?}; this node has: {names}");
            Failure::new(ErrorCode::BadRequest, message)
        })
    }

    /// How to start the worker that `wanted` asks for, in `workspace`. Blocks: it may run a program to find
    /// the interpreter.
    pub fn recipe(&self, wanted: &CreateSession, workspace: &Path) -> Result<Recipe, Failure> {
        let name = wanted.worker.as_deref().unwrap_or(kinds::DEFAULT.name);
        let base = base_name(wanted);
        if name != base && !kinds::find(base).is_some_and(|kind| kind.has_variants) {
            let message =
                format!("the worker {base:?} has no variants, so {name:?} is not a worker");
            return Err(Failure::new(ErrorCode::BadRequest, message));
        }
        if wanted.terminal.is_some() && base != kinds::shell::KIND.name {
            let message = format!("the worker {base:?} has no terminal; only `shell` has one");
            return Err(Failure::new(ErrorCode::BadRequest, message));
        }
        if wanted.terminal.is_some_and(|size| !size.is_usable()) {
            let message = format!(
                "a terminal has 1 to {TERMINAL_SIZE_MAX} columns and 1 to {TERMINAL_SIZE_MAX} rows"
            );
            return Err(Failure::new(ErrorCode::BadRequest, message));
        }
        if wanted.agent.is_some() && !kinds::agent::is_agent(base) {
            let message = format!("the worker {base:?} is no agent, so it takes no agent settings");
            return Err(Failure::new(ErrorCode::BadRequest, message));
        }
        let mut recipe = self.launcher(base)?.recipe(wanted, workspace)?;
        if let Some(entry) = self.entries.get(base) {
            for (variable, value) in &entry.environment {
                if !wanted.env.contains_key(variable) {
                    recipe.env.insert(variable.clone(), value.clone());
                }
            }
            recipe.needed.extend(entry.files.iter().cloned());
        }
        if let Some(size) = &wanted.terminal {
            let size = format!("{}x{}", size.columns, size.rows);
            recipe.env.insert(TERMINAL_VARIABLE.to_owned(), size);
        }
        Ok(recipe)
    }
}

/// The name of the kind that a session requests, without its variant.
fn base_name(wanted: &CreateSession) -> &str {
    without_variant(wanted.worker.as_deref().unwrap_or(kinds::DEFAULT.name))
}

fn without_variant(kind: &str) -> &str {
    kind.split_once(VARIANT_SEPARATOR).map_or(kind, |(base, _)| base)
}

/// The description of a built-in kind whose interpreter was found or not.
fn built_in_info(kind: &WorkerKind, found: Result<PathBuf, Failure>) -> WorkerInfo {
    let (interpreter, missing) = match found {
        Ok(path) => (Some(path.display().to_string()), None),
        Err(failure) => (None, Some(failure.message)),
    };
    WorkerInfo {
        name: kind.name.to_owned(),
        language: kind.language.to_owned(),
        source: WorkerSource::BuiltIn,
        extensions: kind.extensions.iter().map(|extension| (*extension).to_owned()).collect(),
        interpreter,
        starts: kind.starts.to_vec(),
        missing,
    }
}

/// Checks that a session does not name an interpreter for a kind that has none to choose.
fn no_interpreter(wanted: &CreateSession, kind: &str) -> Result<(), Failure> {
    match &wanted.interpreter {
        None => Ok(()),
        Some(_) => {
            let message = format!("the worker {kind:?} takes no interpreter");
            Err(Failure::new(ErrorCode::BadRequest, message))
        }
    }
}
