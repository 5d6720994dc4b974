//! `windlass kill`: ends sessions and all their processes.

use std::process::ExitCode;
use std::time::Duration;

use windlass_protocol::SessionId;
use windlass_protocol::api::CloseQuery;

use crate::terminal::Terminal;
use crate::{duration, node_access};

/// End sessions and all their processes
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  windlass kill SESSION               give the worker two seconds to exit
  windlass kill SESSION --grace 0s    kill at once
  windlass kill FIRST SECOND          end both")]
pub struct Args {
    /// The session ids, as listed by `windlass ps`
    #[arg(value_name = "SESSION", required = true)]
    sessions: Vec<SessionId>,
    /// How long the worker may take to exit; 0s kills it at once
    #[arg(long, value_name = "DURATION", value_parser = duration::parse, default_value = "2s")]
    grace: Duration,
}

pub async fn run(args: Args, terminal: &mut Terminal) -> anyhow::Result<ExitCode> {
    let client = node_access::connect_or_start().await?;
    let close = CloseQuery { grace_ms: Some(duration::millis(args.grace)) };
    let mut code = ExitCode::SUCCESS;
    for session in &args.sessions {
        match client.close_session(session, close).await {
            Ok(closed) => terminal.say(&format!("session {} is closed", closed.id))?,
            // The others are ended all the same.
            Err(error) => code = terminal.fail(&error.into()),
        }
    }
    Ok(code)
}
