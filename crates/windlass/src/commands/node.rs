//! `windlass node`: the daemon of this machine. Hidden: `windlass up` starts it.
//!
//! Whoever starts it reads one line from its standard output: that it is ready, or why it is not.

use std::io::ErrorKind;
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

use super::up::ListenArgs;
use crate::duration;

/// Names the file of MCP servers, for a node that a client starts.
const MCP_CONFIG: &str = "WINDLASS_MCP_CONFIG";

/// How workers are started: `exec`, `zygote` or `pool`.
const START: &str = "WINDLASS_START";

/// Names the file of environments, for a node that a client starts.
const ENVIRONMENTS: &str = "WINDLASS_ENVIRONMENTS";

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
    /// The file that names the MCP servers whose tools sessions may call
    #[arg(long, value_name = "FILE")]
    pub mcp_config: Option<PathBuf>,
    #[command(flatten)]
    pub listen: ListenArgs,
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
        .with_writer(std::io::stderr)
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
            println!("{}", json!({"error": explain(&error).to_api()}));
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
        None => ConfigFile::Usual(usual_mcp_config()),
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
    config.environments = environments();
    if let Some(named) = std::env::var_os(START).filter(|named| !named.is_empty()) {
        let named = named.to_string_lossy();
        config.start = StartBy::parse(&named).with_context(|| {
            format!("{START} is {named:?}: workers start by exec, zygote or pool")
        })?;
    }
    Ok(config)
}

/// Tells the starter, then lets go of its pipe, so that it can go too.
fn say_ready() {
    println!("{}", json!({"ready": true, "pid": std::process::id()}));
    if let Ok(null) = std::fs::OpenOptions::new().write(true).open("/dev/null") {
        let _ = rustix::stdio::dup2_stdout(&null);
    }
}

fn explain(error: &RunError) -> Failure {
    let code = match error {
        RunError::Claim(ClaimError::Locked(_) | ClaimError::SocketInUse(_)) => {
            ErrorCode::AlreadyRunning
        }
        RunError::NotThisMachine(_) => ErrorCode::BadRequest,
        RunError::Claim(_)
        | RunError::Journal(_)
        | RunError::Listen { .. }
        | RunError::Token(_)
        | RunError::Io { .. } => ErrorCode::Internal,
    };
    Failure::new(code, error.to_string())
}
