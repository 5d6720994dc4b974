//! The two agents: how to configure each for `windlass mcp` and for the stub, how to give it one prompt, and
//! how to read its final message.

use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use super::ClientUnderTest;
use super::client_home::{ClientHome, ProgramExit};
use super::install::Installed;
use super::stub::Stub;

/// How long `windlass install` may take.
const INSTALL_WAIT: Duration = Duration::from_secs(20);

/// A fake API key. The stub does not read it.
const KEY: &str = "not-a-key";

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Agent {
    Codex,
    Claude,
}

/// The setting of the agent's own sandbox.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AgentSandbox {
    Default,
    ReadOnly,
    ProjectWritable,
}

impl Agent {
    pub fn of(client: ClientUnderTest) -> Option<Self> {
        match client {
            ClientUnderTest::Codex => Some(Self::Codex),
            ClientUnderTest::Claude => Some(Self::Claude),
            _ => None,
        }
    }

    /// Runs `windlass install`, which writes the agent's configuration.
    pub async fn configure(self, home: &ClientHome) -> Result<()> {
        let mut install = self.in_its_home(home, home.node().program());
        install.args(["install", self.name()]);
        let ended = home.run(install, INSTALL_WAIT).await?;
        ensure!(ended.is_success(), "windlass install failed: {}", ended.summary());
        if self == Self::Codex {
            // Codex passes to an MCP server only the variables that the server's entry names. Without this
            // one the agent would use the node of the user who runs the suite.
            let entry = std::fs::read_to_string(home.home_dir().join(".codex/config.toml"))?;
            let named = entry.contains("WINDLASS_RUNTIME_DIR");
            ensure!(named, "windlass install wrote an entry without WINDLASS_RUNTIME_DIR: {entry}");
        }
        Ok(())
    }

    /// The command that runs the agent with one prompt.
    pub fn prompt(
        self,
        home: &ClientHome,
        installed: &Installed,
        stub: &Stub,
        sandbox: AgentSandbox,
        words: &str,
    ) -> Command {
        match self {
            Self::Codex => {
                let mut codex = self.codex(home, installed, stub);
                match sandbox {
                    AgentSandbox::Default => {}
                    AgentSandbox::ReadOnly => _ = codex.args(["--sandbox", "read-only"]),
                    AgentSandbox::ProjectWritable => {
                        _ = codex.args(["--sandbox", "workspace-write"])
                    }
                }
                codex.arg(words);
                codex
            }
            Self::Claude => self.claude(home, installed, stub, words),
        }
    }

    /// How many sessions the agent's prompts create in one project: one for each setting of its sandbox.
    pub fn sessions(self) -> usize {
        match self {
            // The default sandbox of Codex is read-only, so there are two settings.
            Self::Codex => 2,
            Self::Claude => 1,
        }
    }

    /// The agent's final message, as it printed it.
    pub fn final_message(self, ended: &ProgramExit) -> Option<String> {
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

    /// A command that finds the agent's configuration only in the client's home.
    fn in_its_home(self, home: &ClientHome, program: impl Into<PathBuf>) -> Command {
        let mut command = home.command(program.into());
        match self {
            Self::Codex => command.env("CODEX_HOME", home.home_dir().join(".codex")),
            Self::Claude => command.env("CLAUDE_CONFIG_DIR", home.home_dir().join(".claude")),
        };
        command
    }

    fn codex(self, home: &ClientHome, installed: &Installed, stub: &Stub) -> Command {
        let program = installed.directory(ClientUnderTest::Codex).join("node_modules/.bin/codex");
        let mut codex = self.in_its_home(home, program);
        codex.args(["exec", "--json", "--skip-git-repo-check"]);
        let mut set = |key: &str, value: &str| {
            // A JSON string is also a TOML string.
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

    fn claude(self, home: &ClientHome, installed: &Installed, stub: &Stub, words: &str) -> Command {
        let program = installed.directory(ClientUnderTest::Claude).join("node_modules/.bin/claude");
        let mut claude = self.in_its_home(home, program);
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

/// Whether the sessions' Python has matplotlib.
pub fn can_plot() -> Result<bool> {
    let python = super::client_home::session_python();
    let tried = Command::new(&python).args(["-I", "-c", "import matplotlib"]).output();
    let tried = tried.with_context(|| format!("cannot run {}", python.display()))?;
    Ok(tried.status.success())
}
