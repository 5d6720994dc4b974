//! `windlass node`: runs the daemon of this machine. Hidden from the help: `windlass up` starts it.
//!
//! The process that starts it reads one line from its standard output: ready, or the error.

use std::io::{ErrorKind, Write as _};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context as _;
use serde_json::json;
use tracing_subscriber::EnvFilter;
use windlass_client::{Client, Dirs, StartNode};
use windlass_mcp::servers::{ConfigFile, Servers, ServersOptions};
use windlass_mcp::{Connect, Door, DoorOptions, Transport, http};
use windlass_node::failure::Failure;
use windlass_node::{
    AgentDoor, ClaimError, Config, Doors, EnvironmentsConfig, HoldMode, Listen, Reach, Router,
    RunError, StartBy, WorkersConfig,
};
use windlass_protocol::ErrorCode;
use windlass_protocol::environments::EnvironmentsFile;

use super::up::{DefaultsArgs, ListenArgs};
use crate::{duration, service_manager, size};

/// Variable with the path of the MCP server file, for a node that a client starts.
const MCP_CONFIG: &str = "WINDLASS_MCP_CONFIG";

/// Variable that selects how workers are started: `exec`, `zygote` or `pool`.
const START: &str = "WINDLASS_START";

/// Variable with the path of the environments file, for a node that a client starts.
const ENVIRONMENTS: &str = "WINDLASS_ENVIRONMENTS";

/// Variable with the path of the configuration file, for a node that a client starts.
const CONFIG: &str = "WINDLASS_CONFIG";

/// Variables for the age and size limits of ended sessions, for a node that a client starts.
const RETAIN_AGE: &str = "WINDLASS_RETAIN_AGE";
const RETAIN_BYTES: &str = "WINDLASS_RETAIN_BYTES";

