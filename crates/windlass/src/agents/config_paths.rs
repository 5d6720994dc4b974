//! The paths of the clients' configuration files on this machine, and which clients are installed. Changes
//! nothing.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use super::client::{AgentClient, ConfigScope};

/// The directories from the environment that determine the paths.
#[derive(Debug, Clone)]
pub struct ConfigPaths {
    pub home: PathBuf,
    /// `XDG_CONFIG_HOME`.
    pub config: PathBuf,
    pub claude_config_dir: Option<PathBuf>,
    pub codex_home: Option<PathBuf>,
    /// Replaces the home directory for Gemini CLI.
    pub gemini_home: Option<PathBuf>,
    /// The project's directory.
    pub working: PathBuf,
    /// `PATH`.
    pub path: OsString,
}

#[derive(Debug, thiserror::Error)]
pub enum ConfigPathsError {
    #[error("cannot find the configuration files: HOME is not set; set HOME and try again")]
    NoHome,
    #[error("cannot find the working directory: {0}")]
    NoWorkingDirectory(std::io::Error),
}

impl ConfigPaths {
    pub fn from_env() -> Result<Self, ConfigPathsError> {
        // All clients treat an empty variable as unset.
        let set = |name| std::env::var_os(name).filter(|value| !value.is_empty());
        let directory = |name| set(name).map(PathBuf::from);
        let home = directory("HOME").ok_or(ConfigPathsError::NoHome)?;
        let absolute = |path: &PathBuf| path.is_absolute();
        Ok(Self {
            config: directory("XDG_CONFIG_HOME")
                .filter(absolute)
                .unwrap_or_else(|| home.join(".config")),
            claude_config_dir: directory("CLAUDE_CONFIG_DIR"),
            codex_home: directory("CODEX_HOME"),
            gemini_home: directory("GEMINI_CLI_HOME"),
            working: std::env::current_dir().map_err(ConfigPathsError::NoWorkingDirectory)?,
            path: set("PATH").unwrap_or_default(),
            home,
        })
    }

    /// The files that the client reads. If none exists, the first one is created. If several exist, later
    /// ones override earlier ones.
    pub fn files(&self, client: AgentClient, scope: ConfigScope) -> Vec<PathBuf> {
        match scope {
            ConfigScope::User => self.user_files(client),
            ConfigScope::Project => {
                project_files(client).iter().map(|at| self.working.join(at)).collect()
            }
        }
    }

    fn user_files(&self, client: AgentClient) -> Vec<PathBuf> {
        let directory = self.directory(client);
        match client {
            AgentClient::ClaudeCode => {
                // The file of the earliest versions. If it exists, Claude Code reads no other.
                let early = directory.join(".config.json");
                let beside = self.claude_config_dir.as_ref().unwrap_or(&self.home);
                vec![if early.exists() { early } else { beside.join(".claude.json") }]
            }
            AgentClient::Codex => vec![directory.join("config.toml")],
            AgentClient::Cursor => vec![directory.join("mcp.json")],
            AgentClient::VsCode => vec![directory.join("User/mcp.json")],
            AgentClient::Gemini => vec![directory.join("settings.json")],
            AgentClient::OpenCode => {
                vec![directory.join("opencode.json"), directory.join("opencode.jsonc")]
            }
            AgentClient::Zed => vec![directory.join("settings.json")],
        }
    }

    /// The directory that exists if the client has been used.
    fn directory(&self, client: AgentClient) -> PathBuf {
        let own = |variable: &Option<PathBuf>, name: &str| {
            variable.clone().unwrap_or_else(|| self.home.join(name))
        };
        match client {
            AgentClient::ClaudeCode => own(&self.claude_config_dir, ".claude"),
            AgentClient::Codex => own(&self.codex_home, ".codex"),
            AgentClient::Cursor => self.home.join(".cursor"),
            AgentClient::VsCode => {
                let products = ["Code", "Code - Insiders", "VSCodium"];
                let mut directories = products.map(|product| self.config.join(product)).into_iter();
                directories
                    .find(|directory| directory.is_dir())
                    .unwrap_or_else(|| self.config.join(products[0]))
            }
            AgentClient::Gemini => self.gemini_home.as_ref().unwrap_or(&self.home).join(".gemini"),
            AgentClient::OpenCode => self.config.join("opencode"),
            AgentClient::Zed => self.config.join("zed"),
        }
    }

    /// Evidence that the client is installed: a configuration file, its directory, or its program.
    pub fn trace(&self, client: AgentClient) -> Option<PathBuf> {
        let files = self.user_files(client).into_iter().chain([self.directory(client)]);
        let mut programs = client.facts().programs.iter().filter_map(|name| self.program(name));
        files.into_iter().find(|path| path.exists()).or_else(|| programs.next())
    }

    fn program(&self, name: &str) -> Option<PathBuf> {
        let mut candidates =
            std::env::split_paths(&self.path).map(|directory| directory.join(name));
        candidates.find(|path| is_executable(path))
    }
}

/// Whether `path` is a file with an execute bit.
pub fn is_executable(path: &Path) -> bool {
    use std::os::unix::fs::PermissionsExt;
    path.metadata().is_ok_and(|found| found.is_file() && found.permissions().mode() & 0o111 != 0)
}

fn project_files(client: AgentClient) -> &'static [&'static str] {
    match client {
        AgentClient::ClaudeCode => &[".mcp.json"],
        AgentClient::Codex => &[".codex/config.toml"],
        AgentClient::Cursor => &[".cursor/mcp.json"],
        AgentClient::VsCode => &[".vscode/mcp.json"],
        AgentClient::Gemini => &[".gemini/settings.json"],
        AgentClient::OpenCode => &["opencode.json", "opencode.jsonc"],
        AgentClient::Zed => &[".zed/settings.json"],
    }
}
