//! `cargo xtask`: checks and measurements of this workspace, one module per command. The test suites against
//! a real node are in the crate `suites`.
//!
//! Only `api`, `reference`, `examples --write`, `conformance --write-docs`, `attack --document` and `fuzz --grow` write
//! files of the repository.

mod api;
mod bench;
mod console;
mod contract;
mod dist;
mod examples;
mod fuzz;
mod load;
mod reference;
mod sdk;
mod tidy;

use std::process::ExitCode;

use clap::{Parser, Subcommand};
use windlass_suites::{
    RunVerdict, agents, attack, chaos, conformance, docs, fleet, machine, packages, soak, start,
    workspace,
};

#[derive(Debug, Parser)]
#[command(name = "cargo xtask", about = "Checks and measurements of the Windlass workspace")]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Check what compiler and clippy do not: crate dependencies, file lengths, type names, unsafe code, docs
    /// and more
    Tidy,
    /// Run the tests of the contract and print which promises hold
    Contract(contract::Args),
    /// Run attacks in sessions of each isolation level and print what refuses each attack
    Attack(attack::Args),
    /// Run real agents and MCP clients against `windlass mcp`, with a stub of their model
    Agents(agents::Args),
    /// Run the official MCP conformance suite against a node and print what passes
    Conformance(conformance::Args),
    /// Write the SDKs' types from the OpenAPI document
    Api(api::Args),
    /// Test an SDK, build and install its package, and run the first example of its README
    Sdk(sdk::Args),
    /// Check that the web console's files are current, and test the page in a browser
    Console(console::Args),
    /// Build the packages that people install, and run a first session from each
    Dist(dist::Args),
    /// Write the pages of `docs/reference` from the tables of the code
    Reference(reference::Args),
    /// Run the code blocks of README and docs as they are printed
    Docs(docs::Args),
    /// Run the examples against a node and compare their output with the pages in `docs/examples`
    Examples(examples::Args),
    /// Feed arbitrary input to each reader of another process's data
    Fuzz(fuzz::Args),
    /// Measure, and print each figure beside its baseline
    Bench(bench::Args),
    /// Create and close many sessions on one node and compare its resource use before and after
    Soak(soak::Args),
    /// Run clients and faults against real nodes, from a seed, and print every broken promise
    Chaos(chaos::Args),
    /// Count the resources that a node with 1, 10 and 100 live sessions uses
    Scale(soak::scale::Args),
    /// Measure a fleet and its store, on three real servers
    Fleet(fleet::Args),
    /// Keep one core busy until standard input closes; `contract --load` runs this
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
        Command::Console(args) => console::run(&args),
        Command::Dist(args) => dist::run(&args),
        Command::Reference(args) => reference::run(&args),
        Command::Docs(args) => docs::run(&args),
        Command::Examples(args) => examples::run(&args),
        Command::Fuzz(args) => fuzz::run(&args),
        Command::Bench(args) => bench::run(&args),
        Command::Soak(args) => soak::run(&args),
        Command::Chaos(args) => chaos::run(&args),
        Command::Scale(args) => soak::scale::run(&args),
        Command::Fleet(args) => fleet::run(&args),
        Command::Busy => load::spin_until_stdin_closes(),
    };
    match done {
        Ok(RunVerdict::Good) => ExitCode::SUCCESS,
        Ok(RunVerdict::Bad) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::from(2)
        }
    }
}
