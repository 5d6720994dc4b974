//! The Python worker: which interpreter, and how it is started. What lies where a session could write
//! is run in a session's sandbox only, and makes nothing readable there.

mod layout;

use std::collections::{BTreeMap, HashMap};
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex};

use windlass_protocol::ErrorCode;
use windlass_protocol::api::CreateSession;
use windlass_protocol::kinds::{self, WorkerKind};

use super::files::{self, Embedded};
use super::{Launcher, Recipe, ZygoteRecipe, environment};
use crate::failure::Failure;
use crate::trust::way::{self, Way, WayError};
use crate::trust::{Advice, Distrust, Places, Trust};

macro_rules! embedded {
    ($($file:literal),* $(,)?) => {
        [$((
            concat!("windlass_worker/", $file),
            include_bytes!(concat!("../../../../workers/python/windlass_worker/", $file)).as_slice(),
        )),*]
    };
}

/// The sandbox, for interpreters that confine themselves.
const SANDBOX: Embedded = (
    "windlass_worker/libwindlass_confine.so",
    include_bytes!(concat!(env!("OUT_DIR"), "/libwindlass_confine.so")),
);

/// The worker's program.
const FILES: &[Embedded] = &embedded![
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
    "main.py",
    "mpl.py",
    "output.py",
    "plain_json.py",
    "polling.py",
    "practice.py",
    "signals.py",
    "signature.py",
    "stdin.py",
    "tool_errors.py",
    "tools.py",
    "turns.py",
    "twin.py",
    "twin_state.py",
    "wire.py",
    "zygote.py",
];

/// Starts the worker from the directory that is its last argument. The code's own `sys.path` and
/// `sys.argv` are then what they would be without it.
const BOOT: &str = "import sys; sys.path.insert(0, sys.argv.pop()); \
    from windlass_worker.main import main; del sys.path[0]; main()";

/// The same for a zygote, whose other arguments are the modules that it imports.
const BOOT_ZYGOTE: &str = "import sys; sys.path.insert(0, sys.argv.pop()); \
    from windlass_worker.zygote import start; del sys.path[0]; start(sys.argv[1:])";

/// Modules of the standard library that every zygote has: what small programs import.
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
const USUAL: &str = "python3";

/// Interpreters whose real program is remembered; the memory is emptied when it is full.
const KNOWN_MAX: usize = 64;

/// The longest path of a real interpreter.
const PATH_BYTES_MAX: u64 = 4096;

/// Prints the real interpreter of one that stands in for it.
const REAL_PROGRAM: &str = "import sys; print(sys.executable)";

/// How Python workers are started.
#[derive(Debug)]
pub(super) struct Python {
    root: PathBuf,
    trust: Arc<Trust>,
    /// Interpreters that the user has named or has on PATH, by those names.
    named: Vec<String>,
    /// Scripts on PATH that stand in for an interpreter (pyenv's shims), and what they start.
    real: Mutex<HashMap<PathBuf, PathBuf>>,
}

impl Python {
    pub fn prepare(dir: &Path, trust: Arc<Trust>, named: Vec<String>) -> io::Result<Self> {
        let files: Vec<Embedded> = FILES.iter().copied().chain([SANDBOX]).collect();
        let root = files::lay_out(dir, "python", &files)?;
        Ok(Self { root, trust, named, real: Mutex::default() })
    }

    fn root_text(&self) -> String {
        self.root.display().to_string()
    }

    /// What a session may read of its interpreter outside of the policy's readable paths. An
    /// interpreter that a session could have changed adds nothing, unless the user has named it.
    fn needed(&self, interpreter: &Path, way: &Way) -> Vec<PathBuf> {
        let directories = way.directories.clone();
        if self.trust.check(&Places { directories, ..Places::default() }).is_ok() {
            return installation(interpreter, &way.real);
        }
        let is_named = |named: &String| {
            let program = self.named_interpreter(named).ok()?;
            let known = self.trust.way(&program).ok()?;
            (known.real == way.real).then(|| installation(&way.real, &way.real))
        };
        self.named.iter().find_map(is_named).unwrap_or_default()
    }

