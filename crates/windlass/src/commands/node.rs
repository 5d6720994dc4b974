//! `windlass node`: runs the daemon of this machine. Hidden from the help: `windlass up` starts it.
//!
//! The process that starts it reads one line from its standard output: ready, or the error.

use std::io::{ErrorKind, Write as _};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use serde_json::json;
use tracing_subscriber::EnvFilter;
use windlass_client::{Client, Dirs, StartNode};
use windlass_fleet::credentials::NodeCredentialFiles;
use windlass_mcp::servers::{ConfigFile, Servers, ServersOptions};
use windlass_mcp::{Connect, Door, DoorOptions, DoorScope, ScopeSource, Transport, http};
use windlass_node::failure::Failure;
use windlass_node::{
    AgentDoor, ClaimError, Config, Doors, EnvironmentsConfig, FleetConfig, Router, RunError,
};
use windlass_protocol::ErrorCode;
use windlass_protocol::environments::EnvironmentsFile;

use super::up::{DefaultsArgs, ListenArgs};
use crate::config_file::FleetSetting;
use crate::duration::Timeout;
use crate::fleet_table::usual_credentials;
use crate::settings::NodeSettings;
use crate::{config_file, duration, service_manager, settings, size, telemetry_table};

/// Run the node of this machine
#[derive(Debug, clap::Args)]
pub struct Args {
    /// How keepers keep track of their processes [default: auto]
    #[arg(long, value_enum)]
    pub hold: Option<HoldChoice>,
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

impl HoldChoice {
    /// The same as a value of the setting `hold`.
    fn text(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::PidNamespace => "pid-namespace",
            Self::Subreaper => "subreaper",
        }
    }
}

impl Args {
    /// The value of an option, by the key of its setting. Parsing it again gives the same.
    fn value(&self, key: &str) -> Option<String> {
        let ms = |duration: Duration| format!("{}ms", duration.as_millis());
        match key {
            "hold" => self.hold.map(|hold| hold.text().to_owned()),
            "idle_exit" => self.idle_exit.map(|exit| Timeout::After(exit).to_string()),
            "node_grace" => self.node_grace.map(ms),
            "keeper_patience" => self.keeper_patience.map(ms),
            "retain_age" => self.retain_age.map(ms),
            "retain_bytes" => self.retain_bytes.map(|bytes| bytes.to_string()),
            "listen" => self.listen.listen.map(|address| address.to_string()),
            "listen_anywhere" => self.listen.listen_anywhere.then(|| true.to_string()),
            "tls_certificate" => self.listen.tls_certificate.as_deref().map(absolute),
            "tls_key" => self.listen.tls_key.as_deref().map(absolute),
            "session_idle" => self.defaults.session_idle.map(|idle| idle.to_string()),
            "deadline" => self.defaults.deadline.map(|deadline| deadline.to_string()),
            "mcp_config" => self.mcp_config.as_ref().map(|path| path.display().to_string()),
            _ => None,
        }
    }
}

/// Why a node that belongs to a fleet, or may belong to one, does not start.
#[derive(Debug, thiserror::Error)]
#[error(
    "cannot use [fleet] of {}: {why}; a node that started without it would leave its fleet",
    config_file::path().display()
)]
struct FleetRefused {
    why: String,
}

const FLEET_REMEDY: &str = "correct the file; `windlass config check` names the lines. To leave the fleet, \
                            run `windlass fleet leave`";

