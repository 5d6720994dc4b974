//! The worker for Python in WebAssembly: which Node.js and which Pyodide it uses, and how it is started.

use std::collections::HashSet;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use windlass_protocol::ErrorCode;
use windlass_protocol::api::{CreateSession, WorkerInfo};
use windlass_protocol::kinds::pyodide::KIND;

use super::lookup::{self, FoundProgram};
use super::program_files::LazyProgram;
use super::{Launcher, Preparation, Recipe, environment};
use crate::failure::Failure;
use crate::trust::{CodeDirs, Trust};
use crate::worker_config::WorkerEntry;

/// Where npm installs packages for all users, relative to the prefix of Node.js.
const GLOBAL_PACKAGE: &str = "lib/node_modules/pyodide";

/// The module of the package that the worker loads.
const PACKAGE_MODULE: &str = "pyodide.mjs";

/// Flags of Node.js: no code from strings, no files but the named ones, a stack for deep recursion.
const FLAGS: [&str; 5] = [
    "--disallow-code-generation-from-strings",
    "--permission",
    "--allow-worker",
    "--disable-warning=SecurityWarning",
    "--stack-size=6500",
];

/// The directories of the worker's own files.
const PROGRAM_DIRS: [&str; 3] = ["pyodide", "js-kit", "python"];

/// Who serves the code's files: `host` for a client of the session, else the workspace.
const FILES_VARIABLE: &str = "WINDLASS_FILES";
const FILES_OF_HOST: &str = "host";

/// The limit of the interpreter's heap.
const HEAP_VARIABLE: &str = "WINDLASS_HEAP_MB";
const HEAP_MB_DEFAULT: u64 = 1024;
const HEAP_MB_MIN: u64 = 64;
/// The largest memory of 32 bits of address.
const HEAP_MB_MAX: u64 = 4095;
/// What Node.js and the interpreter's own code take of a session's memory, besides the heap.
const OUTSIDE_HEAP_MB: u64 = 192;

/// Set in the session that makes the memory snapshot.
const SNAPSHOT_VARIABLE: &str = "WINDLASS_MAKE_SNAPSHOT";
/// The snapshot's name in the workspace of that session, and the directory of all snapshots.
const SNAPSHOT_FILE: &str = "snapshot";
const SNAPSHOTS_DIR: &str = "snapshots";

/// Files of the package that a snapshot depends on.
const SNAPSHOT_SOURCES: [&str; 3] = ["package.json", PACKAGE_MODULE, "pyodide.asm.wasm"];

/// How long a worker may take to become ready. Its start is about 3 s of computing, which a busy machine stretches.
const READY_MAX: Duration = Duration::from_secs(120);

/// How Pyodide workers are started.
#[derive(Debug)]
pub(super) struct Pyodide {
    program: LazyProgram,
    trust: Arc<Trust>,
    settings: WorkerEntry,
    snapshots: Mutex<MissingSnapshots>,
}

/// The snapshots that this node has tried to make, and the one to make next.
#[derive(Debug, Default)]
struct MissingSnapshots {
    tried: HashSet<PathBuf>,
    next: Option<Preparation>,
}

impl Pyodide {
    /// `program` has the files of all JavaScript workers.
    pub fn new(program: LazyProgram, trust: Arc<Trust>, settings: WorkerEntry) -> Self {
        Self { program, trust, settings, snapshots: Mutex::default() }
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

    /// The arguments for the memory snapshot of this Node.js and this package, and the snapshot's path. Notes that a
    /// snapshot is missing. None is used if a session could have changed Node.js or the package.
    fn snapshot(
        &self,
        wanted: &CreateSession,
        root: &Path,
        node: &FoundProgram,
        package: &Path,
    ) -> Option<PathBuf> {
        let code = CodeDirs { trees: [package.to_owned()].into(), ..CodeDirs::default() };
        if !node.is_trusted(&self.trust) || self.trust.check(&code).is_err() {
            return None;
        }
        let target = root.join(SNAPSHOTS_DIR).join(snapshot_name(node, package));
        if target.is_file() {
            return Some(target);
        }
        let mut snapshots = self.snapshots.lock().expect("no holder of this lock can panic");
        if snapshots.tried.insert(target.clone()) {
            let maker = CreateSession {
                worker: Some(KIND.name.to_owned()),
                interpreter: wanted.interpreter.clone(),
                env: [(SNAPSHOT_VARIABLE.to_owned(), "1".to_owned())].into(),
                ..CreateSession::default()
            };
            snapshots.next = Some(Preparation { wanted: maker, file: SNAPSHOT_FILE, target });
        }
        None
    }
}

/// A name that changes with Node.js and the package. The worker checks what a snapshot was made from.
fn snapshot_name(node: &FoundProgram, package: &Path) -> String {
    let mut hasher = DefaultHasher::new();
    (&node.way.real, package).hash(&mut hasher);
    let sources = SNAPSHOT_SOURCES.iter().map(|name| package.join(name));
    for source in sources.chain([node.way.real.clone()]) {
        if let Ok(found) = source.metadata() {
            (found.len(), found.mtime(), found.mtime_nsec()).hash(&mut hasher);
        }
    }
    format!("{:016x}", hasher.finish())
}

/// The heap of a session with this limit of its memory. Code gets a MemoryError before the limit ends the worker.
fn heap_mb(memory_bytes: Option<u64>) -> u64 {
    let left = |bytes: u64| (bytes >> 20).saturating_sub(OUTSIDE_HEAP_MB);
    memory_bytes.map_or(HEAP_MB_DEFAULT, |bytes| left(bytes).clamp(HEAP_MB_MIN, HEAP_MB_MAX))
}

impl Launcher for Pyodide {
    fn info(&self) -> WorkerInfo {
        let found = self.node(None, environment::path().as_ref());
        let found = found.and_then(|node| self.package(&node).map(|_| node.path));
        super::built_in_info(&KIND, found)
    }