    /// Follows a script that stands in for an interpreter, once; workers are then started without
    /// its delay. One that a session could have written is not run here, but in the sandbox.
    fn real_program(&self, found: &Path) -> Result<PathBuf, Failure> {
        let Ok(way) = self.trust.way(found) else { return Ok(found.to_owned()) };
        if !is_script(&way.real) {
            return Ok(found.to_owned());
        }
        if let Some(real) = self.known().get(found) {
            return Ok(real.clone());
        }
        let mut places = Places { directories: way.directories, ..Places::default() };
        // With what it may start in turn: a shim's own programs lie beside it.
        places.trees.extend(way.real.parent().and_then(Path::parent).map(Path::to_owned));
        let real = match self.trust.hold(&places) {
            Ok(_in_use) => self.said(found),
            Err(_) => return Ok(found.to_owned()),
        };
        let real = real.map_err(|error| cannot_run(found, &error.to_string()))?;
        if !real.is_absolute() {
            return Err(cannot_run(found, "it does not say where its real program is"));
        }
        let mut known = self.known();
        if known.len() >= KNOWN_MAX {
            known.clear();
        }
        known.insert(found.to_owned(), real.clone());
        Ok(real)
    }

    /// What an interpreter says its real program is. Judged by its words alone: the node reaps every
    /// child, so how it ended may be known to somebody else first. It gets no directory and no PATH
    /// entry that a session could have put something into.
    fn said(&self, interpreter: &Path) -> io::Result<PathBuf> {
        let mut env = environment::of_worker(&BTreeMap::new());
        let is_trusted = |directory: &PathBuf| {
            let mut places = Places::default();
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
        let mut said = String::new();
        if let Some(stdout) = &mut child.stdout {
            stdout.take(PATH_BYTES_MAX).read_to_string(&mut said)?;
        }
        let _ = child.wait();
        Ok(PathBuf::from(said.trim()))
    }

    fn known(&self) -> std::sync::MutexGuard<'_, HashMap<PathBuf, PathBuf>> {
        self.real.lock().expect("no holder of this lock can panic")
    }
}

impl Launcher for Python {
    fn kind(&self) -> &'static WorkerKind {
        &kinds::python::KIND
    }

    fn recipe(&self, wanted: &CreateSession, workspace: &Path) -> Result<Recipe, Failure> {
        let mut env = environment::of_worker(&wanted.env);
        let interpreter = match &wanted.interpreter {
            Some(named) => named_interpreter(named, env.get("PATH"))?,
            None => match nearest_venv(workspace) {
                Some(found) => found,
                None => self.real_program(&on_path(USUAL, env.get("PATH"))?)?,
            },
        };
        let way = way::resolve(&interpreter).map_err(|error| unresolved(&interpreter, &error))?;
        let needed = self.needed(&interpreter, &way);
        enter_venv(&interpreter, &mut env);
        let argv = [&interpreter.display().to_string(), "-u", "-c", BOOT, &self.root_text()]
            .map(str::to_owned)
            .to_vec();
        let (program, real) = (self.root.clone(), way.real);
        Ok(Recipe { kind: self.kind(), argv, env, interpreter, real, program, needed })
    }

    fn named_interpreter(&self, named: &str) -> Result<PathBuf, Failure> {
        let env = environment::of_worker(&BTreeMap::new());
        let found = named_interpreter(named, env.get("PATH"))?;
        if named.contains('/') { Ok(found) } else { self.real_program(&found) }
    }

    /// A zygote is not confined: it is started only where no session could have changed what it would run.
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
        let marks = installation(interpreter, &way.real);
        let places = std::iter::once(self.root.clone()).chain(marks).collect();
        Ok(ZygoteRecipe { argv, env, reads_at_start, places, trusted })
    }

    fn program(&self) -> &Path {
        &self.root
    }
}

/// Variables that Python, the C library or a library that it loads read when they start.
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

