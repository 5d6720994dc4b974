//! `windlass token`: what opens this node's TCP door, for its owner.

use std::process::ExitCode;

use windlass_client::{ClientError, Dirs, Token};

use crate::terminal::Terminal;

/// Print the token of the TCP door
///
/// Whoever has it can run code as you. It is made when the node first listens, or here.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  windlass up --listen 127.0.0.1:8040
  curl -H \"Authorization: Bearer $(windlass token)\" localhost:8040/v1/health
  windlass token --rotate              make a new one; the old one opens nothing any more")]
pub struct Args {
    /// Make a new one; the old one is refused from now on
    #[arg(long)]
    rotate: bool,
}

pub fn run(args: Args, terminal: &mut Terminal) -> anyhow::Result<ExitCode> {
    let file = Dirs::from_env().map_err(ClientError::from)?.token();
    let token = if args.rotate { Token::rotate(&file) } else { Token::read_or_make(&file) };
    terminal.say(token.map_err(ClientError::from)?.as_str())?;
    Ok(ExitCode::SUCCESS)
}