    fn recipe(&self, wanted: &CreateSession, workspace: &Path) -> Result<Recipe, Failure> {
        let mut env = environment::of_worker(&wanted.env);
        let root = self.program.write()?;
        let node = self.node(wanted.interpreter.as_deref(), env.get("PATH"))?;
        let package = self.package(&node)?;
        let policy = wanted.policy.as_ref().or(self.settings.policy.as_ref());
        let memory = policy.and_then(|policy| policy.limits.memory_bytes);
        env.entry(HEAP_VARIABLE.to_owned()).or_insert_with(|| heap_mb(memory).to_string());
        let serves_workspace = env.get(FILES_VARIABLE).is_none_or(|files| files != FILES_OF_HOST);
        let mut readable = vec![package.clone()];
        readable.extend(PROGRAM_DIRS.iter().map(|name| root.join(name)));
        readable.extend(self.settings.wheels.clone());
        let makes_snapshot = env.remove(SNAPSHOT_VARIABLE).is_some();
        let snapshot = match makes_snapshot {
            true => None,
            false => self.snapshot(wanted, root, &node, &package),
        };
        let mut argv = vec![node.path.display().to_string()];
        argv.extend(FLAGS.map(str::to_owned));
        if serves_workspace {
            readable.push(workspace.to_owned());
            argv.push(format!("--allow-fs-write={}/*", workspace.display()));
        }
        // Node.js refuses a directory that is named after a directory below it.
        readable.sort_by_key(|dir| dir.as_os_str().len());
        argv.extend(readable.iter().map(|dir| format!("--allow-fs-read={}/*", dir.display())));
        argv.extend(snapshot.iter().map(|file| format!("--allow-fs-read={}", file.display())));
        argv.push(root.join("pyodide/worker.mjs").display().to_string());
        argv.extend(["--package".to_owned(), package.display().to_string()]);
        if makes_snapshot {
            let file = workspace.join(SNAPSHOT_FILE).display().to_string();
            argv.extend(["--make-snapshot".to_owned(), file]);
        } else if let Some(snapshot) = &snapshot {
            argv.extend(["--snapshot".to_owned(), snapshot.display().to_string()]);
        }
        let mut needed = node.needed(&self.trust);
        // A package beside a Node.js that a session could have changed makes no path readable.
        if self.settings.package.is_some() || node.is_trusted(&self.trust) {
            needed.push(package);
        }
        if let Some(wheels) = &self.settings.wheels {
            argv.extend(["--packages".to_owned(), wheels.display().to_string()]);
            needed.push(wheels.clone());
        }
        Ok(Recipe {
            name: KIND.name.to_owned(),
            argv,
            env,
            needed,
            interpreter: node.path,
            real: node.way.real,
            program: Some(root.to_owned()),
        })
    }

    fn named_interpreter(&self, named: &str) -> Result<PathBuf, Failure> {
        Ok(self.node(Some(named), environment::path().as_ref())?.path)
    }

    fn preparation(&self) -> Option<Preparation> {
        self.snapshots.lock().expect("no holder of this lock can panic").next.take()
    }

    fn ready_timeout(&self) -> Option<Duration> {
        Some(READY_MAX)
    }

    fn program(&self) -> Option<&Path> {
        Some(self.program.root())
    }
}