/// What belongs to an interpreter: its virtual environment, and the program with its library, or the
/// program alone where it has none beside it.
fn installation(interpreter: &Path, real: &Path) -> Vec<PathBuf> {
    let installed = real
        .parent()
        .filter(|bin| bin.ends_with("bin"))
        .and_then(Path::parent)
        .filter(|prefix| prefix.join("lib").is_dir())
        .map(Path::to_owned);
    let installed = installed.unwrap_or_else(|| real.to_owned());
    venv_of(interpreter).into_iter().chain([installed]).collect()
}

/// A virtual environment's programs come first, as if it had been activated.
fn enter_venv(interpreter: &Path, env: &mut BTreeMap<String, String>) {
    if let Some(venv) = venv_of(interpreter) {
        let bin = interpreter.parent().unwrap_or(&venv).display().to_string();
        let path = env.get("PATH").map_or_else(|| bin.clone(), |path| format!("{bin}:{path}"));
        env.insert("PATH".into(), path);
        env.insert("VIRTUAL_ENV".into(), venv.display().to_string());
    }
}

fn cannot_run(interpreter: &Path, why: &str) -> Failure {
    let message = format!("cannot run the interpreter {}: {why}", interpreter.display());
    Failure::new(ErrorCode::WorkerFailed, message)
}

fn unresolved(interpreter: &Path, error: &WayError) -> Failure {
    let why = format!("{error}; remove the link, or name another interpreter");
    cannot_run(interpreter, &why)
}

fn untrusted(interpreter: &Path, why: &Distrust) -> Failure {
    let message = format!("{}: {}", interpreter.display(), Advice(why));
    Failure::new(ErrorCode::WorkerFailed, message)
}

/// A path to an interpreter or a virtual environment, or a name on PATH.
fn named_interpreter(named: &str, path: Option<&String>) -> Result<PathBuf, Failure> {
    let given = Path::new(named);
    if !named.contains('/') {
        return on_path(named, path);
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

fn on_path(name: &str, path: Option<&String>) -> Result<PathBuf, Failure> {
    // An entry that is empty or relative means the node's own directory, whatever that is.
    path.into_iter()
        .flat_map(std::env::split_paths)
        .filter(|dir| dir.is_absolute())
        .map(|dir| dir.join(name))
        .find(|candidate| candidate.is_file())
        .ok_or_else(|| cannot_run(Path::new(name), "it is not on PATH"))
}

/// The interpreter of the nearest `.venv` at or above `workspace`.
fn nearest_venv(workspace: &Path) -> Option<PathBuf> {
    workspace.ancestors().find_map(|dir| venv_interpreter(&dir.join(".venv")))
}

fn venv_interpreter(venv: &Path) -> Option<PathBuf> {
    let interpreter = venv.join("bin/python");
    match way::resolve(&interpreter) {
        Ok(way) => way.real.is_file().then_some(interpreter),
        // It is a link to nothing, or there is none.
        Err(WayError::Look { .. }) => None,
        // Whoever starts the session hears of it.
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

fn is_script(path: &Path) -> bool {
    let mut start = [0; 2];
    std::fs::File::open(path).and_then(|mut file| file.read_exact(&mut start)).is_ok()
        && &start == b"#!"
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
        // One that is broken is as good as none.
        std::fs::remove_file(root.join("a/.venv/bin/python")).unwrap();
        std::os::unix::fs::symlink("none", root.join("a/.venv/bin/python")).unwrap();
        assert_eq!(nearest_venv(&inner), Some(root.join(".venv/bin/python")));
        std::fs::remove_dir_all(&root).unwrap();
    }

    #[test]
    fn a_missing_interpreter_is_named() {
        let failure = named_interpreter("/no/such/python", None).unwrap_err();
        assert_eq!(failure.code, ErrorCode::WorkerFailed);
        assert!(failure.message.contains("/no/such/python"));
    }

    #[test]
    fn entries_of_path_that_mean_the_nodes_own_directory_are_left_out() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("python3"), "").unwrap();
        let absolute = dir.path().display().to_string();
        let relative = format!(":.:../../../../../../../..{absolute}");
        assert!(on_path("python3", Some(&relative)).is_err());
        let found = on_path("python3", Some(&format!("{relative}:{absolute}"))).unwrap();
        assert_eq!(found, dir.path().join("python3"));
    }
}
