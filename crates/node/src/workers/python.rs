//! The Python worker: which interpreter it uses, and how it is started. An interpreter that a session could
//! have written runs only in a session's sandbox, and does not make any path readable there.

mod layout;

use std::collections::{BTreeMap, HashMap};
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex};

use windlass_protocol::ErrorCode;
use windlass_protocol::api::{CreateSession, WorkerInfo};
use windlass_protocol::kinds;

use super::lookup::{self, cannot_run, is_script, on_path, unresolved};
use super::program_files::{self, EmbeddedFile};
use super::{Launcher, Recipe, ZygoteRecipe, environment};
use crate::failure::Failure;
use crate::trust::way::{self, ResolveError, ResolvedPath};
use crate::trust::{Advice, CodeDirs, Distrust, Trust};

macro_rules! embedded {
    ($($file:literal),* $(,)?) => {
        [$((
            concat!("windlass_worker/", $file),
            include_bytes!(concat!("../../../../workers/python/windlass_worker/", $file)).as_slice(),
        )),*]
    };
}

/// The shared object with which a forked worker confines itself.
const SANDBOX: EmbeddedFile = (
    "windlass_worker/libwindlass_confine.so",
    include_bytes!(concat!(env!("OUT_DIR"), "/libwindlass_confine.so")),
);

/// The files of the worker's program.
const FILES: &[EmbeddedFile] = &embedded![
    "__init__.py",
    "afresh.py",
    "awaiting.py",
    "calls.py",
    "catalogue.py",
    "cell.py",
    "display.py",
    "errors.py",
    "hooks.py",
    "import_guard.py",
    "inbox.py",
    "loop_calls.py",
    "loop_steps.py",
    "main.py",
    "mpl.py",
    "output.py",
    "plain_json.py",
    "polling.py",
    "practice.py",
    "scratch.py",
    "signals.py",
    "signature.py",
    "stdin.py",
    "surroundings.py",
    "tool_errors.py",
    "tools.py",
    "turns.py",
    "twin.py",
    "twin_state.py",
    "value.py",
    "wire.py",
    "zygote.py",
];

/// Starts the worker from the directory in its last argument. Afterwards `sys.path` and `sys.argv` are the
/// same as in a plain interpreter.
const BOOT: &str = "import sys; sys.path.insert(0, sys.argv.pop()); \
    from windlass_worker.main import main; del sys.path[0]; main()";

/// The same for a zygote. Its other arguments are the modules to import.
const BOOT_ZYGOTE: &str = "import sys; sys.path.insert(0, sys.argv.pop()); \
    from windlass_worker.zygote import start; del sys.path[0]; start(sys.argv[1:])";

/// Modules of the standard library that every zygote imports, because small programs use them.
const STANDARD: [&str; 32] = [
    "abc",
    "argparse",
    "ast",
    "base64",
    "bisect",
    "collections",
    "contextlib",
    "copy",
    "csv",
    "dataclasses",
    "datetime",
    "decimal",
    "enum",
    "functools",
    "glob",
    "hashlib",
    "heapq",
    "io",
    "itertools",
    "json",
    "math",
    "pathlib",
    "random",
    "re",
    "shutil",
    "statistics",
    "string",
    "subprocess",
    "tempfile",
    "textwrap",
    "traceback",
    "typing",
];

/// The interpreter of sessions that name none and have no virtual environment.
const DEFAULT_INTERPRETER: &str = "python3";

/// With a version after it, the name of the interpreter of that version: `3.12` means `python3.12`.
const VERSIONED_INTERPRETER: &str = "python";

/// Maximum number of shims in the cache. A full cache is emptied.
const SHIMS_MAX: usize = 64;

/// The longest path of a real interpreter.
const PATH_BYTES_MAX: u64 = 4096;

/// Makes a shim print the path of its real interpreter.
const REAL_PROGRAM: &str = "import sys; print(sys.executable)";

/// How Python workers are started.
#[derive(Debug)]
pub(super) struct Python {
    root: PathBuf,
    trust: Arc<Trust>,
    /// Interpreters that the user has named or has on PATH, by those names.
    named: Vec<String>,
    /// Cache: scripts on PATH that start an interpreter (pyenv's shims), and the real interpreter of each.
    real: Mutex<HashMap<PathBuf, PathBuf>>,
}

impl Python {
    pub fn prepare(dir: &Path, trust: Arc<Trust>, named: Vec<String>) -> io::Result<Self> {
        let files: Vec<EmbeddedFile> = FILES.iter().copied().chain([SANDBOX]).collect();
        let root = program_files::lay_out(dir, "python", &files)?;
        Ok(Self { root, trust, named, real: Mutex::default() })
    }

