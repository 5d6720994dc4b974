//! The table of clients: what each is called, in which syntax and under which key it lists its MCP
//! servers, and how our entry looks there. Where the files are is in `places`.
//!
//! No entry names a timeout. Our tools answer within a minute, with a word on how to go on where a
//! turn takes longer, and every client waits at least that long by itself: Cursor and Zed 60 s,
//! opencode 60 s from the last sign of progress, Codex 60 s in its oldest versions and minutes
//! since, Gemini CLI 10 minutes, Claude Code a day, VS Code without end. A longer one would only
//! make a lost answer cost more.

use clap::ValueEnum;
use serde_json::{Map, Value, json};

/// The name of our entry among a client's servers.
pub const ENTRY: &str = "windlass";

/// What our program is started with.
pub const ARGUMENT: &str = "mcp";

/// The variables that say where the node is.
const PASSED_ON: &[&str] = &[
    "XDG_RUNTIME_DIR",
    "XDG_STATE_HOME",
    "WINDLASS_RUNTIME_DIR",
    "WINDLASS_STATE_DIR",
    "WINDLASS_URL",
    "WINDLASS_TOKEN",
];

/// Keys that a new entry has, and its user may change or remove.
const CHOICES: &[&str] = &["env_vars", "default_tools_approval_mode"];

/// Keys of an entry that is reached over the network. Beside a command they are ambiguous, and some
/// clients refuse the whole file for it; so they leave when an entry becomes a command.
pub const REMOTE_KEYS: &[&str] = &[
    "url",
    "httpUrl",
    "serverUrl",
    "headers",
    "http_headers",
    "env_http_headers",
    "bearer_token_env_var",
    "oauth",
];

/// A program that has agents and reads MCP servers from a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Client {
    #[value(alias = "claude")]
    ClaudeCode,
    Codex,
    Cursor,
    #[value(name = "vscode", alias = "code")]
    VsCode,
    #[value(alias = "gemini-cli")]
    Gemini,
    #[value(name = "opencode")]
    OpenCode,
    Zed,
}

/// Whose configuration is meant: the user's, or that of the project in the working directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Scope {
    User,
    Project,
}

/// How a file is written, which is what its client can read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Syntax {
    Json,
    JsonWithComments,
    /// With comments and trailing commas.
    JsonWithCommentsAndCommas,
    Toml,
}

/// What is the same for every user of a client.
#[derive(Debug)]
pub struct Facts {
    pub name: &'static str,
    pub title: &'static str,
    /// Programs whose presence says that the client is there.
    pub programs: &'static [&'static str],
    pub syntax: Syntax,
    /// The key whose value lists the servers.
    pub section: &'static str,
    /// How its user sees that the entry is there.
    pub check: &'static str,
    /// What is needed before it is used.
    pub then: &'static str,
    /// What more a project's file needs, which anybody could have written.
    pub project: &'static str,
}

impl Client {
    pub fn all() -> impl Iterator<Item = Self> {
        Self::value_variants().iter().copied()
    }

