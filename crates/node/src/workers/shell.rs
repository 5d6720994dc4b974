//! The shell worker: which bash it uses, and how it is started.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use windlass_protocol::api::{CreateSession, WorkerInfo};
use windlass_protocol::kinds::shell::KIND;

use super::lookup::{self, FoundProgram};
use super::program_files::LazyProgram;
use super::{Launcher, Recipe, environment};
use crate::failure::Failure;
use crate::trust::Trust;
use crate::worker_config::WorkerEntry;

/// The variable with the path of the shell.
const BASH_VARIABLE: &str = "WINDLASS_BASH";

/// How shell workers are started.
#[derive(Debug)]
pub(super) struct Shell {
    programs: LazyProgram,
    trust: Arc<Trust>,
    settings: WorkerEntry,
}

impl Shell {
    pub fn new(programs: LazyProgram, trust: Arc<Trust>, settings: WorkerEntry) -> Self {
        Self { programs, trust, settings }
    }

    fn bash(&self, named: Option<&str>, path: Option<&String>) -> Result<FoundProgram, Failure> {
        lookup::find(named.or(self.settings.interpreter.as_deref()), KIND.interpreter, path)
    }
}

impl Launcher for Shell {
    fn info(&self) -> WorkerInfo {
        super::built_in_info(
            &KIND,
            self.bash(None, environment::path().as_ref()).map(|found| found.path),
        )
    }

    fn recipe(&self, wanted: &CreateSession, _workspace: &Path) -> Result<Recipe, Failure> {
        let mut env = environment::of_worker(&wanted.env);
        let bash = self.bash(wanted.interpreter.as_deref(), env.get("PATH"))?;
        env.insert(BASH_VARIABLE.to_owned(), bash.path.display().to_string());
        if wanted.terminal.is_some() && !wanted.env.contains_key("TERM") {
            env.insert("TERM".to_owned(), "xterm-256color".to_owned());
        }
        Ok(Recipe {
            name: KIND.name.to_owned(),
            argv: self.programs.command("shell")?,
            env,
            needed: bash.needed(&self.trust),
            interpreter: bash.path,
            real: bash.way.real,
            program: Some(self.programs.root().to_owned()),
        })
    }

    fn named_interpreter(&self, named: &str) -> Result<PathBuf, Failure> {
        Ok(self.bash(Some(named), environment::path().as_ref())?.path)
    }

    fn program(&self) -> Option<&Path> {
        Some(self.programs.root())
    }
}
