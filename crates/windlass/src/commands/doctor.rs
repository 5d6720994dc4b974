//! `windlass doctor`: whether this machine can confine sessions, found out by really doing it, and
//! what else a session needs. Changes nothing; each red line says what would help.

mod mechanisms;
mod node_state;
mod page;
mod programs;
mod report;
mod self_test;

use std::process::ExitCode;

use windlass_confine::Machine;
use windlass_protocol::confinement::Isolation;

use self::report::{LevelTest, Report};
use crate::outlook::site_here;
use crate::terminal::Terminal;

/// Check this machine: isolation, tools, the node
///
/// Starts a throwaway process at each isolation level that is there, tries inside it what is
/// forbidden, and says what was refused. Exits with 1 if sessions with the default policy would not
/// be confined here.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// As JSON
    #[arg(long)]
    json: bool,
    /// Run a real session too, through the node, which is started if there is none
    #[arg(long)]
    session_test: bool,
}

pub fn run(args: Args, terminal: &mut Terminal) -> anyhow::Result<ExitCode> {
    // All that forks comes first: from the runtime on there may be other threads.
    let machine = Machine::detect();
    let site = site_here()?;
    let programs = programs::find(&site);
    let tests: Vec<LevelTest> = mechanisms::available(&machine)
        .map(|level| self_test::run(level, &machine, &site, programs::interpreter(&programs)))
        .collect();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let node = runtime.block_on(node_state::look());
    let session = args.session_test.then(|| runtime.block_on(node_state::session_test()));
    let report = Report {
        version: env!("CARGO_PKG_VERSION"),
        kernel: machine.kernel.clone(),
        uid: machine.uid,
        confined: is_confined(&tests),
        levels: mechanisms::levels(&machine),
        mechanisms: mechanisms::items(&machine),
        tests,
        session,
        programs,
        node,
        disk: node_state::disk(&site),
    };
    if args.json {
        terminal.say(&serde_json::to_string_pretty(&report)?)?;
    } else {
        page::print(&report, terminal)?;
    }
    Ok(if report.is_well() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// The level at which sessions with the default policy hold what it requires: the strongest there
/// is, if its test says so.
fn is_confined(tests: &[LevelTest]) -> Option<Isolation> {
    let strongest = tests.first()?;
    strongest.holds().then_some(strongest.level)
}
