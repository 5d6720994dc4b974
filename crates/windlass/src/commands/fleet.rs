//! `windlass fleet`: makes a fleet of this machine's node, lets nodes join and leave, and shows what holds. It writes
//! credentials and `config.toml`; the node reads both when it starts. Views of the whole fleet are asked of a node.

mod config_edit;
mod dev;
mod doctor;
mod drain;
mod join;
mod nodes;
mod show;
mod status;

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, SystemTime};

use anyhow::{Context as _, bail};
use windlass_client::{ClientError, Dirs};
use windlass_fleet::credentials::{
    AuthoritySite, FleetAuthority, NewInvitation, NodeCredentialFiles,
};
use windlass_protocol::NodeName;

use crate::config_file::{self, FleetSetting};
use crate::counted::counted;
use crate::fleet_table::{FleetTable, new_settings, usual_credentials};
use crate::terminal::Terminal;
use crate::{duration, node_access};

/// The longest time for which an invitation can be used.
const INVITATION_MAX: Duration = Duration::from_secs(7 * 24 * 3600);

/// Make nodes share their sessions: a fleet
///
/// The nodes of a fleet keep who owns which session in a store, NATS JetStream, and answer for each other's sessions.
/// The first node has the authority of the fleet, which signs the certificates of all nodes.
///
/// `init`, `invite`, `join`, `show`, `remove` and `leave` are about this machine's node: they refuse to run while
/// WINDLASS_URL is set. The node reads what they wrote when it starts. Any node answers the others.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  windlass fleet dev                        try a fleet on this machine: three nodes, three servers
  windlass fleet init --node n1 --address 10.0.0.1:7421 --store nats://10.0.0.9:4222
  windlass fleet invite --for 1h            on the first machine: print a token
  windlass fleet join TOKEN --node n2 --address 10.0.0.2:7421
  windlass fleet show
  windlass fleet remove n2                  on the first machine: never renew its certificate
  windlass fleet leave                      on the machine that leaves
  windlass fleet nodes                      all nodes, with their load
  windlass fleet drain n2                   no new sessions on n2; wait until it has none")]
pub struct Args {
    #[command(subcommand)]
    command: FleetSubcommand,
}

#[derive(Debug, clap::Subcommand)]
enum FleetSubcommand {
    #[command(flatten)]
    OfNode(FleetNodeCommand),
    #[command(flatten)]
    View(FleetViewCommand),
    Dev(dev::Args),
}

/// What any node of the fleet answers.
#[derive(Debug, clap::Subcommand)]
enum FleetViewCommand {
    Nodes(nodes::Args),
    Status(status::Args),
    Doctor(doctor::Args),
    Drain(drain::Args),
    Uncordon(drain::UncordonArgs),
}

/// What changes this machine's node, or shows its files.
#[derive(Debug, clap::Subcommand)]
enum FleetNodeCommand {
    Init(FleetInitArgs),
    Invite(InviteArgs),
    Join(join::FleetJoinArgs),
    Show(show::FleetShowArgs),
    Remove(RemoveNodeArgs),
    Leave(LeaveArgs),
}

/// Where a node of a fleet is.
#[derive(Debug, clap::Args)]
struct SiteArgs {
    /// The name of this machine's node in the fleet
    #[arg(long, value_name = "NAME")]
    node: NodeName,
    /// Where other nodes reach this node
    #[arg(long, value_name = "HOST:PORT")]
    address: String,
    /// Where the node listens [default: --address; if that has a host name, its port at every address]
    #[arg(long, value_name = "ADDRESS:PORT")]
    listen: Option<SocketAddr>,
    /// A PEM file: the only authorities that may sign the certificates of the store's servers
    #[arg(long, value_name = "FILE")]
    store_ca: Option<PathBuf>,
}