pub fn run(args: Args) -> anyhow::Result<ExitCode> {
    let configured = configure(&args).inspect_err(|error| {
        if let Some(refused) = error.downcast_ref::<FleetRefused>() {
            let mut told = Failure::new(ErrorCode::BadRequest, refused.to_string()).to_api();
            FLEET_REMEDY.clone_into(&mut told.remedy);
            tell_starter(&json!({"error": told}));
        }
    });
    let NodeSettings { config, mcp_config, log, .. } = configured?;
    tracing_subscriber::fmt()
        .with_writer(windlass_node::log::StandardError)
        .with_ansi(false)
        .with_env_filter(EnvFilter::new(log))
        .init();
    if let Some(error) = &config.workers.error {
        tracing::warn!(%error, "the configuration file is not used; the defaults apply");
    }
    if !args.foreground {
        // A new process session: a closed terminal or a Ctrl-C there does not reach the node. This fails
        // if the process already leads a process session, which has the same effect.
        let _ = rustix::process::setsid();
    }
    // Before anything opens a file: the descriptor has a fixed number.
    let socket = service_manager::take_listener()?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let servers = mcp_servers(mcp_config, &config)?;
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
            let mut told = explain(&error).to_api();
            match &error {
                RunError::NotThisMachine(_) => NOT_THIS_MACHINE.clone_into(&mut told.remedy),
                RunError::Certificate(why) => told.remedy = why.remedy(),
                _ => {}
            }
            tell_starter(&json!({"error": told}));
            Ok(ExitCode::FAILURE)
        }
    }
}

const NOT_THIS_MACHINE: &str = "listen on 127.0.0.1, or pass --listen-anywhere too; the traffic is encrypted only with \
     --tls-certificate and --tls-key";

