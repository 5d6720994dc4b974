//! The environment variables of Windlass. `docs/reference/environment.md` is written from this table, and
//! `cargo xtask tidy` compares the table with the sources.

/// An environment variable whose name begins with `WINDLASS_`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Variable {
    pub name: &'static str,
    pub group: VariableGroup,
    /// The programs that read it.
    pub read_by: &'static str,
    pub meaning: &'static str,
    /// The value without the variable; empty for none.
    pub default: &'static str,
}

/// Who sets a variable, and for what.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum VariableGroup {
    /// Users set it to say where the node and its files are.
    Place,
    /// Users set it for a node, before the node starts.
    Node,
    /// Users set it in the environment of a session, or in `environment` of `config.toml`.
    Session,
    /// Windlass sets it for a worker. Nobody else does.
    Worker,
    /// Only tests and measurements set it.
    Tests,
}

use VariableGroup::{Node, Place, Session, Tests, Worker};

const fn variable(
    name: &'static str,
    group: VariableGroup,
    read_by: &'static str,
    default: &'static str,
    meaning: &'static str,
) -> Variable {
    Variable { name, group, read_by, meaning, default }
}

/// Every variable, by group and name.
pub const VARIABLES: [Variable; 30] = [
    variable(
        "WINDLASS_BIN",
        Place,
        "SDKs",
        "the program of the package, else `windlass` on PATH",
        "the program that an SDK starts a node with",
    ),
    variable(
        "WINDLASS_CA",
        Place,
        "commands, SDKs",
        "the authorities that the machine trusts",
        "a PEM file: the only authorities that may sign the certificate of the node at an `https` URL",
    ),
    variable(
        "WINDLASS_NATS_SERVER",
        Place,
        "`fleet dev`",
        "`nats-server` on PATH",
        "the program that serves the store of a fleet to try",
    ),
    variable(
        "WINDLASS_RUNTIME_DIR",
        Place,
        "commands, node, SDKs",
        "`$XDG_RUNTIME_DIR/windlass`, else `/run/user/UID/windlass`, else `/tmp/windlass-UID`",
        "the directory of the node's socket and locks. It may vanish when the machine restarts",
    ),
    variable(
        "WINDLASS_STATE_DIR",
        Place,
        "commands, node, SDKs",
        "`$XDG_STATE_HOME/windlass`, else `~/.local/state/windlass`",
        "the directory of journals, workspaces, secrets and the node's log",
    ),
    variable(
        "WINDLASS_TOKEN",
        Place,
        "commands, SDKs",
        "",
        "the token of the node that `WINDLASS_URL` names; `windlass token` prints it",
    ),
    variable(
        "WINDLASS_URL",
        Place,
        "commands, SDKs",
        "the socket in the runtime directory",
        "the address of a node over TCP, for example `http://127.0.0.1:8040` or `https://node.example:8040`",
    ),
    variable(
        "WINDLASS_CONFIG",
        Node,
        "node, `config`",
        "`$XDG_CONFIG_HOME/windlass/config.toml`, else `~/.config/windlass/config.toml`",
        "the path of the configuration file",
    ),
    variable(
        "WINDLASS_ENVIRONMENTS",
        Node,
        "node",
        "`environments.json` in the directory of the usual `config.toml`",
        "the path of the file that lists interpreters with pooled workers; key `environments`",
    ),
    variable(
        "WINDLASS_LOG",
        Node,
        "node",
        "`info,rmcp=error,rmcp::service=off`",
        "what the node logs: a level, or levels by module; key `log`",
    ),
    variable(
        "WINDLASS_MCP_CONFIG",
        Node,
        "node",
        "`mcp.json` in the directory of the usual `config.toml`",
        "the path of the file that lists MCP servers (`/dev/null`: none); key `mcp_config`",
    ),
    variable(
        "WINDLASS_RETAIN_AGE",
        Node,
        "node",
        "`7d`",
        "how long journals of ended sessions stay; key `retain_age`",
    ),
    variable(
        "WINDLASS_RETAIN_BYTES",
        Node,
        "node",
        "`10G`",
        "maximum total size of journals and of workspaces of ended sessions; key `retain_bytes`",
    ),
    variable(
        "WINDLASS_SESSION_UIDS",
        Node,
        "node",
        "",
        "the user ids of sessions, on a node that root runs; key `session_uids`",
    ),
    variable(
        "WINDLASS_START",
        Node,
        "node",
        "`pool`",
        "the fastest way to start a worker: `exec`, `zygote` or `pool`; key `start`",
    ),
    variable(
        "WINDLASS_FILES_DEADLINE_MS",
        Session,
        "worker `pyodide`",
        "`10000`",
        "milliseconds that a client has to answer a file operation of the code",
    ),
    variable(
        "WINDLASS_HEAP_MB",
        Session,
        "worker `pyodide`",
        "`1024`, or less if the memory limit is smaller",
        "the largest heap of the interpreter, in MiB",
    ),
    variable(
        "WINDLASS_LANGUAGE",
        Session,
        "worker `node`",
        "`javascript`",
        "the language of the code: `javascript` or `typescript`",
    ),
    variable(
        "WINDLASS_STARTUP",
        Session,
        "workers `shell`, `node`",
        "",
        "a file that runs before the first turn",
    ),
    variable("WINDLASS_BASH", Worker, "worker `shell`", "", "the path of bash"),
    variable(
        "WINDLASS_FD",
        Worker,
        "every worker",
        "",
        "the number of the descriptor that the worker protocol uses",
    ),
    variable(
        "WINDLASS_FILES",
        Worker,
        "worker `pyodide`",
        "",
        "`host`: a client serves the code's files. The SDKs set it with a file provider",
    ),
    variable(
        "WINDLASS_MAKE_SNAPSHOT",
        Worker,
        "node",
        "",
        "marks the session that makes the memory snapshot of Pyodide",
    ),
    variable(
        "WINDLASS_SCRATCH",
        Worker,
        "worker `python`",
        "",
        "the directory for packages that the session's code installs",
    ),
    variable(
        "WINDLASS_TERMINAL",
        Worker,
        "workers with a terminal",
        "",
        "the size of the terminal, as `COLUMNSxROWS`",
    ),
    variable(
        "WINDLASS_TOOL_FD",
        Worker,
        "`windlass-tool`",
        "",
        "the number of the descriptor for calls of host tools from a shell",
    ),
    variable(
        "WINDLASS_BENCH_PYTHON",
        Tests,
        "`cargo xtask bench`",
        "`/usr/bin/python3`",
        "an interpreter with numpy and pandas to measure",
    ),
    variable(
        "WINDLASS_CONSOLE_PROGRAM",
        Tests,
        "tests of the console",
        "",
        "the `windlass` program whose console they test. `cargo xtask console` sets it",
    ),
    variable(
        "WINDLASS_TEST_CLOCK_OFFSET_FILE",
        Tests,
        "node",
        "",
        "a file with milliseconds to add to the node's clock",
    ),
    variable(
        "WINDLASS_XTASK_PROGRAM",
        Tests,
        "`cargo xtask`",
        "a program that is built now",
        "the `windlass` program to use instead of building one",
    ),
];

/// The prefix of all names.
pub const PREFIX: &str = "WINDLASS_";
