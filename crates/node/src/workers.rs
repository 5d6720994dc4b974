//! How workers of each kind are launched. The node carries the files of their programs inside itself, and
//! knows their command lines and environments.

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
use crate::trust::{Places, Trust};

/// How workers of one kind are launched.
pub(crate) trait Launcher: Debug + Send + Sync {
    fn kind(&self) -> &'static WorkerKind;

    /// The command that starts a worker for this session. May run a program to find the interpreter.
    fn recipe(&self, wanted: &CreateSession, workspace: &Path) -> Result<Recipe, Failure>;

    /// The interpreter by the name that the user gave it. May run a program to find out.
    fn named_interpreter(&self, named: &str) -> Result<PathBuf, Failure>;

    /// How to start a zygote of that interpreter; a failure says why the node does not run it.
    fn zygote(&self, interpreter: &Path, preload: &[String]) -> Result<ZygoteRecipe, Failure>;

    /// The directory of this release's worker program.
    fn program(&self) -> &Path;
}

/// The workers this node can start.
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
    /// The program that runs it.
    pub interpreter: PathBuf,
    /// What that path stands for, links followed.
    pub real: PathBuf,
    /// The worker's own program, which it must be able to read.
    pub program: PathBuf,
    /// What it must be able to read besides, if the policy does not hide it.
    pub needed: Vec<PathBuf>,
}

/// How to start a zygote.
#[derive(Debug, Clone)]
pub(crate) struct ZygoteRecipe {
    pub argv: Vec<String>,
    pub env: BTreeMap<String, String>,
    /// Whether the interpreter or its libraries read a variable when they start: a worker that is forked
    /// has the zygote's.
    pub reads_at_start: fn(&str) -> bool,
    /// What it is made of, besides what it says itself.
    pub places: Vec<PathBuf>,
    /// Where it takes code from: no session could write there when this was made.
    pub trusted: Places,
}

impl Workers {
    /// Lays the worker programs out below the state directory. `named` are the interpreters that
    /// the user has named.
    pub fn prepare(state_dir: &Path, trust: Arc<Trust>, named: Vec<String>) -> io::Result<Self> {
        let python = python::Python::prepare(&state_dir.join("workers"), trust, named)?;
        Ok(Self { launchers: vec![Box::new(python)] })
    }

    /// The launcher of environments that the user named: of the first kind that has zygotes.
    pub fn of_environments(&self) -> Option<&dyn Launcher> {
        let launchers = self.launchers.iter().map(|launcher| &**launcher);
        launchers.into_iter().find(|launcher| launcher.kind().starts_by(StartedBy::Zygote))
    }

    /// The directories of this release's worker programs.
    pub fn programs(&self) -> Vec<PathBuf> {
        self.launchers.iter().map(|launcher| launcher.program().to_owned()).collect()
    }

    /// How to start what `wanted` asks for, in `workspace`. May run a program to find out, so it
    /// must not be called where waiting hurts.
    pub fn recipe(&self, wanted: &CreateSession, workspace: &Path) -> Result<Recipe, Failure> {
        let name = wanted.worker.as_deref().unwrap_or(kinds::DEFAULT.name);
        match self.launchers.iter().find(|launcher| launcher.kind().name == name) {
            Some(launcher) => launcher.recipe(wanted, workspace),
            None => {
                let message =
                    format!("there is no worker {name:?}; this release has: {}", kinds::names());
                Err(Failure::new(ErrorCode::BadRequest, message))
            }
        }
    }
}
