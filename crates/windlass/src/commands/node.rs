//! `windlass node`: the daemon of this machine. Hidden: `windlass up` starts it.
//!
//! Whoever starts it reads one line from its standard output: that it is ready, or why it is not.

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
    ClaimError, Config, EnvironmentsConfig, Listen, Reach, Router, RunError, StartBy, Wanted,
};
use windlass_protocol::ErrorCode;
use windlass_protocol::environments::EnvironmentsFile;

use super::up::{DefaultsArgs, ListenArgs};
use crate::{duration, size};

/// Names the file of MCP servers, for a node that a client starts.
const MCP_CONFIG: &str = "WINDLASS_MCP_CONFIG";

/// How workers are started: `exec`, `zygote` or `pool`.
const START: &str = "WINDLASS_START";

/// Names the file of environments, for a node that a client starts.
const ENVIRONMENTS: &str = "WINDLASS_ENVIRONMENTS";

/// How long ended sessions are kept, and what they may take, for a node that a client starts.
const RETAIN_AGE: &str = "WINDLASS_RETAIN_AGE";
const RETAIN_BYTES: &str = "WINDLASS_RETAIN_BYTES";

/// Be the node of this machine
#[derive(Debug, clap::Args)]
pub struct Args {
    /// How keepers hold their processes together
    #[arg(long, value_enum, default_value_t = HoldChoice::Auto)]
    pub hold: HoldChoice,
    /// Exit when no session and no client has been there for so long
    #[arg(long, value_name = "DURATION", value_parser = duration::parse)]
    pub idle_exit: Option<Duration>,
    /// How long keepers wait for a node to come back before they end themselves
    #[arg(long, value_name = "DURATION", value_parser = duration::parse)]
    pub node_grace: Option<Duration>,
    /// How long a keeper may take to answer before it is given up
    #[arg(long, value_name = "DURATION", value_parser = duration::parse)]
    pub keeper_patience: Option<Duration>,
    /// How long ended sessions are kept: journals, and workspaces that the node made [default: 7d]
    #[arg(long, value_name = "DURATION", value_parser = duration::parse)]
    pub retain_age: Option<Duration>,
    /// What journals and the workspaces of ended sessions may take together; what ended first goes first
    /// [default: 10G]
    #[arg(long, value_name = "SIZE", value_parser = size::parse)]
    pub retain_bytes: Option<u64>,
    /// The file that names the MCP servers whose tools sessions may call
    #[arg(long, value_name = "FILE")]
    pub mcp_config: Option<PathBuf>,
    #[command(flatten)]
    pub listen: ListenArgs,
    #[command(flatten)]
    pub defaults: DefaultsArgs,
    /// Stay in the terminal's process session and log to it
    #[arg(long)]
    pub foreground: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum HoldChoice {
    /// A pid namespace where the machine allows it, else a subreaper
    Auto,
    PidNamespace,
    Subreaper,
}

impl From<HoldChoice> for Wanted {
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
                .unwrap_or_else(|_| EnvFilter::new("info,rmcp=error")),
        )
        .init();
    if !args.foreground {
        // Its own process session: a closed terminal or a Ctrl-C there is not for the node. It
        // fails where the process leads one already, which is as good.
        let _ = rustix::process::setsid();
    }
    let config = configure(&args)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let servers = mcp_servers(&args, &config)?;
    let doors = mcp_door(&config)?.merge(servers.router());
    let ready = || {
        say_ready();
        // Nobody waits for them.
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

/// How what runs in this process reaches the node: as every client does, by its socket.
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

/// For which interpreters workers are kept ready. A file that is not understood is said where they
/// are listed, and stops nobody from working.
fn environments() -> EnvironmentsConfig {
    let named = path_in(ENVIRONMENTS);
    let file = named.clone().unwrap_or_else(|| config_dir().join("environments.json"));
    let not_understood = |why: String| EnvironmentsConfig {
        error: Some(format!("{} is not understood: {why}", file.display())),
        ..EnvironmentsConfig::default()
    };
    match std::fs::read_to_string(&file) {
        Ok(text) => match EnvironmentsFile::parse(&text) {
            Ok(file) => EnvironmentsConfig { entries: file.environments, error: None },
            Err(error) => not_understood(error.to_string()),
        },
        Err(error) if error.kind() == ErrorKind::NotFound && named.is_none() => {
            EnvironmentsConfig::default()
        }
        Err(error) => not_understood(error.to_string()),
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
    });
    Ok(Router::new().route_service(http::PATH, http::service(door)))
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
    config.node_grace = args.node_grace.unwrap_or(config.node_grace);
    config.keeper_patience = args.keeper_patience.unwrap_or(config.keeper_patience);
    let age = args
        .retain_age
        .map_or_else(|| in_variable(RETAIN_AGE, duration::parse), |age| Ok(Some(age)))?;
    config.keep_ended = age.unwrap_or(config.keep_ended);
    let bytes = args
        .retain_bytes
        .map_or_else(|| in_variable(RETAIN_BYTES, size::parse), |bytes| Ok(Some(bytes)))?;
    config.keep_bytes = bytes.unwrap_or(config.keep_bytes);
    if let Some(idle) = args.defaults.session_idle {
        config.session_idle = idle.duration();
    }
    if let Some(deadline) = args.defaults.deadline {
        config.deadline = deadline.duration();
    }
    config.environments = environments();
    if let Some(named) = std::env::var_os(START).filter(|named| !named.is_empty()) {
        let named = named.to_string_lossy();
        config.start = StartBy::parse(&named).with_context(|| {
            format!("{START} is {named:?}: workers start by exec, zygote or pool")
        })?;
    }
    Ok(config)
}

/// What a variable says, if it is set. A value that is not understood is an error.
fn in_variable<T, E>(name: &str, parse: impl Fn(&str) -> Result<T, E>) -> anyhow::Result<Option<T>>
where
    E: std::error::Error + Send + Sync + 'static,
{
    let value = std::env::var_os(name).filter(|value| !value.is_empty());
    let Some(value) = value else { return Ok(None) };
    let value = value.to_string_lossy();
    parse(&value).map(Some).with_context(|| format!("{name} is {value:?}"))
}

/// Tells the starter, then lets go of its pipe, so that it can go too.
fn say_ready() {
    tell_starter(&json!({"ready": true, "pid": std::process::id()}));
    if let Ok(null) = std::fs::OpenOptions::new().write(true).open("/dev/null") {
        let _ = rustix::stdio::dup2_stdout(&null);
    }
}

/// Writes one line for whoever started the node. The starter may be gone, which is no fault of the node.
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