/// Make a fleet, with this machine's node as its first
///
/// Makes the authority of the fleet and the certificate of this node, and writes the table [fleet] into config.toml.
/// Keep the directory of the credentials private: who reads authority.key can make nodes of the fleet.
#[derive(Debug, clap::Args)]
struct FleetInitArgs {
    #[command(flatten)]
    site: SiteArgs,
    /// URL of a server of the store; can be repeated. It may carry a user and a password
    #[arg(long, value_name = "URL", required = true)]
    store: Vec<String>,
    /// Number of copies that the store keeps of each record; 1 for a store that may be lost
    #[arg(long, value_name = "N", default_value_t = 3)]
    replicas: usize,
    /// How long a node lives for the others without a renewal [default: 30s]
    #[arg(long, value_name = "DURATION", value_parser = duration::parse)]
    lease: Option<Duration>,
    /// How long after the end of its lease a node's sessions are lost [default: 5m]
    #[arg(long, value_name = "DURATION", value_parser = duration::parse)]
    lost_after: Option<Duration>,
}

/// Print a token with which one node can join, once
///
/// Run it on the machine where `windlass fleet init` ran. The token is a secret until it is used or expires.
#[derive(Debug, clap::Args)]
struct InviteArgs {
    /// How long the token can be used; at most 7d
    #[arg(long = "for", value_name = "DURATION", default_value = "1h", value_parser = duration::parse)]
    valid_for: Duration,
    /// The only name that may join. A name that has joined before needs it
    #[arg(long, value_name = "NAME")]
    node: Option<NodeName>,
}

/// Remove a node from the fleet: the other nodes refuse it, and its certificate is never renewed
///
/// Run it on the machine where `windlass fleet init` ran. The other nodes refuse the node within a minute, if this machine's
/// node runs and reaches the store. The node's last certificate is valid for 30 days at most. Until then its name cannot be
/// used again. The node knows the password of the store: change it.
#[derive(Debug, clap::Args)]
struct RemoveNodeArgs {
    /// The name of the node
    #[arg(value_name = "NAME")]
    node: NodeName,
}

/// Leave the fleet: remove this node's credentials and the table [fleet]
#[derive(Debug, clap::Args)]
struct LeaveArgs {
    /// Leave also while the node has sessions, and also if this machine has the authority of the fleet
    #[arg(long)]
    force: bool,
}

impl Args {
    /// Whether [`run_dev`] runs the command.
    pub fn is_dev(&self) -> bool {
        matches!(self.command, FleetSubcommand::Dev(_))
    }
}

/// Runs `windlass fleet dev`, which builds its own runtime.
pub fn run_dev(args: Args, terminal: &mut Terminal) -> anyhow::Result<ExitCode> {
    match args.command {
        FleetSubcommand::Dev(args) => dev::run(args, terminal),
        FleetSubcommand::View(_) | FleetSubcommand::OfNode(_) => {
            unreachable!("`is_dev` says which command it is")
        }
    }
}

pub async fn run(args: Args, terminal: &mut Terminal) -> anyhow::Result<ExitCode> {
    match args.command {
        FleetSubcommand::Dev(_) => unreachable!("dispatched before the runtime was built"),
        FleetSubcommand::View(command) => look(command, terminal).await,
        FleetSubcommand::OfNode(command) => change(command, terminal).await,
    }
}

async fn look(command: FleetViewCommand, terminal: &mut Terminal) -> anyhow::Result<ExitCode> {
    match command {
        FleetViewCommand::Nodes(args) => nodes::run(args, terminal).await,
        FleetViewCommand::Status(args) => status::run(args, terminal).await,
        FleetViewCommand::Doctor(args) => doctor::run(args, terminal).await,
        FleetViewCommand::Drain(args) => drain::run(args, terminal).await,
        FleetViewCommand::Uncordon(args) => drain::uncordon(args, terminal).await,
    }
}

async fn change(command: FleetNodeCommand, terminal: &mut Terminal) -> anyhow::Result<ExitCode> {
    node_access::require_local("windlass fleet")?;
    let dirs = Dirs::from_env().map_err(ClientError::from)?;
    match command {
        FleetNodeCommand::Init(args) => init(args, &dirs, terminal).await?,
        FleetNodeCommand::Invite(args) => invite(args, &dirs, terminal)?,
        FleetNodeCommand::Join(args) => join::run(args, &dirs, terminal).await?,
        FleetNodeCommand::Show(args) => show::run(&args, &dirs, terminal)?,
        FleetNodeCommand::Remove(args) => remove(&args, &dirs, terminal)?,
        FleetNodeCommand::Leave(args) => leave(&args, &dirs, terminal).await?,
    }
    Ok(ExitCode::SUCCESS)
}