    fn root_text(&self) -> String {
        self.root.display().to_string()
    }

    /// What a session may read of its interpreter, besides the policy's readable paths. An interpreter that
    /// a session could have changed adds nothing, unless the user has named it.
    fn needed(&self, interpreter: &Path, way: &ResolvedPath) -> Vec<PathBuf> {
        let directories = way.directories.clone();
        if self.trust.check(&CodeDirs { directories, ..CodeDirs::default() }).is_ok() {
            return installation(interpreter, &way.real);
        }
        let is_named = |named: &String| {
            let program = self.named_interpreter(named).ok()?;
            let known = self.trust.way(&program).ok()?;
            (known.real == way.real).then(|| installation(&way.real, &way.real))
        };
        self.named.iter().find_map(is_named).unwrap_or_default()
    }

    /// The real interpreter behind a shim (a script on PATH), so that workers start without the shim's
    /// delay. Runs the shim once and caches the answer. A shim that a session could have written is not run
    /// here: it is returned as it is, and runs in the sandbox.
    fn real_program(&self, found: &Path) -> Result<PathBuf, Failure> {
        let Ok(way) = self.trust.way(found) else { return Ok(found.to_owned()) };
        if !is_script(&way.real) {
            return Ok(found.to_owned());
        }
        if let Some(real) = self.shims().get(found) {
            return Ok(real.clone());
        }
        let mut places = CodeDirs { directories: way.directories, ..CodeDirs::default() };
        // A shim may start other programs, which are in the directory tree beside it.
        places.trees.extend(way.real.parent().and_then(Path::parent).map(Path::to_owned));
        let real = match self.trust.hold(&places) {
            Ok(_in_use) => self.ask_real_program(found),
            Err(_) => return Ok(found.to_owned()),
        };
        let real = real.map_err(|error| cannot_run(found, &error.to_string()))?;
        if !real.is_absolute() {
            return Err(cannot_run(
                found,
                "the script does not print the path of its interpreter (`sys.executable`)",
            ));
        }
        let mut shims = self.shims();
        if shims.len() >= SHIMS_MAX {
            shims.clear();
        }
        shims.insert(found.to_owned(), real.clone());
        Ok(real)
    }

    /// Runs a shim and reads the path of its real interpreter. The exit status is not used: another part of
    /// the node reaps every child and may get the status first. The shim gets no working directory and no
    /// PATH entry that a session could write.
    fn ask_real_program(&self, interpreter: &Path) -> io::Result<PathBuf> {
        let mut env = environment::of_worker(&BTreeMap::new());
        let is_trusted = |directory: &PathBuf| {
            let mut places = CodeDirs::default();
            places.add_tree(directory).is_ok() && self.trust.check(&places).is_ok()
        };
        let path = env.remove("PATH").unwrap_or_default();
        let path = std::env::join_paths(std::env::split_paths(&path).filter(is_trusted));
        let mut child = Command::new(interpreter)
            .args(["-c", REAL_PROGRAM])
            .env_clear()
            .envs(&env)
            .env("PATH", path.map_err(io::Error::other)?)
            .current_dir("/")
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()?;
        let mut printed = String::new();
        if let Some(stdout) = &mut child.stdout {
            stdout.take(PATH_BYTES_MAX).read_to_string(&mut printed)?;
        }
        let _ = child.wait();
        Ok(PathBuf::from(printed.trim()))
    }

    fn shims(&self) -> std::sync::MutexGuard<'_, HashMap<PathBuf, PathBuf>> {
        self.real.lock().expect("no holder of this lock can panic")
    }
}

impl Launcher for Python {
    fn info(&self) -> WorkerInfo {
        let found = self.named_interpreter(DEFAULT_INTERPRETER);
        super::built_in_info(&kinds::python::KIND, found)
    }

    fn recipe(&self, wanted: &CreateSession, workspace: &Path) -> Result<Recipe, Failure> {
        let mut env = environment::of_worker(&wanted.env);
        let interpreter = match &wanted.interpreter {
            Some(named) => named_interpreter(named, env.get("PATH"))?,
            None => match venv_for(wanted, workspace) {
                Some(found) => found,
                None => self.real_program(&on_path(DEFAULT_INTERPRETER, env.get("PATH"))?)?,
            },
        };
        let way = way::resolve(&interpreter).map_err(|error| unresolved(&interpreter, &error))?;
        let needed = self.needed(&interpreter, &way);
        enter_venv(&interpreter, &mut env);
        let argv = [&interpreter.display().to_string(), "-u", "-c", BOOT, &self.root_text()]
            .map(str::to_owned)
            .to_vec();
        let (program, real) = (Some(self.root.clone()), way.real);
        let name = kinds::python::KIND.name.to_owned();
        Ok(Recipe { name, argv, env, interpreter, real, program, needed })
    }

