//! The R worker: which R it uses, and how it is started.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use windlass_protocol::api::{CreateSession, WorkerInfo};
use windlass_protocol::kinds::r::KIND;

use super::lookup::{self, FoundProgram, cannot_run};
use super::program_files::LazyProgram;
use super::{Launcher, Recipe, ZygoteRecipe, environment};
use crate::failure::Failure;
use crate::trust::{Advice, CodeDirs, Trust};
use crate::worker_config::WorkerEntry;

const HOME_VARIABLE: &str = "R_HOME";

/// R as a library, below R's home.
const LIBRARY: &str = "lib/libR.so";

/// The package that every R has, below R's home.
const BASE_PACKAGE: &str = "library/base";

/// The most bytes of R's start script that are read.
const SCRIPT_BYTES_MAX: u64 = 256 * 1024;

/// Directories with packages and files of R outside its home, where Debian and others install them.
const SITE: [&str; 5] =
    ["/etc/R", "/usr/lib/R", "/usr/local/lib/R", "/usr/share/R", "/usr/local/share/R"];

/// How R workers are started.
#[derive(Debug)]
pub(super) struct RLang {
    programs: LazyProgram,
    trust: Arc<Trust>,
    settings: WorkerEntry,
}

impl RLang {
    pub fn new(programs: LazyProgram, trust: Arc<Trust>, settings: WorkerEntry) -> Self {
        Self { programs, trust, settings }
    }

    fn find(&self, named: Option<&str>, path: Option<&String>) -> Result<FoundProgram, Failure> {
        lookup::find(named.or(self.settings.interpreter.as_deref()), KIND.interpreter, path)
    }
}

impl Launcher for RLang {
    fn info(&self) -> WorkerInfo {
        let found = self.find(None, environment::path().as_ref());
        let found = found.and_then(|found| home(&found, &self.trust).map(|_| found.path));
        super::built_in_info(&KIND, found)
    }

    fn recipe(&self, wanted: &CreateSession, _workspace: &Path) -> Result<Recipe, Failure> {
        let mut env = environment::of_worker(&wanted.env);
        let found = self.find(wanted.interpreter.as_deref(), env.get("PATH"))?;
        let home = home(&found, &self.trust)?;
        env.insert(HOME_VARIABLE.to_owned(), home.display().to_string());
        let mut needed = found.needed(&self.trust);
        if !needed.is_empty() {
            needed.push(home);
        }
        Ok(Recipe {
            name: KIND.name.to_owned(),
            argv: self.programs.command("r")?,
            env,
            needed,
            interpreter: found.path,
            real: found.way.real,
            program: Some(self.programs.root().to_owned()),
        })
    }

    fn named_interpreter(&self, named: &str) -> Result<PathBuf, Failure> {
        Ok(self.find(Some(named), environment::path().as_ref())?.path)
    }

    /// A zygote is not confined, so it is started only if no session could have changed the code that it
    /// runs.
    fn zygote(&self, interpreter: &Path, preload: &[String]) -> Result<ZygoteRecipe, Failure> {
        let mut env = environment::of_worker(&BTreeMap::new());
        let named = interpreter.display().to_string();
        let found = self.find(Some(&named), None)?;
        let home = home(&found, &self.trust)?;
        let mut trusted = CodeDirs { directories: found.way.directories, ..CodeDirs::default() };
        let sites = SITE.iter().map(PathBuf::from).filter(|site| site.is_dir());
        let trees: Vec<PathBuf> = sites.chain([home.clone()]).collect();
        let untrusted = |why: &dyn std::fmt::Display| cannot_run(interpreter, &why.to_string());
        for tree in &trees {
            trusted.add_tree(tree).map_err(|why| untrusted(&why))?;
        }
        self.trust.check(&trusted).map_err(|why| untrusted(&Advice(&why)))?;
        env.insert(HOME_VARIABLE.to_owned(), home.display().to_string());
        let mut argv = self.programs.command("r")?;
        argv.push("--zygote".to_owned());
        argv.extend(preload.iter().cloned());
        let sources = std::iter::once(self.programs.root().to_owned()).chain(trees).collect();
        Ok(ZygoteRecipe { argv, env, reads_at_start, sources, trusted })
    }

    fn program(&self) -> Option<&Path> {
        Some(self.programs.root())
    }
}

/// Whether R or the C library reads this variable only when it starts.
fn reads_at_start(name: &str) -> bool {
    const NAMES: [&str; 2] = ["HOME", "LANGUAGE"];
    const BEGINNINGS: [&str; 8] =
        ["LANG", "LC_", "LD_", "MALLOC_", "GLIBC_", "OMP_", "OPENBLAS_", "R_"];
    NAMES.contains(&name) || BEGINNINGS.iter().any(|beginning| name.starts_with(beginning))
}

/// The home of an R: the directory that its start script names, or the one above its `bin`. The start script
/// is read only if no session could have changed it.
fn home(found: &FoundProgram, trust: &Trust) -> Result<PathBuf, Failure> {
    let above = found.way.real.parent().and_then(Path::parent).map(Path::to_owned);
    let is_trusted = found.is_trusted(trust);
    let named = is_trusted.then(|| script_home(&found.way.real)).flatten();
    let mut homes = named.into_iter().chain(above);
    homes.find(|home| home.join(LIBRARY).is_file() && home.join(BASE_PACKAGE).is_dir()).ok_or_else(|| {
        cannot_run(
            &found.path,
            "its home has no lib/libR.so; install an R that was built as a library (Debian: r-base-core)",
        )
    })
}

fn script_home(script: &Path) -> Option<PathBuf> {
    use std::io::Read as _;
    let mut text = String::new();
    std::fs::File::open(script).ok()?.take(SCRIPT_BYTES_MAX).read_to_string(&mut text).ok()?;
    let home = text.lines().find_map(|line| line.strip_prefix("R_HOME_DIR="))?;
    Some(PathBuf::from(home.trim_matches('"'))).filter(|home| home.is_absolute())
}