async fn init(args: FleetInitArgs, dirs: &Dirs, terminal: &mut Terminal) -> anyhow::Result<()> {
    if let Some(table) = present_table()? {
        bail!(
            "this node is in a fleet already, as {}: `windlass fleet show` shows it, and `windlass fleet leave` leaves it",
            table.config.node
        );
    }
    let SiteArgs { node, address, listen, store_ca } = args.site;
    let settings = new_settings(args.store, args.replicas, args.lease, args.lost_after);
    let mut table =
        FleetTable::new(node, &address, listen, settings).map_err(anyhow::Error::msg)?;
    table.config.store_ca = store_ca.map(|file| store_ca_path(&file)).transpose()?;
    // Before anything is made: an error in the file leaves nothing behind.
    let edit = config_edit::ConfigEdit::with_table(&table)?;
    let dir = table.credentials_in(&dirs.state);
    let authority = FleetAuthority::create(&dir)?;
    authority.issue_own(&table.config.node)?.write(&dir)?;
    AuthoritySite::new(table.config.node.clone(), table.config.address.clone()).write(&dir)?;
    edit.write()?;
    terminal.say(&format!("made a fleet, with this node as {}", table.config.node))?;
    terminal.note(&format!("credentials: {}; keep authority.key private", dir.display()))?;
    terminal.note(&format!("configuration: {}", config_file::path().display()))?;
    say_restart(terminal).await?;
    terminal.note("for each other machine, print a token here with `windlass fleet invite`")?;
    Ok(())
}

fn invite(args: InviteArgs, dirs: &Dirs, terminal: &mut Terminal) -> anyhow::Result<()> {
    if args.valid_for.is_zero() || args.valid_for > INVITATION_MAX {
        bail!("an invitation is valid for at most 7d, and for longer than 0s");
    }
    let table = required_table()?;
    let authority = authority_of(&table, dirs)?;
    let bound = args.node.as_ref().map_or_else(|| "NAME".to_owned(), ToString::to_string);
    let invitation = NewInvitation {
        address: table.config.address.clone(),
        authority: table.config.node.clone(),
        node: args.node,
        valid_for_ms: duration::millis(args.valid_for),
    };
    let token = authority.invite(invitation, now_ms())?;
    terminal.say(&token.to_line())?;
    terminal.note(&format!(
        "one node can join with it, within {}; this node must run. On the other machine:",
        duration::show(args.valid_for)
    ))?;
    terminal.note(&format!("  windlass fleet join TOKEN --node {bound} --address HOST:PORT"))?;
    Ok(())
}

fn remove(args: &RemoveNodeArgs, dirs: &Dirs, terminal: &mut Terminal) -> anyhow::Result<()> {
    let table = required_table()?;
    if args.node == table.config.node {
        bail!(
            "{} is this node, which has the authority of the fleet; it cannot be removed",
            args.node
        );
    }
    authority_of(&table, dirs)?.remove_node(&args.node, now_ms())?;
    terminal.say(&format!("node {} is removed: its certificate is never renewed", args.node))?;
    terminal.note(
        "the other nodes refuse it within a minute, if this machine's node runs; end the node on its machine with \
         `windlass fleet leave`",
    )?;
    if table.has_password() {
        terminal.note("the node knows the password of the store; change it")?;
    }
    Ok(())
}