    fn named_interpreter(&self, named: &str) -> Result<PathBuf, Failure> {
        let env = environment::of_worker(&BTreeMap::new());
        let found = named_interpreter(named, env.get("PATH"))?;
        if named.contains('/') { Ok(found) } else { self.real_program(&found) }
    }

    /// A zygote is not confined, so it is started only if no session could have changed the code that it
    /// runs.
    fn zygote(&self, interpreter: &Path, preload: &[String]) -> Result<ZygoteRecipe, Failure> {
        let mut env = environment::of_worker(&BTreeMap::new());
        let home = env.get("HOME").map(PathBuf::from).or_else(std::env::home_dir);
        let trusted = layout::places(interpreter, home.as_deref())
            .and_then(|places| self.trust.check(&places).map(|()| places))
            .map_err(|why| untrusted(interpreter, &why))?;
        enter_venv(interpreter, &mut env);
        let argv = [&interpreter.display().to_string(), "-u", "-c", BOOT_ZYGOTE]
            .map(str::to_owned)
            .into_iter()
            .chain(STANDARD.iter().map(|name| (*name).to_owned()))
            .chain(preload.iter().cloned())
            .chain([self.root_text()])
            .collect();
        let way = way::resolve(interpreter).map_err(|error| unresolved(interpreter, &error))?;
        let installed = installation(interpreter, &way.real);
        let sources = std::iter::once(self.root.clone()).chain(installed).collect();
        Ok(ZygoteRecipe { argv, env, reads_at_start, sources, trusted })
    }

    fn program(&self) -> Option<&Path> {
        Some(&self.root)
    }
}

/// Whether Python, the C library or a common library reads this variable only when it starts.
fn reads_at_start(name: &str) -> bool {
    const NAMES: [&str; 5] = ["HOME", "LANG", "LANGUAGE", "VIRTUAL_ENV", "USER"];
    const BEGINNINGS: [&str; 12] = [
        "PYTHON",
        "LD_",
        "LC_",
        "MALLOC_",
        "GLIBC_",
        "OMP_",
        "GOMP_",
        "KMP_",
        "OPENBLAS_",
        "MKL_",
        "NUMEXPR_",
        "MPL",
    ];
    NAMES.contains(&name) || BEGINNINGS.iter().any(|beginning| name.starts_with(beginning))
}

/// The paths of an interpreter's installation: its virtual environment, if any, and its prefix.
fn installation(interpreter: &Path, real: &Path) -> Vec<PathBuf> {
    venv_of(interpreter).into_iter().chain([lookup::prefix_of(real)]).collect()
}

/// Sets the variables of an activated virtual environment, if the interpreter is in one.
fn enter_venv(interpreter: &Path, env: &mut BTreeMap<String, String>) {
    if let Some(venv) = venv_of(interpreter) {
        let bin = interpreter.parent().unwrap_or(&venv).display().to_string();
        let path = env.get("PATH").map_or_else(|| bin.clone(), |path| format!("{bin}:{path}"));
        env.insert("PATH".into(), path);
        env.insert("VIRTUAL_ENV".into(), venv.display().to_string());
    }
}

fn untrusted(interpreter: &Path, why: &Distrust) -> Failure {
    let message = format!("{}: {}", interpreter.display(), Advice(why));
    Failure::new(ErrorCode::WorkerFailed, message)
}

/// Finds an interpreter by its path, by the path of its virtual environment, or by its name or version on PATH.
fn named_interpreter(named: &str, path: Option<&String>) -> Result<PathBuf, Failure> {
    let given = Path::new(named);
    if !named.contains('/') {
        let is_version = named.starts_with(|first: char| first.is_ascii_digit());
        return match is_version {
            true => on_path(&format!("{VERSIONED_INTERPRETER}{named}"), path),
            false => on_path(named, path),
        };
    }
    if !given.is_absolute() {
        return Err(cannot_run(given, "the path is not absolute"));
    }
    if given.is_dir() {
        return venv_interpreter(given)
            .ok_or_else(|| cannot_run(given, "the directory holds no bin/python"));
    }
    if !given.is_file() {
        return Err(cannot_run(given, "there is no such file"));
    }
    Ok(given.to_owned())
}