    pub fn facts(self) -> &'static Facts {
        match self {
            Self::ClaudeCode => &CLAUDE_CODE,
            Self::Codex => &CODEX,
            Self::Cursor => &CURSOR,
            Self::VsCode => &VS_CODE,
            Self::Gemini => &GEMINI,
            Self::OpenCode => &OPENCODE,
            Self::Zed => &ZED,
        }
    }

    /// Our entry for a new installation.
    pub fn entry(self, command: &str) -> Map<String, Value> {
        let entry = match self {
            Self::ClaudeCode | Self::Cursor | Self::VsCode => {
                json!({ "type": "stdio", "command": command, "args": [ARGUMENT] })
            }
            // Codex passes few variables on, and would ask about every call, or refuse it where
            // nobody can be asked. A call is confined by the sandbox that Codex names with it.
            Self::Codex => json!({
                "command": command,
                "args": [ARGUMENT],
                "env_vars": PASSED_ON,
                "default_tools_approval_mode": "approve",
            }),
            Self::Gemini | Self::Zed => json!({ "command": command, "args": [ARGUMENT] }),
            Self::OpenCode => json!({ "type": "local", "command": [command, ARGUMENT] }),
        };
        match entry {
            Value::Object(entry) => entry,
            _ => unreachable!("each is written as an object"),
        }
    }

    /// Our entry where one is already: further arguments of our program are the user's, and stay.
    /// What only a new entry says is not said again: they may have decided otherwise.
    pub fn entry_over(self, command: &str, existing: &Value) -> Map<String, Value> {
        let mut entry = self.entry(command);
        for choice in CHOICES {
            entry.remove(*choice);
        }
        let (key, ours) = match self {
            Self::OpenCode => ("command", 1),
            _ => ("args", 0),
        };
        let theirs = existing.get(key).and_then(Value::as_array);
        if let (Some(theirs), Some(Value::Array(arguments))) = (theirs, entry.get_mut(key))
            && theirs.get(ours).is_some_and(|argument| argument == ARGUMENT)
        {
            arguments.extend(theirs[ours + 1..].iter().cloned());
        }
        entry
    }
}

/// Whether the user has switched the entry off, in the words of any of the clients.
pub fn is_disabled(entry: &Value) -> bool {
    entry.get("enabled") == Some(&Value::Bool(false))
        || entry.get("disabled") == Some(&Value::Bool(true))
}

static CLAUDE_CODE: Facts = Facts {
    name: "claude-code",
    title: "Claude Code",
    programs: &["claude"],
    syntax: Syntax::Json,
    section: "mcpServers",
    check: "claude mcp list",
    then: "start a new session of Claude Code",
    project: "Claude Code asks each user once whether a project's servers may be started",
};

static CODEX: Facts = Facts {
    name: "codex",
    title: "Codex",
    programs: &["codex"],
    syntax: Syntax::Toml,
    section: "mcp_servers",
    check: "codex mcp list",
    then: "start a new session of Codex; calls are confined by its sandbox, and not asked about",
    project: "Codex reads a project's file only if the project is trusted",
};

static CURSOR: Facts = Facts {
    name: "cursor",
    title: "Cursor",
    programs: &["cursor", "cursor-agent"],
    syntax: Syntax::JsonWithCommentsAndCommas,
    section: "mcpServers",
    check: "Cursor Settings > Tools & MCP, or cursor-agent mcp list",
    then: "restart Cursor",
    project: "Cursor asks whether a project's servers may be started",
};

static VS_CODE: Facts = Facts {
    name: "vscode",
    title: "VS Code",
    programs: &["code", "code-insiders", "codium"],
    syntax: Syntax::JsonWithCommentsAndCommas,
    section: "servers",
    check: "the command \"MCP: List Servers\"",
    then: "start the server there, or reload the window",
    project: "VS Code asks whether a workspace's servers may be started",
};

static GEMINI: Facts = Facts {
    name: "gemini",
    title: "Gemini CLI",
    programs: &["gemini"],
    syntax: Syntax::JsonWithComments,
    section: "mcpServers",
    check: "gemini mcp list",
    then: "start a new session of Gemini CLI, in a folder that it trusts",
    project: "Gemini CLI starts servers only in folders that it trusts",
};

static OPENCODE: Facts = Facts {
    name: "opencode",
    title: "opencode",
    programs: &["opencode"],
    syntax: Syntax::JsonWithCommentsAndCommas,
    section: "mcp",
    check: "opencode mcp list",
    then: "start a new session of opencode",
    project: "",
};

static ZED: Facts = Facts {
    name: "zed",
    title: "Zed",
    programs: &["zed", "zeditor"],
    syntax: Syntax::JsonWithCommentsAndCommas,
    section: "context_servers",
    check: "Settings > AI > MCP Servers: a green dot beside windlass",
    then: "nothing: Zed reads its settings when they change",
    project: "Zed reads a project's servers only if the project is trusted",
};