async fn leave(args: &LeaveArgs, dirs: &Dirs, terminal: &mut Terminal) -> anyhow::Result<()> {
    let dir = credentials_dir(dirs);
    // An authority that cannot be read is one too.
    let has_authority = !matches!(FleetAuthority::open(&dir), Ok(None));
    let setting = config_file::read().fleet;
    if setting == FleetSetting::Absent && !has_authority && !NodeCredentialFiles::exist(&dir) {
        terminal.say("this node is in no fleet")?;
        return Ok(());
    }
    if has_authority && !args.force {
        bail!(
            "this machine has the authority of the fleet: without it no node can join, and no certificate is renewed. \
             Leave with --force if the fleet ends"
        );
    }
    let running = node_access::connect_if_running().await?;
    if let Some(client) = running.filter(|_| !args.force) {
        let sessions = client.node_status().await?.sessions;
        if sessions > 0 {
            bail!(
                "the node has {}, which the fleet would take for lost: end them with `windlass down`, or leave with --force",
                counted(sessions, "session", "sessions")
            );
        }
    }
    config_edit::ConfigEdit::without_table()?.write()?;
    NodeCredentialFiles::remove(&dir)?;
    if has_authority {
        FleetAuthority::remove(&dir)?;
    }
    terminal.say("this node has left the fleet")?;
    say_restart(terminal).await?;
    if !has_authority {
        terminal.note(
            "to make its certificate useless elsewhere, run `windlass fleet remove NAME` on the first machine",
        )?;
    }
    Ok(())
}

/// The file of `--store-ca` as the configuration names it: by its absolute path. A link stays a link, because its target
/// may be replaced by a later file.
fn store_ca_path(file: &Path) -> anyhow::Result<PathBuf> {
    let text = std::fs::read_to_string(file)
        .with_context(|| format!("cannot read the file {} of --store-ca", file.display()))?;
    if !text.contains("-----BEGIN CERTIFICATE-----") {
        bail!("the file {} of --store-ca has no certificate in PEM format", file.display());
    }
    let path = std::path::absolute(file)?;
    if path.to_str().is_none() {
        bail!("the path {} of --store-ca is not UTF-8", path.display());
    }
    Ok(path)
}

/// The node uses the new configuration from its next start on.
async fn say_restart(terminal: &mut Terminal) -> anyhow::Result<()> {
    let line = match node_access::connect_if_running().await? {
        Some(_) => {
            "restart the node to use it: `windlass down --keep-sessions`, then `windlass up`"
        }
        None => "start the node with `windlass up`",
    };
    terminal.note(line)?;
    Ok(())
}

/// The table of the configuration file; a table with an error is an error.
fn present_table() -> anyhow::Result<Option<Box<FleetTable>>> {
    match config_file::read().fleet {
        FleetSetting::Absent => Ok(None),
        FleetSetting::Set(table) => Ok(Some(table)),
        FleetSetting::Invalid(why) => {
            bail!("cannot use [fleet] of {}: {why}", config_file::path().display())
        }
    }
}

fn required_table() -> anyhow::Result<Box<FleetTable>> {
    present_table()?.context(
        "this node is in no fleet; make one with `windlass fleet init`, or join one with `windlass fleet join`",
    )
}

fn authority_of(table: &FleetTable, dirs: &Dirs) -> anyhow::Result<FleetAuthority> {
    FleetAuthority::open(&table.credentials_in(&dirs.state))?.context(
        "this machine does not have the authority of the fleet; run the command where `windlass fleet init` ran",
    )
}

/// The directory of the credentials, also if the table cannot be used.
fn credentials_dir(dirs: &Dirs) -> PathBuf {
    let state: &Path = &dirs.state;
    match config_file::read().fleet {
        FleetSetting::Set(table) => table.credentials_in(state),
        _ => usual_credentials(state),
    }
}

fn now_ms() -> u64 {
    let since_epoch = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    duration::millis(since_epoch)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_store_ca_is_a_file_with_a_certificate() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("ca.pem");
        assert!(store_ca_path(&file).unwrap_err().to_string().contains("cannot read"));
        std::fs::write(&file, "a key").unwrap();
        assert!(store_ca_path(&file).unwrap_err().to_string().contains("no certificate"));
        std::fs::write(&file, "-----BEGIN CERTIFICATE-----\n").unwrap();
        assert_eq!(store_ca_path(&file).unwrap(), file);
    }
}
