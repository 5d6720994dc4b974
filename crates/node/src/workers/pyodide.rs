//! The worker for Python in WebAssembly: which Node.js and which Pyodide it uses, and how it is started.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use windlass_protocol::ErrorCode;
use windlass_protocol::api::{CreateSession, WorkerInfo};
use windlass_protocol::kinds::pyodide::KIND;

use super::lookup::{self, FoundProgram};
use super::{Launcher, Recipe, environment};
use crate::failure::Failure;
use crate::trust::Trust;
use crate::worker_config::WorkerEntry;

/// Where npm installs packages for all users, relative to the prefix of Node.js.
const GLOBAL_PACKAGE: &str = "lib/node_modules/pyodide";

/// The module of the package that the worker loads.
const PACKAGE_MODULE: &str = "pyodide.mjs";

/// How Pyodide workers are started.
#[derive(Debug)]
pub(super) struct Pyodide {
    root: PathBuf,
    trust: Arc<Trust>,
    settings: WorkerEntry,
}

impl Pyodide {
    /// `root` is the directory of the JavaScript workers' files.
    pub fn new(root: PathBuf, trust: Arc<Trust>, settings: WorkerEntry) -> Self {
        Self { root, trust, settings }
    }

    fn node(&self, named: Option<&str>, path: Option<&String>) -> Result<FoundProgram, Failure> {
        lookup::find(named.or(self.settings.interpreter.as_deref()), KIND.interpreter, path)
    }

    /// The directory of the npm package: the configured one, or the global one of this Node.js.
    fn package(&self, node: &FoundProgram) -> Result<PathBuf, Failure> {
        let global = lookup::prefix_of(&node.way.real).join(GLOBAL_PACKAGE);
        let package = self.settings.package.clone().unwrap_or(global);
        if package.join(PACKAGE_MODULE).is_file() {
            return Ok(package);
        }
        let message = format!(
            "cannot find Pyodide: {} has no {PACKAGE_MODULE}; install it (`npm install -g pyodide`), or \
             set `package` of [workers.pyodide] in config.toml to the directory of the npm package",
            package.display()
        );
        Err(Failure::new(ErrorCode::WorkerFailed, message))
    }
}

impl Launcher for Pyodide {
    fn info(&self) -> WorkerInfo {
        let found = self.node(None, environment::path().as_ref());
        let found = found.and_then(|node| self.package(&node).map(|_| node.path));
        super::built_in_info(&KIND, found)
    }

    fn recipe(&self, wanted: &CreateSession, _workspace: &Path) -> Result<Recipe, Failure> {
        let env = environment::of_worker(&wanted.env);
        let node = self.node(wanted.interpreter.as_deref(), env.get("PATH"))?;
        let package = self.package(&node)?;
        let main = self.root.join("pyodide/worker.mjs");
        let mut words = vec![node.path.clone(), main, "--package".into(), package.clone()];
        let mut needed = node.needed(&self.trust);
        needed.push(package);
        if let Some(wheels) = &self.settings.wheels {
            words.extend(["--packages".into(), wheels.clone()]);
            needed.push(wheels.clone());
        }
        Ok(Recipe {
            name: KIND.name.to_owned(),
            argv: words.iter().map(|word| word.display().to_string()).collect(),
            env,
            needed,
            interpreter: node.path,
            real: node.way.real,
            program: Some(self.root.clone()),
        })
    }

    fn named_interpreter(&self, named: &str) -> Result<PathBuf, Failure> {
        Ok(self.node(Some(named), environment::path().as_ref())?.path)
    }

    fn program(&self) -> Option<&Path> {
        Some(&self.root)
    }
}
