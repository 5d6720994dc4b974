//! `windlass mcp`: the bridge between an agent and the node, over standard input and output. An agent
//! starts it. It keeps no state and exits with its agent.

use std::io::IsTerminal;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context;
use windlass_client::{Client, ClientError};
use windlass_mcp::{
    AskingScope, Connect, Door, DoorOptions, DoorScope, ScopeSource, Transport, http, serve_stdio,
};
use windlass_protocol::agent::PermissionPolicy;
use windlass_protocol::kinds;

use super::up::{self, ListenArgs};
use crate::policy_options::PolicyOptions;
use crate::terminal::Terminal;
use crate::{exit, node_access, workspace};

/// The default address of the TCP door.
const LISTEN: SocketAddr =
    SocketAddr::new(std::net::IpAddr::V4(std::net::Ipv4Addr::LOCALHOST), 8040);

/// Serve an agent over MCP on standard input and output
///
/// Agents start this command after `windlass install`. The node owns the sessions: they stay when the agent
/// exits, and the next agent in the same directory finds them.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  windlass install codex              configure an agent to start this command
  windlass mcp --policy read-only     restrict what the agent's sessions may access
  windlass mcp --no-start             use only a node that runs already
  windlass mcp --http                 print the URL for agents that use MCP over HTTP")]
pub struct Args {
    /// Print the URL of the node's MCP endpoint instead; starts the node if none is running
    #[arg(long)]
    pub http: bool,
    /// With --http: the address to listen on if this starts the node
    #[arg(long, value_name = "ADDRESS:PORT", requires = "http", default_value_t = LISTEN)]
    pub listen: SocketAddr,
    /// Never start a node: exit with 3 if none runs, and fail calls while it is gone
    #[arg(long, conflicts_with = "http")]
    pub no_start: bool,
    /// The workspace of the sessions; default: the current directory, unless it is a home or contains one
    #[arg(long, value_name = "DIR")]
    pub workspace: Option<PathBuf>,
    /// The interpreter, or the directory of a virtual environment
    #[arg(long, visible_alias = kinds::DEFAULT.name, value_name = "PATH")]
    pub interpreter: Option<String>,
    /// Who answers the permissions that agents in its sessions ask for; `ask` asks the client's user [default: allow]
    #[arg(long, value_name = "POLICY")]
    pub permissions: Option<PermissionPolicy>,
    /// Let the code of its Python sessions install packages with pip and uv; they end with the session
    #[arg(long)]
    pub allow_packages: bool,
    #[command(flatten)]
    pub policy: PolicyOptions,
}

pub async fn run(args: Args, terminal: &mut Terminal) -> anyhow::Result<ExitCode> {
    if args.http {
        return print_url(&args, terminal).await;
    }
    if args.no_start
        && let Err(error) = node_access::try_connect().await
    {
        let is_absent = error.is_unreachable();
        let code = terminal.fail(&error.into());
        return Ok(if is_absent { ExitCode::from(exit::NO_NODE) } else { code });
    }
    let scope = scope(args.workspace)?;
    if std::io::stdin().is_terminal() {
        terminal.note(
            "waiting for MCP messages from an agent; to configure an agent, run `windlass install`",
        )?;
    }
    let connect: Connect = match args.no_start {
        true => Box::new(|| Box::pin(node_access::try_connect())),
        false => Box::new(|| Box::pin(node_access::try_connect_or_start())),
    };
    let door = Door::new(DoorOptions {
        connect,
        transport: Transport::Stdio,
        scope,
        policy: args.policy.request()?,
        interpreter: args.interpreter,
        permissions: args.permissions,
        allow_packages: args.allow_packages,
    });
    serve_stdio(door).await?;
    Ok(ExitCode::SUCCESS)
}

/// How the bridge learns where its sessions work. Only the node at `WINDLASS_URL` knows the tenant of the token, and the
/// bridge starts without a node.
fn scope(named: Option<PathBuf>) -> anyhow::Result<ScopeSource> {
    if node_access::is_remote() {
        let ask =
            move |client: Client| -> AskingScope { Box::pin(scope_at(client, named.clone())) };
        return Ok(ScopeSource::AskNode(Box::new(ask)));
    }
    let workspace = match named {
        Some(path) => {
            let failed = || format!("cannot use workspace {}", path.display());
            Some(path.canonicalize().with_context(failed)?)
        }
        None => current_workspace(),
    };
    Ok(ScopeSource::Known(DoorScope { workspace, tenant: None }))
}

/// The scope at the node at `WINDLASS_URL`. The directories of this machine are not for clients whose token has a tenant.
async fn scope_at(client: Client, named: Option<PathBuf>) -> Result<DoorScope, ClientError> {
    let tenant = workspace::tenant_of(&client).await?;
    let workspace = match (named, &tenant) {
        // The node refuses it, and says why.
        (Some(path), Some(_)) => Some(path),
        (None, Some(_)) => None,
        // The node refuses a directory that does not exist.
        (Some(path), None) => Some(path.canonicalize().unwrap_or(path)),
        (None, None) => current_workspace(),
    };
    Ok(DoorScope { workspace, tenant })
}

/// The current directory, if sessions may work there.
fn current_workspace() -> Option<PathBuf> {
    std::env::current_dir().ok().filter(|here| workspace::may_work_in(here))
}

async fn print_url(args: &Args, terminal: &mut Terminal) -> anyhow::Result<ExitCode> {
    let listen = ListenArgs {
        listen: Some(args.listen),
        listen_anywhere: false,
        tls_certificate: None,
        tls_key: None,
    };
    let client = node_access::connect_or_start_with(listen.node_args()).await?;
    let status = client.node_status().await?;
    let Some(url) = up::door_url(&status) else {
        return Err(up::not_listening(status.pid, args.listen));
    };
    terminal.say(&format!("{url}{}", http::PATH))?;
    terminal.note(
        "clients send the header `Authorization: Bearer TOKEN`; `windlass token` prints TOKEN",
    )?;
    Ok(ExitCode::SUCCESS)
}
