//! `windlass kill`: ends a session and all processes of it.

use std::process::ExitCode;
use std::time::Duration;

use windlass_protocol::SessionId;
use windlass_protocol::api::CloseQuery;

use crate::terminal::Terminal;
use crate::{duration, node_access};

/// End a session and all its processes
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  windlass kill SESSION               give the worker two seconds to exit
  windlass kill SESSION --grace 0s    kill at once")]
pub struct Args {
    /// The session id, as listed by `windlass ps`
    #[arg(value_name = "SESSION")]
    session: SessionId,
    /// How long the worker may take to exit; 0s kills it at once
    #[arg(long, value_name = "DURATION", value_parser = duration::parse, default_value = "2s")]
    grace: Duration,
}

pub async fn run(args: Args, terminal: &mut Terminal) -> anyhow::Result<ExitCode> {
    let client = node_access::connect_or_start().await?;
    let close = CloseQuery { grace_ms: Some(duration::millis(args.grace)) };
    let session = client.close_session(&args.session, close).await?;
    terminal.say(&format!("session {} is closed", session.id))?;
    Ok(ExitCode::SUCCESS)
}