/// A path that stays the same if the process changes its directory.
fn absolute(path: &Path) -> String {
    std::path::absolute(path).as_deref().unwrap_or(path).display().to_string()
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
fn mcp_servers(named: Option<PathBuf>, config: &Config) -> anyhow::Result<Servers> {
    let file = match named {
        Some(file) => ConfigFile::Named(file),
        None => ConfigFile::Default(config_file::directory().join("mcp.json")),
    };
    let (program, connect) = (config.program.clone(), connect(config)?);
    Ok(Servers::new(ServersOptions { config: file, program, connect }))
}

/// The interpreters that have a worker pool. An invalid file does not stop the node: `windlass
/// environments` reports the error, and the defaults apply.
fn environments(named: Option<&Path>) -> EnvironmentsConfig {
    let usual = || config_file::directory().join("environments.json");
    let file = named.map_or_else(usual, Path::to_path_buf);
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

/// MCP over HTTP.
fn mcp_door(config: &Config) -> anyhow::Result<Router> {
    let door = Door::new(DoorOptions {
        connect: connect(config)?,
        transport: Transport::Http,
        scope: ScopeSource::Known(DoorScope::default()),
        policy: None,
        interpreter: None,
        permissions: None,
        allow_packages: false,
    });
    Ok(Router::new().route_service(http::PATH, http::service(door)))
}

/// MCP for the agents of sessions.
fn agent_door(config: &Config) -> anyhow::Result<AgentDoor> {
    let door = Door::new(DoorOptions {
        connect: connect(config)?,
        transport: Transport::Agent,
        scope: ScopeSource::Known(DoorScope::default()),
        policy: None,
        interpreter: None,
        permissions: None,
        allow_packages: false,
    });
    Ok(AgentDoor::new(move |call, request| windlass_mcp::agent::answer(&door, call, request)))
}

fn configure(args: &Args) -> anyhow::Result<NodeSettings> {
    let dirs = Dirs::from_env()?;
    let config = Config::new(dirs.runtime, dirs.state, std::env::current_exe()?);
    let mut node = NodeSettings::new(config);
    let file = config_file::read();
    let values = settings::resolve(
        |key| args.value(key),
        |name| std::env::var_os(name),
        |key| file.node.get(key).cloned(),
    );
    settings::apply(&values, &mut node)?;
    node.encrypt_door()?;
    if let Some(why) = file.lost_tls.filter(|_| is_unencrypted(&node.config)) {
        anyhow::bail!("{why}; the TCP door would not be encrypted without it");
    }
    if let Some(why) = file.lost_uids.filter(|_| node.config.session_uids.is_none()) {
        anyhow::bail!("{why}; sessions would share the node's user id without it");
    }
    node.config.environments = environments(node.environments.as_deref());
    node.config.fleet = fleet(file.fleet, file.workers.error.as_deref(), &node.config)?;
    node.config.tenants = file.tenants;
    node.config.workers = file.workers;
    let is_private = !config_file::others_can_read();
    node.config.telemetry =
        telemetry_table::setting(file.telemetry, is_private, |name| std::env::var_os(name));
    Ok(node)
}

fn is_unencrypted(config: &Config) -> bool {
    config.listen.as_ref().is_some_and(|listen| listen.tls.is_none())
}

/// The fleet of the node. A file that cannot be used may have named one, if there are credentials.
fn fleet(
    setting: FleetSetting,
    file_error: Option<&str>,
    config: &Config,
) -> Result<Option<FleetConfig>, FleetRefused> {
    let state_dir = &config.state_dir;
    match (setting, file_error) {
        (FleetSetting::Set(table), _) => Ok(Some(table.into_config(state_dir))),
        (FleetSetting::Invalid(why), _) => Err(FleetRefused { why }),
        (FleetSetting::Absent, Some(why))
            if NodeCredentialFiles::exist(&usual_credentials(state_dir)) =>
        {
            Err(FleetRefused { why: format!("the node has credentials of a fleet, and {why}") })
        }
        (FleetSetting::Absent, _) => Ok(None),
    }
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
        RunError::NotThisMachine(_)
        | RunError::Certificate(_)
        | RunError::Fleet(_)
        | RunError::FleetStanding(_)
        | RunError::UserIdsNeedRoot => ErrorCode::BadRequest,
        RunError::Io { cause, .. } if cause.kind() == ErrorKind::StorageFull => ErrorCode::DiskFull,
        RunError::Claim(_)
        | RunError::Journal(_)
        | RunError::Listen { .. }
        | RunError::Token(_)
        | RunError::Io { .. } => ErrorCode::Internal,
    };
    Failure::new(code, error.to_string())
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::*;
    use crate::settings::SETTINGS;

    #[test]
    fn a_node_never_leaves_its_fleet_because_of_an_error() {
        let state = tempfile::tempdir().unwrap();
        let config = Config::new(PathBuf::new(), state.path().to_owned(), PathBuf::new());
        let of = |setting, error: Option<&str>| fleet(setting, error, &config);
        assert!(of(FleetSetting::Invalid("line 1".to_owned()), None).is_err());
        assert!(of(FleetSetting::Absent, None).unwrap().is_none());
        assert!(of(FleetSetting::Absent, Some("line 1")).unwrap().is_none());
        std::fs::create_dir(state.path().join("fleet")).unwrap();
        std::fs::write(state.path().join("fleet/node.pem"), "").unwrap();
        assert!(of(FleetSetting::Absent, Some("line 1")).is_err());
        assert!(of(FleetSetting::Absent, None).unwrap().is_none());
    }

    #[derive(clap::Parser)]
    struct NodeCommand {
        #[command(flatten)]
        args: Args,
    }

    #[test]
    fn each_option_of_the_node_gives_its_setting_the_same_value() {
        for setting in SETTINGS.iter().filter(|setting| setting.option) {
            let value = match setting.key {
                "listen" | "listen_anywhere" => "0.0.0.0:80",
                "mcp_config" => "/etc/mcp.json",
                "tls_certificate" => "/etc/tls/door.pem",
                "tls_key" => "/etc/tls/door.key",
                _ => setting.default,
            };
            let mut line = vec!["node".to_owned()];
            if setting.key == "listen_anywhere" {
                line.extend(["--listen".to_owned(), value.to_owned()]);
            }
            let other = match setting.key {
                "tls_certificate" => Some("--tls-key"),
                "tls_key" => Some("--tls-certificate"),
                _ => None,
            };
            line.extend(
                other.into_iter().flat_map(|option| [option.to_owned(), "/other".to_owned()]),
            );
            line.extend(setting.option_name());
            line.extend(
                (setting.key != "listen_anywhere" && value != "never").then(|| value.to_owned()),
            );
            line.extend((value == "never").then(|| "5s".to_owned()));
            let parsed = NodeCommand::try_parse_from(&line).unwrap().args;
            let text = parsed.value(setting.key).unwrap_or_else(|| panic!("{line:?}"));
            assert_eq!(setting.check(&text), Ok(()), "{line:?}: {text}");
        }
    }
}
