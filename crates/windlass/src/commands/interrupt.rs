//! `windlass interrupt`: interrupts the running turn of a session. The session keeps its state.

use std::process::ExitCode;

use windlass_protocol::SessionId;

use crate::node_access;
use crate::terminal::Terminal;

/// Interrupt the running turn of a session
///
/// The code receives a KeyboardInterrupt. The session keeps its variables.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The session id, as listed by `windlass ps`
    #[arg(value_name = "SESSION")]
    session: SessionId,
}

pub async fn run(args: Args, terminal: &mut Terminal) -> anyhow::Result<ExitCode> {
    let turn = node_access::connect_or_start().await?.interrupt(&args.session).await?;
    terminal.say(&format!("turn {} is being interrupted", turn.id))?;
    Ok(ExitCode::SUCCESS)
}
