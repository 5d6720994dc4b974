//! The worker for JavaScript and TypeScript: which Node.js it uses, and how it is started.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use windlass_protocol::api::{CreateSession, WorkerInfo};
use windlass_protocol::kinds::javascript::KIND;

use super::lookup::{self, FoundProgram};
use super::program_files::LazyProgram;
use super::{Launcher, Recipe, environment};
use crate::failure::Failure;
use crate::trust::Trust;
use crate::worker_config::WorkerEntry;

/// An interrupt ends code after an `await` only without these checks.
const FLAGS: [&str; 1] = ["--no-force-async-hooks-checks"];

/// How workers of Node.js are started.
#[derive(Debug)]
pub(super) struct JavaScript {
    program: LazyProgram,
    trust: Arc<Trust>,
    settings: WorkerEntry,
}

impl JavaScript {
    /// `program` has the files of all JavaScript workers.
    pub fn new(program: LazyProgram, trust: Arc<Trust>, settings: WorkerEntry) -> Self {
        Self { program, trust, settings }
    }

    fn node(&self, named: Option<&str>, path: Option<&String>) -> Result<FoundProgram, Failure> {
        lookup::find(named.or(self.settings.interpreter.as_deref()), KIND.interpreter, path)
    }
}

impl Launcher for JavaScript {
    fn info(&self) -> WorkerInfo {
        let found = self.node(None, environment::path().as_ref());
        super::built_in_info(&KIND, found.map(|found| found.path))
    }

    fn recipe(&self, wanted: &CreateSession, _workspace: &Path) -> Result<Recipe, Failure> {
        let env = environment::of_worker(&wanted.env);
        let root = self.program.write()?;
        let node = self.node(wanted.interpreter.as_deref(), env.get("PATH"))?;
        let program = node.path.display().to_string();
        let main = root.join("node/main.js").display().to_string();
        let flags = FLAGS.map(str::to_owned);
        Ok(Recipe {
            name: KIND.name.to_owned(),
            argv: [program].into_iter().chain(flags).chain([main]).collect(),
            env,
            needed: node.needed(&self.trust),
            interpreter: node.path,
            real: node.way.real,
            program: Some(root.to_owned()),
        })
    }

    fn named_interpreter(&self, named: &str) -> Result<PathBuf, Failure> {
        Ok(self.node(Some(named), environment::path().as_ref())?.path)
    }

    fn program(&self) -> Option<&Path> {
        Some(self.program.root())
    }
}
