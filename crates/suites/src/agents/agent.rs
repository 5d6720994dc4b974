//! The two agents: how each is told of our server and of the stub, how one prompt is given, and
//! where its last word is.

use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use super::Client;
use super::install::Installed;
use super::place::{Ended, Place};
use super::stub::Stub;

/// How long `windlass install` may take.
const INSTALL_PATIENCE: Duration = Duration::from_secs(20);

/// A key that opens nothing: the stub does not look at it.
const KEY: &str = "not-a-key";

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Agent {
    Codex,
    Claude,
}

/// What the agent is told that its commands may do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sandbox {
    AsUsual,
    ReadOnly,
    ProjectWritable,
}

impl Agent {
    pub fn of(client: Client) -> Option<Self> {
        match client {
            Client::Codex => Some(Self::Codex),
            Client::Claude => Some(Self::Claude),
            _ => None,
        }
    }

    /// Has `windlass install` write the agent's configuration.
    pub async fn configure(self, place: &Place) -> Result<()> {
        let mut install = self.in_its_home(place, place.node().program());
        install.args(["install", self.name()]);
        let ended = place.run(install, INSTALL_PATIENCE).await?;
        ensure!(ended.is_well(), "windlass install: {}", ended.last_words());
        if self == Self::Codex {
            // Codex gives its servers only the variables that their entries name. Without this one
            // the agent would work on the node of whoever runs the test.
            let entry = std::fs::read_to_string(place.home().join(".codex/config.toml"))?;
            let named = entry.contains("WINDLASS_RUNTIME_DIR");
            ensure!(named, "windlass install does not pass the node's directories on: {entry}");
        }
        Ok(())
    }

    /// One prompt in a process of its own.
    pub fn prompt(
        self,
        place: &Place,
        installed: &Installed,
        stub: &Stub,
        sandbox: Sandbox,
        words: &str,
    ) -> Command {
        match self {
            Self::Codex => {
                let mut codex = self.codex(place, installed, stub);
                match sandbox {
                    Sandbox::AsUsual => {}
                    Sandbox::ReadOnly => _ = codex.args(["--sandbox", "read-only"]),
                    Sandbox::ProjectWritable => _ = codex.args(["--sandbox", "workspace-write"]),
                }
                codex.arg(words);
                codex
            }
            Self::Claude => self.claude(place, installed, stub, words),
        }
    }

    /// How many sessions its prompts in one place lead to: one for each thing that it may do.
    pub fn sessions(self) -> usize {
        match self {
            // Without a word Codex is in its read-only sandbox.
            Self::Codex => 2,
            Self::Claude => 1,
        }
    }

    /// The agent's last word, as it printed it.
    pub fn last_word(self, ended: &Ended) -> Option<String> {
        match self {
            Self::Codex => {
                let events = ended.stdout.lines();
                let events = events.filter_map(|line| serde_json::from_str::<Value>(line).ok());
                let mut messages = events.filter(|event| event["item"]["type"] == "agent_message");
                Some(messages.next_back()?["item"]["text"].as_str()?.to_owned())
            }
            Self::Claude => {
                let printed: Value = serde_json::from_str(&ended.stdout).ok()?;
                Some(printed["result"].as_str()?.to_owned())
            }
        }
    }

    fn name(self) -> &'static str {
        match self {
            Self::Codex => "codex",
            Self::Claude => "claude",
        }
    }

    /// A command that finds the agent's configuration in the place and nowhere else.
    fn in_its_home(self, place: &Place, program: impl Into<PathBuf>) -> Command {
        let mut command = place.command(program.into());
        match self {
            Self::Codex => command.env("CODEX_HOME", place.home().join(".codex")),
            Self::Claude => command.env("CLAUDE_CONFIG_DIR", place.home().join(".claude")),
        };
        command
    }

    fn codex(self, place: &Place, installed: &Installed, stub: &Stub) -> Command {
        let program = installed.directory(Client::Codex).join("node_modules/.bin/codex");
        let mut codex = self.in_its_home(place, program);
        codex.args(["exec", "--json", "--skip-git-repo-check"]);
        let mut set = |key: &str, value: &str| {
            // A JSON string is a TOML string.
            codex.args(["-c", &format!("{key}={}", Value::from(value))]);
        };
        set("model", "stub");
        set("model_provider", "stub");
        set("model_providers.stub.name", "stub");
        set("model_providers.stub.base_url", &format!("{}/v1", stub.url()));
        set("model_providers.stub.wire_api", "responses");
        set("model_providers.stub.env_key", "STUB_KEY");
        codex.args(["-c", "analytics.enabled=false", "-c", "check_for_update_on_startup=false"]);
        codex.env("STUB_KEY", KEY);
        codex
    }

    fn claude(self, place: &Place, installed: &Installed, stub: &Stub, words: &str) -> Command {
        let program = installed.directory(Client::Claude).join("node_modules/.bin/claude");
        let mut claude = self.in_its_home(place, program);
        claude
            .args(["-p", words, "--output-format", "json", "--allowedTools", "mcp__windlass"])
            .env("ANTHROPIC_BASE_URL", stub.url())
            .env("ANTHROPIC_API_KEY", KEY)
            .env("CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC", "1")
            .env("DISABLE_AUTOUPDATER", "1")
            .env("DISABLE_ERROR_REPORTING", "1")
            .env("DISABLE_TELEMETRY", "1");
        claude
    }
}

/// Whether the sessions' Python can plot.
pub fn can_plot() -> Result<bool> {
    let python = super::place::session_python();
    let tried = Command::new(&python).args(["-I", "-c", "import matplotlib"]).output();
    let tried = tried.with_context(|| format!("cannot run {}", python.display()))?;
    Ok(tried.status.success())
}
