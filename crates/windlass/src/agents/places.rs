//! Where the clients keep their files on this machine, and which clients are there. Looks, and
//! changes nothing.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use super::client::{Client, Scope};

/// What the environment says about where files are.
#[derive(Debug, Clone)]
pub struct Places {
    pub home: PathBuf,
    /// `XDG_CONFIG_HOME`.
    pub config: PathBuf,
    pub claude_config_dir: Option<PathBuf>,
    pub codex_home: Option<PathBuf>,
    /// Takes the place of the home directory for Gemini CLI.
    pub gemini_home: Option<PathBuf>,
    /// The project's directory.
    pub working: PathBuf,
    /// `PATH`.
    pub path: OsString,
}

#[derive(Debug, thiserror::Error)]
pub enum PlacesError {
    #[error("there is no place to look for configuration files: HOME is not set; set it")]
    NoHome,
    #[error("the working directory cannot be found: {0}")]
    NoWorkingDirectory(std::io::Error),
}

impl Places {
    pub fn from_env() -> Result<Self, PlacesError> {
        // An empty variable is an unset one, to all of the clients.
        let set = |name| std::env::var_os(name).filter(|value| !value.is_empty());
        let directory = |name| set(name).map(PathBuf::from);
        let home = directory("HOME").ok_or(PlacesError::NoHome)?;
        let absolute = |path: &PathBuf| path.is_absolute();
        Ok(Self {
            config: directory("XDG_CONFIG_HOME")
                .filter(absolute)
                .unwrap_or_else(|| home.join(".config")),
            claude_config_dir: directory("CLAUDE_CONFIG_DIR"),
            codex_home: directory("CODEX_HOME"),
            gemini_home: directory("GEMINI_CLI_HOME"),
            working: std::env::current_dir().map_err(PlacesError::NoWorkingDirectory)?,
            path: set("PATH").unwrap_or_default(),
            home,
        })
    }

    /// The files that the client reads, the one to make first if there is none. Of several that
    /// exist the later one has the last word.
    pub fn files(&self, client: Client, scope: Scope) -> Vec<PathBuf> {
        match scope {
            Scope::User => self.user_files(client),
            Scope::Project => {
                project_files(client).iter().map(|at| self.working.join(at)).collect()
            }
        }
    }

    fn user_files(&self, client: Client) -> Vec<PathBuf> {
        let directory = self.directory(client);
        match client {
            Client::ClaudeCode => {
                // Where its earliest versions kept it. If it is there, no other is read.
                let early = directory.join(".config.json");
                let beside = self.claude_config_dir.as_ref().unwrap_or(&self.home);
                vec![if early.exists() { early } else { beside.join(".claude.json") }]
            }
            Client::Codex => vec![directory.join("config.toml")],
            Client::Cursor => vec![directory.join("mcp.json")],
            Client::VsCode => vec![directory.join("User/mcp.json")],
            Client::Gemini => vec![directory.join("settings.json")],
            Client::OpenCode => {
                vec![directory.join("opencode.json"), directory.join("opencode.jsonc")]
            }
            Client::Zed => vec![directory.join("settings.json")],
        }
    }

    /// The directory that is there when the client has been used.
    fn directory(&self, client: Client) -> PathBuf {
        let own = |variable: &Option<PathBuf>, name: &str| {
            variable.clone().unwrap_or_else(|| self.home.join(name))
        };
        match client {
            Client::ClaudeCode => own(&self.claude_config_dir, ".claude"),
            Client::Codex => own(&self.codex_home, ".codex"),
            Client::Cursor => self.home.join(".cursor"),
            Client::VsCode => {
                let products = ["Code", "Code - Insiders", "VSCodium"];
                let mut directories = products.map(|product| self.config.join(product)).into_iter();
                directories
                    .find(|directory| directory.is_dir())
                    .unwrap_or_else(|| self.config.join(products[0]))
            }
            Client::Gemini => self.gemini_home.as_ref().unwrap_or(&self.home).join(".gemini"),
            Client::OpenCode => self.config.join("opencode"),
            Client::Zed => self.config.join("zed"),
        }
    }

    /// What says that the client is on this machine: a file, its directory, or its program.
    pub fn trace(&self, client: Client) -> Option<PathBuf> {
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

/// Whether it is a file that somebody may execute.
pub fn is_executable(path: &Path) -> bool {
    use std::os::unix::fs::PermissionsExt;
    path.metadata().is_ok_and(|found| found.is_file() && found.permissions().mode() & 0o111 != 0)
}

fn project_files(client: Client) -> &'static [&'static str] {
    match client {
        Client::ClaudeCode => &[".mcp.json"],
        Client::Codex => &[".codex/config.toml"],
        Client::Cursor => &[".cursor/mcp.json"],
        Client::VsCode => &[".vscode/mcp.json"],
        Client::Gemini => &[".gemini/settings.json"],
        Client::OpenCode => &["opencode.json", "opencode.jsonc"],
        Client::Zed => &[".zed/settings.json"],
    }
}
