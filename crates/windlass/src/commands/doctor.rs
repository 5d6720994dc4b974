//! `windlass doctor`: tests whether this machine can confine sessions, by confining real processes, and
//! checks what else a session needs. Changes nothing. Each failed check names a remedy.

mod mechanisms;
mod node_state;
mod page;
mod programs;
mod report;
mod self_test;
mod user_ids;

use std::process::ExitCode;

use windlass_confine::MachineSupport;
use windlass_protocol::confinement::Isolation;

use self::report::{DoctorReport, LevelTest};
use crate::outlook::site_here;
use crate::terminal::Terminal;

/// Check this machine: isolation, programs, the node
///
/// Starts a throwaway process at each available isolation level, tries forbidden actions inside it, and
/// reports what was refused. Exits with 1 if sessions with the default policy would not be confined on this
/// machine, or would not get the user ids of their own that the node is set to give them.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// Also run a real session through the node; starts the node if none is running
    #[arg(long)]
    session_test: bool,
    /// Test an empty directory as the workspace instead of the current one
    #[arg(long)]
    empty_workspace: bool,
}

pub fn run(args: Args, terminal: &mut Terminal) -> anyhow::Result<ExitCode> {
    // Removed at the end of the test.
    let empty = args.empty_workspace.then(tempfile::tempdir).transpose()?;
    if let Some(empty) = &empty {
        std::env::set_current_dir(empty.path())?;
    }
    // Fork before the runtime starts: after that, the process may have other threads.
    let machine = MachineSupport::detect();
    let site = site_here()?;
    let programs = programs::find(&site);
    let tests: Vec<LevelTest> = mechanisms::available(&machine)
        .map(|level| self_test::run(level, &machine, &site, programs::interpreter(&programs)))
        .collect();
    let user_ids = user_ids::items(&site);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let node = runtime.block_on(node_state::look());
    let session = args.session_test.then(|| runtime.block_on(node_state::session_test()));
    let report = DoctorReport {
        version: env!("CARGO_PKG_VERSION"),
        kernel: machine.kernel.clone(),
        uid: machine.uid,
        confined: is_confined(&tests),
        levels: mechanisms::levels(&machine),
        mechanisms: mechanisms::items(&machine),
        user_ids,
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

/// The level at which this machine enforces the controls that the default policy requires: the strongest
/// available level, if its test passed.
fn is_confined(tests: &[LevelTest]) -> Option<Isolation> {
    let strongest = tests.first()?;
    strongest.holds().then_some(strongest.level)
}
