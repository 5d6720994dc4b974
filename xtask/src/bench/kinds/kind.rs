//! The kinds of worker that `kinds` measures: the code of each turn, how a node gets the kind, and the bare
//! interpreter beside it. A kind whose interpreter is missing says what the machine lacks.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::Result;
use windlass_protocol::api::CreateSession;
use windlass_testkit::TestNodeBuilder;

use crate::bench::bare_pipe::BareLoop;
use crate::bench::figure::millis;
use crate::bench::kernels::{self, KernelRounds};
use crate::bench::python;

/// A Node.js of version 22.6 or newer, for the kinds `node` and `pyodide`.
const NODE_VARIABLE: &str = "WINDLASS_TEST_NODE";
/// The directory of the npm package `pyodide`.
const PYODIDE_VARIABLE: &str = "WINDLASS_TEST_PYODIDE";

/// Where programs are searched. A node of the bench has the same PATH.
const SEARCHED: [&str; 3] = ["/usr/local/bin", "/usr/bin", "/bin"];

const NODE_LOOP: &str = "require('readline').createInterface({ input: process.stdin })
    .on('line', (line) => console.log((0, eval)(line)))";

const PYODIDE_LOOP: &str =
    "import(process.argv[1] + '/pyodide.mjs').then(async ({ loadPyodide }) => {
    const pyodide = await loadPyodide();
    require('readline').createInterface({ input: process.stdin })
        .on('line', (line) => console.log(pyodide.runPython(line)));
})";

/// One kind of worker, and what is run in its sessions.
pub struct BenchKind {
    /// The last part of the figures' names.
    pub name: &'static str,
    /// The name by which a session requests the kind.
    pub worker: &'static str,
    /// A trivial turn, and its output.
    pub code: &'static str,
    pub answer: &'static str,
    /// Turns that print, and then sleep or compute for a long time.
    pub sleep: &'static str,
    pub busy: &'static str,
    pub turns: usize,
    pub starts: usize,
    find: fn() -> Result<KindSetup, String>,
}

pub const PYTHON: BenchKind = BenchKind {
    name: "python",
    worker: "python",
    code: "1+1",
    answer: "2\n",
    sleep: "import time; print('go'); time.sleep(60)",
    busy: "print('go')\nwhile True: pass",
    turns: 500,
    starts: 20,
    find: find_python,
};

pub const SHELL: BenchKind = BenchKind {
    name: "shell",
    worker: "shell",
    code: ":",
    answer: "",
    sleep: "echo go; sleep 60",
    busy: "echo go; while :; do :; done",
    find: find_shell,
    ..PYTHON
};

pub const R: BenchKind = BenchKind {
    name: "r",
    worker: "r",
    answer: "[1] 2\n",
    sleep: "cat('go\\n'); Sys.sleep(60)",
    busy: "cat('go\\n'); repeat {}",
    find: find_r,
    ..PYTHON
};

pub const NODE: BenchKind = BenchKind {
    name: "node",
    worker: "node",
    sleep: "console.log('go'); await new Promise((done) => setTimeout(done, 60000))",
    busy: "console.log('go'); for (;;);",
    find: find_node,
    ..PYTHON
};

/// A loop of the kind `node` after an await.
pub const NODE_AWAIT: &str = "await 1; console.log('go'); for (;;);";

pub const PYODIDE: BenchKind = BenchKind {
    name: "pyodide",
    worker: "pyodide",
    turns: 100,
    starts: 3,
    find: find_pyodide,
    ..PYTHON
};

pub const JUPYTER: BenchKind = BenchKind {
    name: "jupyter",
    worker: "jupyter:python3",
    turns: 100,
    starts: 5,
    find: find_jupyter,
    ..PYTHON
};

impl BenchKind {
    /// The figure of this kind for one part of the work.
    pub fn figure(&self, part: &str) -> String {
        format!("kind_{part}_{}", self.name)
    }

    /// What the machine has for this kind. `None` after a line that says what is missing.
    pub fn find(&self, part: &str) -> Option<KindSetup> {
        match (self.find)() {
            Ok(setup) => Some(setup),
            Err(missing) => {
                eprintln!("skipped: {}: {missing}", self.figure(part));
                None
            }
        }
    }

    /// The request for a session in this workspace, with the default policy.
    pub fn create(&self, setup: &KindSetup, workspace: &Path) -> CreateSession {
        CreateSession {
            worker: Some(self.worker.to_owned()),
            interpreter: setup.interpreter.clone(),
            workspace: Some(workspace.display().to_string()),
            ..CreateSession::default()
        }
    }
}

/// What the machine has for a kind.
pub struct KindSetup {
    /// The interpreter that a session names. `None` if the node's configuration names it.
    pub interpreter: Option<String>,
    /// The node's configuration file.
    config: String,
    /// The directory with the kernels that the node finds.
    jupyter: Option<PathBuf>,
    pub baseline: Baseline,
}

impl KindSetup {
    fn of(interpreter: &Path, baseline: Baseline) -> Self {
        let interpreter = Some(interpreter.display().to_string());
        Self { interpreter, config: String::new(), jupyter: None, baseline }
    }

    /// A node that has the kind.
    pub fn node(&self, builder: TestNodeBuilder) -> TestNodeBuilder {
        let builder = builder.config(&self.config);
        match &self.jupyter {
            Some(directory) => builder.env("JUPYTER_PATH", directory),
            None => builder,
        }
    }
}

