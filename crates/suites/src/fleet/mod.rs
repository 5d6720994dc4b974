//! What a fleet's store costs, and how it grows: `cargo xtask fleet cost` and `cargo xtask fleet scale`. What nodes of a
//! fleet add to a turn: `cargo xtask fleet route`. Three real servers of NATS run on this machine, with a sync of each
//! write.

mod cost;
mod route;
mod scale;
mod servers;

use anyhow::Result;
use clap::Subcommand;

use crate::RunVerdict;

#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(subcommand)]
    command: FleetCommand,
}

#[derive(Debug, Subcommand)]
enum FleetCommand {
    /// Compare claims of names and copies of events with the same writes of the bare engine
    Cost(cost::Args),
    /// Compare a warm turn on the owner's socket, through another node, and without a fleet
    Route(route::Args),
    /// Fill the directory, look sessions up, renew leases, and start the servers again
    Scale(scale::Args),
}

pub fn run(args: &Args) -> Result<RunVerdict> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    match &args.command {
        FleetCommand::Cost(args) => runtime.block_on(cost::run(args)),
        FleetCommand::Route(args) => runtime.block_on(route::run(args)),
        FleetCommand::Scale(args) => runtime.block_on(scale::run(args)),
    }
}
