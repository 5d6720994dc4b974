//! `windlass up`: sees that a node runs.

use std::process::ExitCode;

use crate::node_access;
use crate::terminal::Terminal;

/// Start the node, if it does not run yet
///
/// Commands that need the node start it by themselves; this is for scripts that want it up before.
#[derive(Debug, clap::Args)]
pub struct Args {}

pub async fn run(_args: Args, terminal: &mut Terminal) -> anyhow::Result<ExitCode> {
    let status = node_access::started().await?.node_status().await?;
    terminal.say(&format!("the node is up (pid {}, version {})", status.pid, status.version))?;
    Ok(ExitCode::SUCCESS)
}