/// Run the node of this machine
#[derive(Debug, clap::Args)]
pub struct Args {
    /// How keepers keep track of their processes
    #[arg(long, value_enum, default_value_t = HoldChoice::Auto)]
    pub hold: HoldChoice,
    /// Exit after this long without a session and without a client
    #[arg(long, value_name = "DURATION", value_parser = duration::parse)]
    pub idle_exit: Option<Duration>,
    /// How long keepers wait for a new node before they end their session
    #[arg(long, value_name = "DURATION", value_parser = duration::parse)]
    pub node_grace: Option<Duration>,
    /// How long to wait for a reply of a keeper before it counts as lost
    #[arg(long, value_name = "DURATION", value_parser = duration::parse)]
    pub keeper_patience: Option<Duration>,
    /// How long to keep journals of ended sessions, and workspaces that the node created [default: 7d]
    #[arg(long, value_name = "DURATION", value_parser = duration::parse)]
    pub retain_age: Option<Duration>,
    /// Maximum total size of journals and of workspaces of ended sessions; the session that ended first is
    /// removed first [default: 10G]
    #[arg(long, value_name = "SIZE", value_parser = size::parse)]
    pub retain_bytes: Option<u64>,
    /// The file that lists the MCP servers whose tools sessions may call
    #[arg(long, value_name = "FILE")]
    pub mcp_config: Option<PathBuf>,
    #[command(flatten)]
    pub listen: ListenArgs,
    #[command(flatten)]
    pub defaults: DefaultsArgs,
    /// Stay in the process session of the terminal and log to the terminal
    #[arg(long)]
    pub foreground: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum HoldChoice {
    /// A pid namespace if the machine allows it, otherwise a subreaper
    Auto,
    PidNamespace,
    Subreaper,
}

impl From<HoldChoice> for HoldMode {
    fn from(choice: HoldChoice) -> Self {
        match choice {
            HoldChoice::Auto => Self::Auto,
            HoldChoice::PidNamespace => Self::PidNamespace,
            HoldChoice::Subreaper => Self::Subreaper,
        }
    }
}

pub fn run(args: Args) -> anyhow::Result<ExitCode> {
    tracing_subscriber::fmt()
        .with_writer(windlass_node::log::StandardError)
        .with_ansi(false)
        .with_env_filter(
            EnvFilter::try_from_env("WINDLASS_LOG")
                .unwrap_or_else(|_| EnvFilter::new("info,rmcp=error,rmcp::service=off")),
        )
        .init();
    if !args.foreground {
        // A new process session: a closed terminal or a Ctrl-C there does not reach the node. This fails
        // if the process already leads a process session, which has the same effect.
        let _ = rustix::process::setsid();
    }
    // Before anything opens a file: the descriptor has a fixed number.
    let socket = service_manager::take_listener()?;
    let config = configure(&args)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let servers = mcp_servers(&args, &config)?;
    let router = mcp_door(&config)?.merge(servers.router());
    let doors = Doors { router, agents: agent_door(&config)?, socket };
    let ready = || {
        say_ready();
        service_manager::say_ready();
        // The servers start in the background.
        servers.start();
    };
    let ran = runtime.block_on(async {
        let ran = windlass_node::run(config, doors, ready).await;
        servers.stop().await;
        ran
    });
    match ran {
        Ok(()) => Ok(ExitCode::SUCCESS),
        Err(error) => {
            tracing::error!(%error, "the node cannot run");
            tell_starter(&json!({"error": explain(&error).to_api()}));
            Ok(ExitCode::FAILURE)
        }
    }
}

/// Parts of this process that need the node connect through its socket, as every client does.
fn connect(config: &Config) -> anyhow::Result<Connect> {
    let dirs = Dirs { runtime: config.runtime_dir.clone(), ..Dirs::from_env()? };
    Ok(Box::new(move || {
        let dirs = dirs.clone();
        Box::pin(Client::connect(dirs, StartNode::Never))
    }))
}

/// The MCP servers whose tools sessions may call.
fn mcp_servers(args: &Args, config: &Config) -> anyhow::Result<Servers> {
    let named = args.mcp_config.clone().or_else(|| path_in(MCP_CONFIG));
    let file = match named {
        Some(file) => ConfigFile::Named(file),
        None => ConfigFile::Default(usual_mcp_config()),
    };
    let (program, connect) = (config.program.clone(), connect(config)?);
    Ok(Servers::new(ServersOptions { config: file, program, connect }))
}

fn usual_mcp_config() -> PathBuf {
    config_dir().join("mcp.json")
}

fn config_dir() -> PathBuf {
    let home = || std::env::home_dir().unwrap_or_default().join(".config");
    path_in("XDG_CONFIG_HOME").unwrap_or_else(home).join("windlass")
}

/// The interpreters that have a worker pool. An invalid file does not stop the node: `windlass
/// environments` reports the error, and the defaults apply.
fn environments() -> EnvironmentsConfig {
    let named = path_in(ENVIRONMENTS);
    let file = named.clone().unwrap_or_else(|| config_dir().join("environments.json"));
    let invalid = |why: String| EnvironmentsConfig {
        error: Some(format!("cannot use {}: {why}", file.display())),
        ..EnvironmentsConfig::default()
    };
    match std::fs::read_to_string(&file) {
        Ok(text) => match EnvironmentsFile::parse(&text) {
            Ok(file) => EnvironmentsConfig { entries: file.environments, error: None },
            Err(error) => invalid(error.to_string()),
        },
        Err(error) if error.kind() == ErrorKind::NotFound && named.is_none() => {
            EnvironmentsConfig::default()
        }
        Err(error) => invalid(error.to_string()),
    }
}

/// The workers of the configuration file. An invalid file does not stop the node: `windlass workers` reports
/// the error, and the built-in workers stay.
fn workers() -> WorkersConfig {
    let named = path_in(CONFIG);
    let file = named.clone().unwrap_or_else(|| config_dir().join("config.toml"));
    let invalid = |why: String| WorkersConfig {
        error: Some(format!("cannot use {}: {why}", file.display())),
        ..WorkersConfig::default()
    };
    match std::fs::read_to_string(&file) {
        Ok(text) => WorkersConfig::parse(&text).unwrap_or_else(|error| invalid(error.to_string())),
        Err(error) if error.kind() == ErrorKind::NotFound && named.is_none() => {
            WorkersConfig::default()
        }
        Err(error) => invalid(error.to_string()),
    }
}

fn path_in(variable: &str) -> Option<PathBuf> {
    std::env::var_os(variable).filter(|value| !value.is_empty()).map(PathBuf::from)
}

/// MCP over HTTP.
fn mcp_door(config: &Config) -> anyhow::Result<Router> {
    let door = Door::new(DoorOptions {
        connect: connect(config)?,
        transport: Transport::Http,
        workspace: None,
        policy: None,
        interpreter: None,
        permissions: None,
    });
    Ok(Router::new().route_service(http::PATH, http::service(door)))
}

/// MCP for the agents of sessions.
fn agent_door(config: &Config) -> anyhow::Result<AgentDoor> {
    let door = Door::new(DoorOptions {
        connect: connect(config)?,
        transport: Transport::Agent,
        workspace: None,
        policy: None,
        interpreter: None,
        permissions: None,
    });
    Ok(AgentDoor::new(move |call, request| windlass_mcp::agent::answer(&door, call, request)))
}

fn configure(args: &Args) -> anyhow::Result<Config> {
    let dirs = Dirs::from_env()?;
    let mut config = Config::new(dirs.runtime, dirs.state, std::env::current_exe()?);
    config.hold = args.hold.into();
    config.listen = args.listen.listen.map(|address| Listen {
        address,
        reach: if args.listen.listen_anywhere { Reach::Anywhere } else { Reach::ThisMachine },
    });
    config.idle_exit = args.idle_exit;
    let keepers = &mut config.keepers;
    keepers.node_grace = args.node_grace.unwrap_or(keepers.node_grace);
    keepers.patience = args.keeper_patience.unwrap_or(keepers.patience);
    let age = args
        .retain_age
        .map_or_else(|| from_variable(RETAIN_AGE, duration::parse), |age| Ok(Some(age)))?;
    config.retention.max_age = age.unwrap_or(config.retention.max_age);
    let bytes = args
        .retain_bytes
        .map_or_else(|| from_variable(RETAIN_BYTES, size::parse), |bytes| Ok(Some(bytes)))?;
    config.retention.max_total_bytes = bytes.unwrap_or(config.retention.max_total_bytes);
    if let Some(idle) = args.defaults.session_idle {
        config.defaults.idle = idle.duration();
    }
    if let Some(deadline) = args.defaults.deadline {
        config.defaults.deadline = deadline.duration();
    }
    config.environments = environments();
    config.workers = workers();
    if let Some(named) = std::env::var_os(START).filter(|named| !named.is_empty()) {
        let named = named.to_string_lossy();
        config.start = StartBy::parse(&named)
            .with_context(|| format!("{START} is {named:?}, but must be exec, zygote or pool"))?;
    }
    Ok(config)
}

/// The parsed value of a variable, if it is set. A value that cannot be parsed is an error.
fn from_variable<T, E>(
    name: &str,
    parse: impl Fn(&str) -> Result<T, E>,
) -> anyhow::Result<Option<T>>
where
    E: std::error::Error + Send + Sync + 'static,
{
    let value = std::env::var_os(name).filter(|value| !value.is_empty());
    let Some(value) = value else { return Ok(None) };
    let value = value.to_string_lossy();
    parse(&value).map(Some).with_context(|| format!("{name} is {value:?}"))
}

/// Reports readiness to the starter, then closes the pipe to it, so that the starter can exit.
fn say_ready() {
    tell_starter(&json!({"ready": true, "pid": std::process::id()}));
    if let Ok(null) = std::fs::OpenOptions::new().write(true).open("/dev/null") {
        let _ = rustix::stdio::dup2_stdout(&null);
    }
}

/// Writes one line for the process that started the node. It may be gone already; that is no error.
fn tell_starter(line: &serde_json::Value) {
    let _ = writeln!(std::io::stdout(), "{line}");
}

fn explain(error: &RunError) -> Failure {
    let code = match error {
        RunError::Claim(ClaimError::Locked(_) | ClaimError::SocketInUse(_)) => {
            ErrorCode::AlreadyRunning
        }
        RunError::NotThisMachine(_) => ErrorCode::BadRequest,
        RunError::Io { cause, .. } if cause.kind() == ErrorKind::StorageFull => ErrorCode::DiskFull,
        RunError::Claim(_)
        | RunError::Journal(_)
        | RunError::Listen { .. }
        | RunError::Token(_)
        | RunError::Io { .. } => ErrorCode::Internal,
    };
    Failure::new(code, error.to_string())
}
