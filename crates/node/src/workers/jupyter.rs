//! The worker for Jupyter kernels: which kernels there are, and how the worker is started.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use windlass_kernelspecs::{KernelPaths, KernelSpec, program_on_path};
use windlass_protocol::ErrorCode;
use windlass_protocol::api::{CreateSession, WorkerInfo};
use windlass_protocol::kinds::VARIANT_SEPARATOR;
use windlass_protocol::kinds::jupyter::KIND;

use super::lookup::{self, FoundProgram};
use super::program_files::LazyProgram;
use super::{Launcher, Recipe, environment};
use crate::failure::Failure;
use crate::trust::{CodeDirs, Trust};

/// How Jupyter workers are started. The kernel runs in the session's sandbox only.
#[derive(Debug)]
pub(super) struct Jupyter {
    programs: LazyProgram,
    trust: Arc<Trust>,
}

impl Jupyter {
    pub fn new(programs: LazyProgram, trust: Arc<Trust>) -> Self {
        Self { programs, trust }
    }

    fn kernel(wanted: &CreateSession) -> Result<KernelSpec, Failure> {
        let name = wanted.worker.as_deref().and_then(|name| name.split_once(VARIANT_SEPARATOR));
        let name = name.map(|(_, kernel)| kernel).filter(|kernel| !kernel.is_empty());
        let paths = KernelPaths::from_environment();
        let Some(name) = name else {
            let message = format!("name a kernel, as in `jupyter:python3`; {}", there(&paths));
            return Err(Failure::new(ErrorCode::BadRequest, message));
        };
        match windlass_kernelspecs::find(&paths, name) {
            None => {
                let message = format!("there is no Jupyter kernel {name:?}; {}", there(&paths));
                Err(Failure::new(ErrorCode::BadRequest, message))
            }
            Some(found) if !found.missing.is_empty() => {
                let missing = found.missing.join(", ");
                let message = format!("the Jupyter kernel {name:?} cannot start: {missing}");
                Err(Failure::new(ErrorCode::WorkerFailed, message))
            }
            Some(found) => Ok(found.spec),
        }
    }

    /// The program of a kernel.
    fn program(spec: &KernelSpec, path: Option<&String>) -> Result<FoundProgram, Failure> {
        let command = spec.command("");
        let first = command.first().map_or("", String::as_str);
        let found = program_on_path(first, path.map_or("", String::as_str).as_ref());
        let found = found.map(|found| found.display().to_string());
        lookup::find(Some(found.as_deref().unwrap_or(first)), first, path)
    }
}

impl Launcher for Jupyter {
    fn info(&self) -> WorkerInfo {
        let (kernels, _) = windlass_kernelspecs::find_all(&KernelPaths::from_environment());
        let mut info = super::built_in_info(&KIND, Ok(PathBuf::new()));
        info.interpreter = None;
        if !kernels.iter().any(|kernel| kernel.missing.is_empty()) {
            info.missing = Some(
                "no Jupyter kernel is installed; for Python: `pip install ipykernel`".to_owned(),
            );
        }
        info
    }

    fn recipe(&self, wanted: &CreateSession, _workspace: &Path) -> Result<Recipe, Failure> {
        super::no_interpreter(wanted, KIND.name)?;
        let spec = Self::kernel(wanted)?;
        let env = environment::of_worker(&wanted.env);
        let found = Self::program(&spec, env.get("PATH"))?;
        let mut argv = self.programs.command("jupyter")?;
        argv.extend(["--spec".to_owned(), spec.directory.display().to_string()]);
        let mut needed = found.needed(&self.trust);
        if !needed.is_empty() {
            // The interpreter may be in a virtual environment, whose directory the kernel reads.
            needed.extend(found.path.parent().and_then(Path::parent).map(Path::to_owned));
        }
        let mut of_spec = CodeDirs::default();
        if of_spec.add_tree(&spec.directory).is_ok() && self.trust.check(&of_spec).is_ok() {
            needed.push(spec.directory);
        }
        Ok(Recipe {
            name: format!("{}{VARIANT_SEPARATOR}{}", KIND.name, spec.name),
            argv,
            env,
            needed,
            interpreter: found.path,
            real: found.way.real,
            program: Some(self.programs.root().to_owned()),
        })
    }

    fn named_interpreter(&self, named: &str) -> Result<PathBuf, Failure> {
        Ok(lookup::find(Some(named), named, environment::path().as_ref())?.path)
    }

    fn program(&self) -> Option<&Path> {
        Some(self.programs.root())
    }
}

fn there(paths: &KernelPaths) -> String {
    let (kernels, _) = windlass_kernelspecs::find_all(paths);
    let names: Vec<&str> = kernels.iter().map(|kernel| kernel.spec.name.as_str()).collect();
    match names.is_empty() {
        true => "no kernel is installed".to_owned(),
        false => format!("there are: {}", names.join(", ")),
    }
}
