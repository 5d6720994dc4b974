//! The kinds of worker under test: the same small programs in each language, and what the machine must have.

use std::path::Path;

use windlass_client::Client;
use windlass_client::protocol::SessionId;
use windlass_client::protocol::api::CreateSession;
use windlass_testkit::{TestNode, TestNodeBuilder, skip};

/// A Node.js of version 22.6 or newer, for the kinds `node` and `pyodide`.
const NODE_VARIABLE: &str = "WINDLASS_TEST_NODE";
/// The directory of the npm package `pyodide`.
const PYODIDE_VARIABLE: &str = "WINDLASS_TEST_PYODIDE";
/// A Python with ipykernel.
const JUPYTER_VARIABLE: &str = "WINDLASS_TEST_JUPYTER_PYTHON";

/// One kind, and the same programs in its language.
#[derive(Debug)]
pub struct Language {
    /// The name by which a session requests the kind.
    pub worker: &'static str,
    /// Sets a variable to 41, and prints it plus one.
    pub set: &'static str,
    pub get: &'static str,
    /// Prints `one`, shows a display if the kind has them, and prints `two`. Ends with the value 42.
    pub ordered: &'static str,
    /// Whether the kind has displays, and whether it has a value of the last expression.
    pub displays: bool,
    pub values: bool,
    /// Fails with the text `broken`.
    pub fails: &'static str,
    /// Programs that never end by themselves, each after it printed `begun`.
    pub endless: &'static [&'static str],
    /// Asks with the prompt `name? `, and prints `hello ` and the answer.
    pub asks: &'static str,
    /// Prints `tick 0` to `tick 19`, one each 50 ms.
    pub ticks: &'static str,
    /// Prints the field `hits` of what the host tool `find` returns for the query `x`.
    pub calls: &'static str,
    /// Prints `reached` if it can write a file into `/etc`, or open a connection to 127.0.0.1:PORT of the
    /// machine; else `refused` for each.
    pub reaches: &'static str,
}

pub const SHELL: Language = Language {
    worker: "shell",
    set: "x=41",
    get: "echo $((x + 1))",
    ordered: "echo one; echo two",
    displays: false,
    values: false,
    fails: "echo broken >&2; false",
    endless: &[
        "echo begun; sleep 600",
        "echo begun; while :; do :; done",
        "echo begun; sh -c 'sleep 600; :'",
    ],
    asks: "read -p 'name? ' n; echo hello $n",
    ticks: "for i in $(seq 0 19); do echo tick $i; sleep 0.05; done",
    calls: "windlass-tool find --query x | grep -o '[0-9]*'",
    reaches: "touch /etc/windlass-kinds 2>/dev/null && echo reached || echo refused\n\
        (exec 3<>/dev/tcp/127.0.0.1/PORT) 2>/dev/null && echo reached || echo refused",
};

pub const R: Language = Language {
    worker: "r",
    set: "x <- 41",
    get: "cat(x + 1, '\\n', sep = '')",
    ordered: "cat('one\\n'); display_html('<b>x</b>'); cat('two\\n'); 42",
    displays: true,
    values: true,
    fails: "stop('broken')",
    endless: &[
        "cat('begun\\n'); Sys.sleep(600)",
        "cat('begun\\n'); repeat {}",
        "cat('begun\\n'); system('sleep 600')",
    ],
    asks: "n <- readline('name? '); cat('hello', n, '\\n')",
    ticks: "for (i in 0:19) { cat('tick', i, '\\n'); Sys.sleep(0.05) }",
    calls: "cat(tools$find(query = 'x')$hits)",
    reaches: "ok <- suppressWarnings(tryCatch(file.create('/etc/windlass-kinds'), error = function(e) FALSE))\n\
        cat(if (isTRUE(ok)) 'reached\\n' else 'refused\\n')\n\
        ok <- suppressWarnings(tryCatch({ close(socketConnection('127.0.0.1', PORT, timeout = 5)); TRUE }, \
        error = function(e) FALSE))\ncat(if (ok) 'reached\\n' else 'refused\\n')",
};