/// The interpreter of the virtual environment that a session uses without naming it. A session of a tenant uses none: code
/// of the tenant writes the links in the workspace, and the answer would tell whether their targets exist. The directories
/// above the workspace belong to the node's owner.
fn venv_for(wanted: &CreateSession, workspace: &Path) -> Option<PathBuf> {
    if wanted.tenant.is_some() { None } else { nearest_venv(workspace) }
}

/// The interpreter of the nearest `.venv` at or above `workspace`.
fn nearest_venv(workspace: &Path) -> Option<PathBuf> {
    workspace.ancestors().find_map(|dir| venv_interpreter(&dir.join(".venv")))
}

fn venv_interpreter(venv: &Path) -> Option<PathBuf> {
    let interpreter = venv.join("bin/python");
    match way::resolve(&interpreter) {
        Ok(way) => way.real.is_file().then_some(interpreter),
        // There is no interpreter, or a dangling symlink.
        Err(ResolveError::Look { .. }) => None,
        // The start of the session reports the error.
        Err(_) => Some(interpreter),
    }
}

/// The virtual environment that an interpreter belongs to.
fn venv_of(interpreter: &Path) -> Option<PathBuf> {
    let venv = interpreter.parent()?.parent()?;
    is_venv(venv).then(|| venv.to_owned())
}

fn is_venv(directory: &Path) -> bool {
    directory.join("pyvenv.cfg").is_file()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_nearest_venv_wins() {
        let root = std::env::temp_dir().join(format!("windlass-venv-{}", std::process::id()));
        let inner = root.join("a/b");
        std::fs::create_dir_all(&inner).unwrap();
        for dir in [&root, &root.join("a")] {
            std::fs::create_dir_all(dir.join(".venv/bin")).unwrap();
            std::fs::write(dir.join(".venv/bin/python"), "").unwrap();
        }
        assert_eq!(nearest_venv(&inner), Some(root.join("a/.venv/bin/python")));
        // A broken `.venv` is skipped.
        std::fs::remove_file(root.join("a/.venv/bin/python")).unwrap();
        std::os::unix::fs::symlink("none", root.join("a/.venv/bin/python")).unwrap();
        assert_eq!(nearest_venv(&inner), Some(root.join(".venv/bin/python")));
        std::fs::remove_dir_all(&root).unwrap();
    }

    #[test]
    fn a_session_of_a_tenant_uses_no_venv_that_it_has_not_named() {
        let workspace = tempfile::tempdir().unwrap();
        let interpreter = workspace.path().join(".venv/bin/python");
        std::fs::create_dir_all(workspace.path().join(".venv/bin")).unwrap();
        let tenant = windlass_protocol::TenantName::parse("acme").unwrap();
        for target in ["/bin/sh", "/none", "/dev/fd/0"] {
            std::os::unix::fs::symlink(target, &interpreter).unwrap();
            for (tenant, expected) in [(None, target != "/none"), (Some(tenant.clone()), false)] {
                let wanted = CreateSession { tenant, ..CreateSession::default() };
                let found = venv_for(&wanted, workspace.path());
                assert_eq!(found.as_ref() == Some(&interpreter), expected, "{wanted:?} {target}");
            }
            std::fs::remove_file(&interpreter).unwrap();
        }
    }

    #[test]
    fn a_version_means_the_interpreter_of_that_version_on_path() {
        let bin = std::env::temp_dir().join(format!("windlass-version-{}", std::process::id()));
        std::fs::create_dir_all(&bin).unwrap();
        for name in ["python3.12", "pypy3"] {
            std::fs::write(bin.join(name), "").unwrap();
        }
        let path = bin.display().to_string();
        for (named, expected) in
            [("3.12", "python3.12"), ("python3.12", "python3.12"), ("pypy3", "pypy3")]
        {
            let found = named_interpreter(named, Some(&path)).unwrap();
            assert_eq!(found, bin.join(expected), "{named}");
        }
        let failure = named_interpreter("3.11", Some(&path)).unwrap_err();
        assert!(failure.message.contains("python3.11"), "{}", failure.message);
        std::fs::remove_dir_all(&bin).unwrap();
    }

    #[test]
    fn a_missing_interpreter_is_named() {
        let failure = named_interpreter("/no/such/python", None).unwrap_err();
        assert_eq!(failure.code, ErrorCode::WorkerFailed);
        assert!(failure.message.contains("/no/such/python"));
    }
}
