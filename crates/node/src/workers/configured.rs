//! A worker of the user's configuration file: a command that speaks the worker protocol.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use windlass_protocol::api::{CreateSession, WorkerInfo, WorkerSource};
use windlass_protocol::event::StartedBy;

use super::lookup::{self, FoundProgram};
use super::{Launcher, Recipe, environment};
use crate::failure::Failure;
use crate::trust::Trust;
use crate::worker_config::WorkerEntry;

/// How workers of one `[workers.NAME]` table are started. The command runs in the session's sandbox only.
#[derive(Debug)]
pub(super) struct Configured {
    name: String,
    entry: WorkerEntry,
    trust: Arc<Trust>,
}

impl Configured {
    pub fn new(name: &str, entry: WorkerEntry, trust: Arc<Trust>) -> Self {
        Self { name: name.to_owned(), entry, trust }
    }

    fn find(&self, path: Option<&String>) -> Result<FoundProgram, Failure> {
        let program = self.entry.command.first().map_or("", String::as_str);
        lookup::find(Some(program), program, path)
    }

    /// The files that the command names by absolute path. The user wrote the command, so the session may
    /// read them.
    fn named_files(&self) -> impl Iterator<Item = PathBuf> + '_ {
        let arguments = self.entry.command.iter().skip(1).map(PathBuf::from);
        arguments.filter(|argument| argument.is_absolute() && argument.exists())
    }
}

impl Launcher for Configured {
    fn info(&self) -> WorkerInfo {
        let found = self.find(environment::path().as_ref());
        WorkerInfo {
            name: self.name.clone(),
            language: self.entry.language.clone().unwrap_or_else(|| self.name.clone()),
            source: WorkerSource::Configured,
            extensions: self.entry.extensions.clone(),
            interpreter: found.as_ref().ok().map(|found| found.path.display().to_string()),
            starts: vec![StartedBy::Exec],
            missing: found.err().map(|failure| failure.message),
        }
    }

    fn recipe(&self, wanted: &CreateSession, _workspace: &Path) -> Result<Recipe, Failure> {
        super::no_interpreter(wanted, &self.name)?;
        let env = environment::of_worker(&wanted.env);
        let found = self.find(env.get("PATH"))?;
        let mut argv = self.entry.command.clone();
        if let Some(program) = argv.first_mut() {
            *program = found.path.display().to_string();
        }
        let needed = found.needed(&self.trust).into_iter().chain(self.named_files()).collect();
        Ok(Recipe {
            name: self.name.clone(),
            argv,
            env,
            needed,
            interpreter: found.path,
            real: found.way.real,
            program: None,
        })
    }

    fn named_interpreter(&self, named: &str) -> Result<PathBuf, Failure> {
        Ok(lookup::find(Some(named), named, environment::path().as_ref())?.path)
    }

    fn program(&self) -> Option<&Path> {
        None
    }
}