pub const JAVASCRIPT: Language = Language {
    worker: "node",
    set: "const x = 41",
    get: "console.log(x + 1)",
    ordered: "console.log('one'); display.html('<b>x</b>'); console.log('two'); 42",
    displays: true,
    values: true,
    fails: "throw new Error('broken')",
    endless: &[
        "console.log('begun'); await new Promise((done) => setTimeout(done, 600000))",
        "console.log('begun'); for (;;) {}",
        "console.log('begun'); require('child_process').execSync('sleep 600')",
    ],
    asks: "const n = prompt('name? '); console.log('hello', n)",
    ticks: "for (let i = 0; i < 20; i++) { console.log('tick', i); await new Promise((d) => setTimeout(d, 50)) }",
    calls: "console.log((await tools.find({ query: 'x' })).hits)",
    reaches: "try { require('fs').writeFileSync('/etc/windlass-kinds', ''); console.log('reached') } \
        catch { console.log('refused') }\n\
        await new Promise((done) => { const s = require('net').connect(PORT, '127.0.0.1'); \
        s.on('connect', () => { console.log('reached'); s.destroy(); done() }); \
        s.on('error', () => { console.log('refused'); done() }) })",
};

const PYTHON_REACHES: &str = "import socket\n\
    try:\n    open('/etc/windlass-kinds', 'w'); print('reached')\nexcept OSError:\n    print('refused')\n\
    try:\n    socket.create_connection(('127.0.0.1', PORT), 5); print('reached')\nexcept OSError:\n    print('refused')";

pub const PYTHON: Language = Language {
    worker: "python",
    set: "x = 41",
    get: "print(x + 1)",
    ordered: "print('one'); print('two'); 42",
    displays: false,
    values: true,
    fails: "raise ValueError('broken')",
    endless: &[
        "print('begun'); import time; time.sleep(600)",
        "print('begun')\nwhile True: pass",
        "print('begun'); import subprocess; subprocess.run(['sleep', '600'])",
    ],
    asks: "print('hello', input('name? '))",
    ticks: "import time\nfor i in range(20):\n    print('tick', i)\n    time.sleep(0.05)",
    calls: "print(tools.find(query='x')['hits'])",
    reaches: PYTHON_REACHES,
};

pub const PYODIDE: Language = Language {
    worker: "pyodide",
    endless: &[
        "print('begun'); import time; time.sleep(600)",
        "print('begun')\nwhile True: pass",
        "print('begun'); import asyncio; await asyncio.sleep(600)",
    ],
    // The interpreter has a file system of its own, where everything can be written.
    reaches: "import socket\n\
        try:\n    socket.create_connection(('127.0.0.1', PORT), 5); print('reached')\nexcept OSError:\n    print('refused')",
    ..PYTHON
};

pub const JUPYTER: Language = Language {
    worker: "jupyter:python3",
    displays: true,
    ordered: "from IPython.display import HTML, display\nprint('one'); display(HTML('<b>x</b>')); print('two'); 42",
    ..PYTHON
};

impl Language {
    /// A node with this kind, a client and a session. `None` after a skip: the machine lacks the interpreter.
    pub async fn start(&self) -> Option<(TestNode, Client, SessionId)> {
        let node = self.node()?.start().await.unwrap();
        let client = node.client().await.unwrap();
        let created = client.create_session(&self.create()).await.unwrap();
        Some((node, client, created.session.id))
    }

    /// The request for a session of this kind, in a new workspace.
    pub fn create(&self) -> CreateSession {
        CreateSession { worker: Some(self.worker.to_owned()), ..CreateSession::default() }
    }

    /// The settings of a node that has this kind.
    pub fn node(&self) -> Option<TestNodeBuilder> {
        const FIGURES: &str = "start_figures = true\n";
        let builder = TestNode::builder(env!("CARGO_BIN_EXE_windlass")).config(FIGURES);
        match self.worker {
            "python" => Some(builder),
            "shell" => on_path("bash").then_some(builder).or_else(|| missing("no bash on PATH")),
            "r" => match on_path("R") {
                true => Some(builder.environment("r", "R")),
                false => missing("no R on PATH"),
            },
            "node" => {
                let node = variable(NODE_VARIABLE)?;
                Some(builder.config(format!("{FIGURES}[workers.node]\ninterpreter = {node:?}\n")))
            }
            "pyodide" => {
                let (node, package) = (variable(NODE_VARIABLE)?, variable(PYODIDE_VARIABLE)?);
                let text = format!(
                    "{FIGURES}[workers.pyodide]\ninterpreter = {node:?}\npackage = {package:?}\nready_s = 120\n"
                );
                Some(builder.config(text))
            }
            _ => {
                let python = variable(JUPYTER_VARIABLE)?;
                let prefix = Path::new(&python).parent()?.parent()?.join("share/jupyter");
                Some(builder.env("JUPYTER_PATH", prefix))
            }
        }
    }
}

fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok().or_else(|| missing(&format!("{name} is not set")))
}

fn missing<T>(why: &str) -> Option<T> {
    skip(why);
    None
}

fn on_path(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|dir| dir.join(program).is_file())
}
