//! `windlass kill`: ends a session and everything it started.

use std::process::ExitCode;
use std::time::Duration;

use windlass_protocol::SessionId;
use windlass_protocol::api::CloseQuery;

use crate::terminal::Terminal;
use crate::{duration, node_access};

/// End a session and every process of it
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  windlass kill SESSION               its worker may finish within two seconds
  windlass kill SESSION --grace 0s    at once")]
pub struct Args {
    /// The session, as ps shows it
    #[arg(value_name = "SESSION")]
    session: SessionId,
    /// How long its worker may take to finish; 0s kills it at once
    #[arg(long, value_name = "DURATION", value_parser = duration::parse, default_value = "2s")]
    grace: Duration,
}

pub async fn run(args: Args, terminal: &mut Terminal) -> anyhow::Result<ExitCode> {
    let client = node_access::started().await?;
    let close = CloseQuery { grace_ms: Some(duration::millis(args.grace)) };
    let session = client.close_session(&args.session, close).await?;
    terminal.say(&format!("session {} is closed", session.id))?;
    Ok(ExitCode::SUCCESS)
}
