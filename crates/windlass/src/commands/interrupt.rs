//! `windlass interrupt`: stops a session's running turn and keeps its state.

use std::process::ExitCode;

use windlass_protocol::SessionId;

use crate::node_access;
use crate::terminal::Terminal;

/// Interrupt a session's running turn
///
/// The code gets a KeyboardInterrupt; the session and its variables stay.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The session, as ps shows it
    #[arg(value_name = "SESSION")]
    session: SessionId,
}

pub async fn run(args: Args, terminal: &mut Terminal) -> anyhow::Result<ExitCode> {
    let turn = node_access::started().await?.interrupt(&args.session).await?;
    terminal.say(&format!("turn {} is being interrupted", turn.id))?;
    Ok(ExitCode::SUCCESS)
}
