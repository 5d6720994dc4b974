//! How the node launches workers of each kind. The binary contains the workers' program files; this module
//! writes them to disk and builds the command lines and environments.

mod environment;
mod program_files;
mod python;

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use windlass_protocol::ErrorCode;
use windlass_protocol::api::CreateSession;
use windlass_protocol::event::StartedBy;
use windlass_protocol::kinds::{self, WorkerKind};

use crate::failure::Failure;
use crate::trust::{CodeDirs, Trust};

/// How workers of one kind are launched.
pub(crate) trait Launcher: Debug + Send + Sync {
    fn kind(&self) -> &'static WorkerKind;

    /// How to start a worker for this session. May run a program to find the interpreter.
    fn recipe(&self, wanted: &CreateSession, workspace: &Path) -> Result<Recipe, Failure>;

    /// Finds the interpreter that the user named. May run a program for this.
    fn named_interpreter(&self, named: &str) -> Result<PathBuf, Failure>;

    /// How to start a zygote of that interpreter. Fails if the interpreter is not trusted.
    fn zygote(&self, interpreter: &Path, preload: &[String]) -> Result<ZygoteRecipe, Failure>;

    /// The directory of this release's worker program.
    fn program(&self) -> &Path;
}

/// The kinds of workers that this node can start.
#[derive(Debug)]
pub(crate) struct Workers {
    launchers: Vec<Box<dyn Launcher>>,
}

/// How to start a session's worker.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Recipe {
    pub kind: &'static WorkerKind,
    pub argv: Vec<String>,
    pub env: BTreeMap<String, String>,
    /// The program that runs the worker.
    pub interpreter: PathBuf,
    /// The interpreter's path with all symlinks resolved.
    pub real: PathBuf,
    /// The directory of the worker's program files, which the worker must be able to read.
    pub program: PathBuf,
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
    /// Writes the worker programs into the state directory. `named` are the interpreters that the user has
    /// named.
    pub fn prepare(state_dir: &Path, trust: Arc<Trust>, named: Vec<String>) -> io::Result<Self> {
        let python = python::Python::prepare(&state_dir.join("workers"), trust, named)?;
        Ok(Self { launchers: vec![Box::new(python)] })
    }

    /// The launcher for environments: the first kind of worker that has zygotes.
    pub fn of_environments(&self) -> Option<&dyn Launcher> {
        let launchers = self.launchers.iter().map(|launcher| &**launcher);
        launchers.into_iter().find(|launcher| launcher.kind().starts_by(StartedBy::Zygote))
    }

    /// The directories of this release's worker programs.
    pub fn programs(&self) -> Vec<PathBuf> {
        self.launchers.iter().map(|launcher| launcher.program().to_owned()).collect()
    }

    /// How to start the worker that `wanted` asks for, in `workspace`. Blocks: it may run a program to find
    /// the interpreter.
    pub fn recipe(&self, wanted: &CreateSession, workspace: &Path) -> Result<Recipe, Failure> {
        let name = wanted.worker.as_deref().unwrap_or(kinds::DEFAULT.name);
        match self.launchers.iter().find(|launcher| launcher.kind().name == name) {
            Some(launcher) => launcher.recipe(wanted, workspace),
            None => {
                let message =
                    format!("unknown worker {name:?}; this release has: {}", kinds::names());
                Err(Failure::new(ErrorCode::BadRequest, message))
            }
        }
    }
}
