//! `cargo xtask`: checks and measurements of this workspace, one module a command; the suites against a real node
//! are the crate `suites`. It changes no
//! file but those that `api`, `examples --write`, `conformance --write-docs` and `attack
//! --document` make.

mod api;
mod bench;
mod contract;
mod examples;
mod fuzz;
mod load;
mod sdk;
mod tidy;

use std::process::ExitCode;

use clap::{Parser, Subcommand};
use windlass_suites::{
    Verdict, agents, attack, chaos, conformance, machine, packages, soak, start, workspace,
};

#[derive(Debug, Parser)]
#[command(name = "cargo xtask", about = "Checks and measurements of the Windlass workspace")]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Check crate direction, lengths, openings, words, sleeps and unsafe code
    Tidy,
    /// Run the contract's tests and print which promises hold
    Contract(contract::Args),
    /// Attack sessions of each isolation level, and print what refused each attack
    Attack(attack::Args),
    /// Run real agents and MCP clients against `windlass mcp`, with a stub for their model
    Agents(agents::Args),
    /// Run the official MCP conformance suite against a node, and print what passes
    Conformance(conformance::Args),
    /// Write the SDKs' types from the OpenAPI document
    Api(api::Args),
    /// Test an SDK, build and install its package, and run its README's first example
    Sdk(sdk::Args),
    /// Run the examples against a node, and compare what they print with their pages in `docs/examples`
    Examples(examples::Args),
    /// Feed arbitrary input to whatever reads what another process wrote
    Fuzz(fuzz::Args),
    /// Measure, and print both sides of each ratio
    Bench(bench::Args),
    /// Create and close many sessions on one node, and compare what the machine held before and after
    Soak(soak::Args),
    /// Play clients and faults against real nodes, from a seed, and print every broken promise
    Chaos(chaos::Args),
    /// Count what a node with 1, 10 and 100 live sessions holds of the machine
    Scale(soak::scale::Args),
    /// Keep one core busy until standard input closes (what `contract --load` runs)
    #[command(hide = true)]
    Busy,
}

fn main() -> ExitCode {
    let done = match Cli::parse().command {
        Command::Tidy => tidy::run(),
        Command::Contract(args) => contract::run(&args),
        Command::Attack(args) => attack::run(&args),
        Command::Agents(args) => agents::run(&args),
        Command::Conformance(args) => conformance::run(&args),
        Command::Api(args) => api::run(&args),
        Command::Sdk(args) => sdk::run(&args),
        Command::Examples(args) => examples::run(&args),
        Command::Fuzz(args) => fuzz::run(&args),
        Command::Bench(args) => bench::run(&args),
        Command::Soak(args) => soak::run(&args),
        Command::Chaos(args) => chaos::run(&args),
        Command::Scale(args) => soak::scale::run(&args),
        Command::Busy => load::spin_until_stdin_closes(),
    };
    match done {
        Ok(Verdict::Good) => ExitCode::SUCCESS,
        Ok(Verdict::Bad) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::from(2)
        }
    }
}
