//! The table of clients: the name of each, the syntax and the key of its list of MCP servers, and the
//! Windlass entry for it. The module `config_paths` has the paths of the files.
//!
//! No entry sets a timeout. Windlass tools reply within a minute; for a longer turn the reply says how to
//! continue. The default timeout of every client is at least that long:
//! - Cursor and Zed: 60 s
//! - opencode: 60 s since the last progress
//! - Codex: 60 s in its oldest versions, minutes since then
//! - Gemini CLI: 10 minutes
//! - Claude Code: a day
//! - VS Code: none
//!
//! A longer timeout would only delay the report of a lost reply.

use clap::ValueEnum;
use serde_json::{Map, Value, json};

/// The name of the Windlass entry among the servers of a client.
pub const ENTRY: &str = "windlass";

/// The argument that clients start windlass with.
pub const ARGUMENT: &str = "mcp";

/// The variables that locate the node.
const PASSED_ON: &[&str] = &[
    "XDG_RUNTIME_DIR",
    "XDG_STATE_HOME",
    "WINDLASS_RUNTIME_DIR",
    "WINDLASS_STATE_DIR",
    "WINDLASS_URL",
    "WINDLASS_TOKEN",
    "WINDLASS_CA",
];

/// Keys that only a new entry gets. The user may change or remove them.
const USER_KEYS: &[&str] = &["env_vars", "default_tools_approval_mode"];

/// Keys of an entry that is reached over the network. Next to a command they are ambiguous, and some clients
/// then refuse the whole file. They are removed when the entry becomes a command.
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

/// An agent program that reads its MCP servers from a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum AgentClient {
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

/// Which configuration to change: the user's, or that of the project in the working directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub enum ConfigScope {
    User,
    Project,
}

/// The syntax that a client accepts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Syntax {
    Json,
    JsonWithComments,
    /// With comments and trailing commas.
    JsonWithCommentsAndCommas,
    Toml,
}

/// Constants of a client, the same for every user.
#[derive(Debug)]
pub struct ClientFacts {
    pub name: &'static str,
    pub title: &'static str,
    /// Programs whose presence shows that the client is installed.
    pub programs: &'static [&'static str],
    pub syntax: Syntax,
    /// The key whose value lists the servers.
    pub section: &'static str,
    /// How the user checks that the entry works.
    pub check: &'static str,
    /// What the user does before the client uses the entry.
    pub then: &'static str,
    /// What else a project's file needs: it may come from anyone, so clients ask or require trust.
    pub project: &'static str,
}

impl AgentClient {
    pub fn all() -> impl Iterator<Item = Self> {
        Self::value_variants().iter().copied()
    }

    pub fn facts(self) -> &'static ClientFacts {
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

    /// The Windlass entry for a new installation.
    pub fn entry(self, command: &str) -> Map<String, Value> {
        let entry = match self {
            Self::ClaudeCode | Self::Cursor | Self::VsCode => {
                json!({ "type": "stdio", "command": command, "args": [ARGUMENT] })
            }
            // Codex passes on few variables. Without the approval mode it would ask about every call, or
            // refuse the call in a run without a user. The sandbox that Codex sends with a call confines it.
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
            _ => unreachable!("every arm builds an object"),
        }
    }

    /// The Windlass entry that replaces an existing one. Further arguments that the user added stay. Keys
    /// that only a new entry gets are not set again, because the user may have removed them.
    pub fn entry_over(self, command: &str, existing: &Value) -> Map<String, Value> {
        let mut entry = self.entry(command);
        for key in USER_KEYS {
            entry.remove(*key);
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

/// Whether the user has disabled the entry, by the key of any client.
pub fn is_disabled(entry: &Value) -> bool {
    entry.get("enabled") == Some(&Value::Bool(false))
        || entry.get("disabled") == Some(&Value::Bool(true))
}

static CLAUDE_CODE: ClientFacts = ClientFacts {
    name: "claude-code",
    title: "Claude Code",
    programs: &["claude"],
    syntax: Syntax::Json,
    section: "mcpServers",
    check: "claude mcp list",
    then: "start a new session of Claude Code",
    project: "Claude Code asks each user once before it starts servers of a project",
};

static CODEX: ClientFacts = ClientFacts {
    name: "codex",
    title: "Codex",
    programs: &["codex"],
    syntax: Syntax::Toml,
    section: "mcp_servers",
    check: "codex mcp list",
    then: "start a new session of Codex; its sandbox confines the calls, and it does not ask for approval",
    project: "Codex reads a project's file only if the project is trusted",
};

static CURSOR: ClientFacts = ClientFacts {
    name: "cursor",
    title: "Cursor",
    programs: &["cursor", "cursor-agent"],
    syntax: Syntax::JsonWithCommentsAndCommas,
    section: "mcpServers",
    check: "Cursor Settings > Tools & MCP, or cursor-agent mcp list",
    then: "restart Cursor",
    project: "Cursor asks before it starts servers of a project",
};

static VS_CODE: ClientFacts = ClientFacts {
    name: "vscode",
    title: "VS Code",
    programs: &["code", "code-insiders", "codium"],
    syntax: Syntax::JsonWithCommentsAndCommas,
    section: "servers",
    check: "the command \"MCP: List Servers\"",
    then: "start the server there, or reload the window",
    project: "VS Code asks before it starts servers of a workspace",
};

static GEMINI: ClientFacts = ClientFacts {
    name: "gemini",
    title: "Gemini CLI",
    programs: &["gemini"],
    syntax: Syntax::JsonWithComments,
    section: "mcpServers",
    check: "gemini mcp list",
    then: "start a new session of Gemini CLI, in a folder that it trusts",
    project: "Gemini CLI starts servers only in folders that it trusts",
};

static OPENCODE: ClientFacts = ClientFacts {
    name: "opencode",
    title: "opencode",
    programs: &["opencode"],
    syntax: Syntax::JsonWithCommentsAndCommas,
    section: "mcp",
    check: "opencode mcp list",
    then: "start a new session of opencode",
    project: "",
};

static ZED: ClientFacts = ClientFacts {
    name: "zed",
    title: "Zed",
    programs: &["zed", "zeditor"],
    syntax: Syntax::JsonWithCommentsAndCommas,
    section: "context_servers",
    check: "Settings > AI > MCP Servers: a green dot beside windlass",
    then: "nothing to do: Zed reloads its settings when they change",
    project: "Zed reads a project's servers only if the project is trusted",
};
