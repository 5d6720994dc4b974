//! `windlass token`: prints the token of this node's TCP door, and makes, lists and removes named tokens. Needs no node:
//! a running node reads the files of the tokens again when they change.

use std::process::ExitCode;
use std::time::{Duration, SystemTime};

use windlass_client::{ClientError, Dirs, NamedToken, NamedTokens, NewToken, Token, TokenScope};
use windlass_protocol::{TenantName, TokenName};

use crate::commands::status::since;
use crate::terminal::{Terminal, table};
use crate::{duration, node_access};

/// Print or make access tokens for the node's TCP door
///
/// Without a command it prints the node's own token, which allows everything: anyone who has it can run code as your
/// user. The token is created when the node first listens on TCP, or by this command.
///
/// The tokens are those of the node of this machine: `create`, `list` and `rm` refuse to run while WINDLASS_URL is set.
#[derive(Debug, clap::Args)]
#[command(args_conflicts_with_subcommands = true)]
#[command(after_help = "\
Examples:
  windlass up --listen 127.0.0.1:8040
  curl -H \"Authorization: Bearer $(windlass token)\" localhost:8040/v1/health
  windlass token --rotate              create a new token; the old one stops working
  windlass token create grafana --scope read --expires 30d
  windlass token create acme-ci --scope run --tenant acme")]
pub struct Args {
    /// Create a new token; the node refuses the old one from now on
    #[arg(long)]
    rotate: bool,
    #[command(subcommand)]
    command: Option<Command>,
}

#[derive(Debug, clap::Subcommand)]
enum Command {
    Create(CreateArgs),
    List(ListArgs),
    Rm(RemoveArgs),
}

impl Command {
    /// The beginning of the command line.
    fn line(&self) -> &'static str {
        match self {
            Self::Create(_) => "windlass token create",
            Self::List(_) => "windlass token list",
            Self::Rm(_) => "windlass token rm",
        }
    }
}

/// Make a named token and print it
///
/// The node stores only a hash of the token, so the token cannot be printed again.
#[derive(Debug, clap::Args)]
struct CreateArgs {
    /// The name of the token
    #[arg(value_name = "NAME")]
    name: TokenName,
    /// What the token allows
    #[arg(long, value_enum)]
    scope: Scope,
    /// Limit the token to what belongs to this tenant
    #[arg(long)]
    tenant: Option<TenantName>,
    /// Refuse the token after this long, for example 30d; default: never
    #[arg(long, value_name = "DURATION", value_parser = duration::parse)]
    expires: Option<Duration>,
}

#[derive(Debug, Clone, Copy, clap::ValueEnum)]
enum Scope {
    /// See sessions, output, events, health and metrics
    Read,
    /// Use sessions, turns, files and tools too. This can run code as your user
    Run,
    /// Everything, also secrets and stopping the node
    Admin,
}

/// List the named tokens
#[derive(Debug, clap::Args)]
struct ListArgs {
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Remove a named token; the node refuses it from the next request on
#[derive(Debug, clap::Args)]
struct RemoveArgs {
    /// The name of the token
    #[arg(value_name = "NAME")]
    name: TokenName,
}

pub fn run(args: Args, terminal: &mut Terminal) -> anyhow::Result<ExitCode> {
    if let Some(command) = &args.command {
        node_access::require_local(command.line())?;
    }
    let dirs = Dirs::from_env().map_err(ClientError::from)?;
    match args.command {
        None => {
            let file = dirs.token();
            let token = if args.rotate { Token::rotate(&file) } else { Token::read_or_make(&file) };
            terminal.say(token.map_err(ClientError::from)?.as_str())?;
        }
        Some(Command::Create(args)) => create(args, &dirs, terminal)?,
        Some(Command::List(args)) => list(&args, &dirs, terminal)?,
        Some(Command::Rm(RemoveArgs { name })) => {
            NamedTokens::remove(&dirs.named_tokens(), &name).map_err(ClientError::from)?;
            terminal.say(&format!("token {name} is removed"))?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn create(args: CreateArgs, dirs: &Dirs, terminal: &mut Terminal) -> anyhow::Result<()> {
    let created_at_ms = now_ms();
    let lifetime_ms = args.expires.map(duration::millis);
    let new = NewToken {
        name: args.name,
        scope: args.scope.into(),
        tenant: args.tenant,
        created_at_ms,
        expires_at_ms: lifetime_ms.map(|lifetime| created_at_ms.saturating_add(lifetime)),
    };
    let token = NamedTokens::create(&dirs.named_tokens(), new).map_err(ClientError::from)?;
    terminal.say(token.as_str())?;
    Ok(())
}

fn list(args: &ListArgs, dirs: &Dirs, terminal: &mut Terminal) -> anyhow::Result<()> {
    let all = NamedTokens::read(&dirs.named_tokens()).map_err(ClientError::from)?;
    if args.json {
        let tokens: Vec<_> = all.list().iter().map(json).collect();
        let list = serde_json::json!({ "tokens": tokens });
        terminal.say(&serde_json::to_string_pretty(&list)?)?;
        return Ok(());
    }
    let now_ms = now_ms();
    let rows: Vec<_> = all.list().iter().map(|token| row(token, now_ms)).collect();
    for line in table(["NAME", "SCOPE", "TENANT", "AGE", "EXPIRES"], &rows) {
        terminal.say(&line)?;
    }
    Ok(())
}

/// A token without its hash.
fn json(token: &NamedToken) -> serde_json::Value {
    serde_json::json!({
        "name": token.name,
        "scope": token.scope,
        "tenant": token.tenant,
        "created_at_ms": token.created_at_ms,
        "expires_at_ms": token.expires_at_ms,
    })
}

fn row(token: &NamedToken, now_ms: u64) -> [String; 5] {
    let expires = match token.expires_at_ms {
        None => "never".to_owned(),
        Some(expiry) if expiry <= now_ms => "expired".to_owned(),
        Some(expiry) => {
            format!("in {}", duration::show(Duration::from_millis(expiry.saturating_sub(now_ms))))
        }
    };
    let age = duration::show(since(token.created_at_ms));
    let tenant = token.tenant.as_ref().map(TenantName::to_string).unwrap_or_default();
    [token.name.to_string(), token.scope.to_string(), tenant, age, expires]
}

fn now_ms() -> u64 {
    let since_epoch = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    duration::millis(since_epoch)
}

impl From<Scope> for TokenScope {
    fn from(scope: Scope) -> Self {
        match scope {
            Scope::Read => Self::Read,
            Scope::Run => Self::Run,
            Scope::Admin => Self::Admin,
        }
    }
}
