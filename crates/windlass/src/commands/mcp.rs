//! `windlass mcp`: the bridge between an agent and the node, on standard input and output. An agent
//! starts it; it is small, holds nothing, and ends with its agent.

use std::io::IsTerminal;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context;
use windlass_mcp::{Connect, Door, DoorOptions, Transport, http, serve_stdio};
use windlass_protocol::kinds;

use super::up::{self, ListenArgs};
use crate::policy_options::PolicyOptions;
use crate::terminal::Terminal;
use crate::{node_access, workspace};

/// Where the TCP door is, unless it is said.
const LISTEN: SocketAddr =
    SocketAddr::new(std::net::IpAddr::V4(std::net::Ipv4Addr::LOCALHOST), 8040);

/// Serve an agent over MCP, on standard input and output
///
/// Agents start this by themselves once `windlass install` has told them to. Its sessions are the
/// node's: they stay when the agent ends, and the next agent in the same directory finds them.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  windlass install codex              tell an agent about it
  windlass mcp --policy read-only     what an agent's sessions may touch
  windlass mcp --http                 say the URL for agents that speak HTTP")]
pub struct Args {
    /// Say the URL of the node's own MCP door instead, and see that it is open
    #[arg(long)]
    pub http: bool,
    /// With --http: where the door is to be, if it is not open yet
    #[arg(long, value_name = "ADDRESS:PORT", requires = "http", default_value_t = LISTEN)]
    pub listen: SocketAddr,
    /// Where sessions work; default: the current directory, unless it is a home or holds one
    #[arg(long, value_name = "DIR")]
    pub workspace: Option<PathBuf>,
    /// The interpreter, or a virtual environment's directory
    #[arg(long, visible_alias = kinds::DEFAULT.name, value_name = "PATH")]
    pub interpreter: Option<String>,
    #[command(flatten)]
    pub policy: PolicyOptions,
}

pub async fn run(args: Args, terminal: &mut Terminal) -> anyhow::Result<ExitCode> {
    if args.http {
        return say_url(&args, terminal).await;
    }
    let workspace = match args.workspace {
        Some(path) => Some(path.canonicalize().with_context(|| format!("no {}", path.display()))?),
        None => std::env::current_dir().ok().filter(|here| workspace::may_work_in(here)),
    };
    if std::io::stdin().is_terminal() {
        terminal
            .note("this waits for an agent's MCP messages; `windlass install` tells an agent")?;
    }
    let connect: Connect = Box::new(|| Box::pin(node_access::started_later()));
    let door = Door::new(DoorOptions {
        connect,
        transport: Transport::Stdio,
        workspace,
        policy: args.policy.request()?,
        interpreter: args.interpreter,
    });
    serve_stdio(door).await?;
    Ok(ExitCode::SUCCESS)
}

async fn say_url(args: &Args, terminal: &mut Terminal) -> anyhow::Result<ExitCode> {
    let listen = ListenArgs { listen: Some(args.listen), listen_anywhere: false };
    let client = node_access::started_with(listen.of_node()).await?;
    let status = client.node_status().await?;
    let Some(address) = status.listen else {
        return Err(up::not_listening(status.pid, args.listen));
    };
    terminal.say(&format!("http://{address}{}", http::PATH))?;
    terminal
        .note("clients send the header `Authorization: Bearer TOKEN`, from `windlass token`")?;
    Ok(ExitCode::SUCCESS)
}