/// The same work without Windlass.
pub enum Baseline {
    Bare(Box<BareInterpreter>),
    /// A kernel that jupyter_client drives, with this Python.
    Kernel(PathBuf),
}

/// An interpreter as a loop on pipes, and as a command that prints one answer.
pub struct BareInterpreter {
    warm: BareLoop,
    once: Command,
}

impl Baseline {
    fn bare(warm: BareLoop, once: Command) -> Self {
        Self::Bare(Box::new(BareInterpreter { warm, once }))
    }

    /// The times of warm turns, in milliseconds.
    pub fn turns(&mut self, rounds: usize, warm_ups: usize) -> Result<Vec<f64>> {
        match self {
            Self::Bare(bare) => Ok(millis(&bare.warm.round_trips(rounds)?)),
            Self::Kernel(python) => {
                let rounds = KernelRounds { turns: rounds, warm_ups, ..KernelRounds::default() };
                Ok(ipykernel(python, rounds)?.warm_turn)
            }
        }
    }

    /// The times from a start to the first answer in milliseconds, and the memory after it in MiB.
    pub fn starts(&mut self, rounds: usize) -> Result<(Vec<f64>, Vec<f64>)> {
        match self {
            Self::Bare(bare) => {
                let times = (0..rounds).map(|_| python::first_byte(&mut bare.once));
                let times = times.collect::<Result<Vec<Duration>>>()?;
                Ok((millis(&times), vec![bare.warm.idle_mib()?]))
            }
            Self::Kernel(python) => {
                let rounds = KernelRounds { starts: rounds, ..KernelRounds::default() };
                let samples = ipykernel(python, rounds)?;
                Ok((samples.first_answer, samples.session_mib))
            }
        }
    }
}

fn ipykernel(python: &Path, rounds: KernelRounds) -> Result<kernels::KernelSamples> {
    kernels::samples(python, &kernels::IPYKERNEL, rounds)?.map_err(anyhow::Error::msg)
}

fn find_python() -> Result<KindSetup, String> {
    let mut once = python::command();
    once.args(["-c", "print(1+1)"]);
    Ok(KindSetup::of(&python::path(), Baseline::bare(BareLoop::python(), once)))
}

fn find_shell() -> Result<KindSetup, String> {
    let bash = on_path("bash")?;
    let warm =
        BareLoop { command: python::command_of(&bash), line: ":; echo done\n", answer: "done\n" };
    let mut once = python::command_of(&bash);
    once.args(["-c", ":; echo done"]);
    Ok(KindSetup::of(&bash, Baseline::bare(warm, once)))
}

fn find_r() -> Result<KindSetup, String> {
    let r = on_path("R")?;
    let mut command = python::command_of(&r);
    command.arg("--slave");
    let warm = BareLoop { command, line: "cat(1+1,\"\\n\")\n", answer: "2 \n" };
    let mut once = python::command_of(&r);
    once.args(["--slave", "-e", "cat(1+1)"]);
    Ok(KindSetup::of(&r, Baseline::bare(warm, once)))
}

fn find_node() -> Result<KindSetup, String> {
    let node = PathBuf::from(variable(NODE_VARIABLE)?);
    let mut command = python::command_of(&node);
    command.args(["-e", NODE_LOOP]);
    let warm = BareLoop { command, line: "1+1\n", answer: "2\n" };
    let mut once = python::command_of(&node);
    once.args(["-e", "console.log(1+1)"]);
    Ok(KindSetup::of(&node, Baseline::bare(warm, once)))
}

fn find_pyodide() -> Result<KindSetup, String> {
    let (node, package) = (variable(NODE_VARIABLE)?, variable(PYODIDE_VARIABLE)?);
    let mut command = python::command_of(&node);
    command.args(["-e", PYODIDE_LOOP, &package]);
    let warm = BareLoop { command, line: "1+1\n", answer: "2\n" };
    let code = PYODIDE_LOOP.replace("process.stdin", "require('stream').Readable.from(['1+1\\n'])");
    let mut once = python::command_of(&node);
    once.args(["-e", &code, &package]);
    let config = format!(
        "[workers.pyodide]\ninterpreter = {node:?}\npackage = {package:?}\nready_s = 120\n"
    );
    let baseline = Baseline::bare(warm, once);
    Ok(KindSetup { interpreter: None, config, jupyter: None, baseline })
}

fn find_jupyter() -> Result<KindSetup, String> {
    let python = kernels::find_python()?;
    let prefix = python.parent().and_then(Path::parent);
    let prefix = prefix.ok_or_else(|| format!("{} is in no directory", python.display()))?;
    let jupyter = Some(prefix.join("share/jupyter"));
    let baseline = Baseline::Kernel(python);
    Ok(KindSetup { interpreter: None, config: String::new(), jupyter, baseline })
}

fn variable(name: &str) -> Result<String, String> {
    std::env::var(name).map_err(|_| format!("{name} is not set"))
}

fn on_path(program: &str) -> Result<PathBuf, String> {
    let found = SEARCHED.iter().map(|directory| Path::new(directory).join(program));
    let found = found.into_iter().find(|path| path.is_file());
    found.ok_or_else(|| format!("there is no {program} in {}", SEARCHED.join(":")))
}
