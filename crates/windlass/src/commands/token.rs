//! `windlass token`: prints the token for this node's TCP door.

use std::process::ExitCode;

use windlass_client::{ClientError, Dirs, Token};

use crate::terminal::Terminal;

/// Print the access token for the node's TCP door
///
/// Anyone who has the token can run code as your user. The token is created when the node first listens on
/// TCP, or by this command.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  windlass up --listen 127.0.0.1:8040
  curl -H \"Authorization: Bearer $(windlass token)\" localhost:8040/v1/health
  windlass token --rotate              create a new token; the old one stops working")]
pub struct Args {
    /// Create a new token; the node refuses the old one from now on
    #[arg(long)]
    rotate: bool,
}

pub fn run(args: Args, terminal: &mut Terminal) -> anyhow::Result<ExitCode> {
    let file = Dirs::from_env().map_err(ClientError::from)?.token();
    let token = if args.rotate { Token::rotate(&file) } else { Token::read_or_make(&file) };
    terminal.say(token.map_err(ClientError::from)?.as_str())?;
    Ok(ExitCode::SUCCESS)
}
