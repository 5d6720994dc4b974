//! The first process of `windlass fleet dev`: starts the supervisor, waits for it, and ends what it has left. A signal
//! ends the fleet in order; a second one ends it at once.

use std::fs::DirBuilder;
use std::io;
use std::os::unix::fs::DirBuilderExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Stdio};
use std::time::Duration;

use anyhow::{Context as _, bail};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::time::timeout;
use windlass_procs::tree;

use super::killing::{KILL_WAIT, kill_all_below};
use super::{Args, DevPlan, EndSignals, nats_program};
use crate::exit;

/// How long the supervisor may take to end the fleet.
const END_WAIT: Duration = Duration::from_secs(45);

pub(super) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let nats_server = nats_program::find(args.nats_server.as_deref())?;
    tree::become_subreaper().context("cannot adopt the processes of the fleet")?;
    let dir = match &args.dir {
        Some(dir) => named_directory(dir)?,
        None => tempfile::Builder::new().prefix("windlass-fleet-").tempdir()?.keep(),
    };
    let plan = DevPlan { nats_server, ..args.plan(&dir) };
    let attended = attend(args, &plan);
    let killed = kill_all_below();
    // A supervisor that has ended by itself leaves nothing.
    if !matches!(killed, Ok(0)) {
        plan.sweep_cgroups();
    }
    let removed = plan.remove_dir();
    killed?;
    removed.with_context(|| format!("cannot remove {}", dir.display()))?;
    attended
}

/// The directory that the user has named. It must be empty: the fleet is a new one.
fn named_directory(dir: &Path) -> anyhow::Result<PathBuf> {
    let dir = std::path::absolute(dir)?;
    let made = DirBuilder::new().recursive(true).mode(0o700).create(&dir);
    made.with_context(|| format!("cannot make {}", dir.display()))?;
    let mut entries = dir.read_dir().with_context(|| format!("cannot read {}", dir.display()))?;
    if entries.next().is_some() {
        bail!("{} is not empty; name an empty or a new directory", dir.display());
    }
    Ok(dir)
}

/// Starts the supervisor and waits until it has ended, or does not end although it was killed.
fn attend(args: &Args, plan: &DevPlan) -> anyhow::Result<ExitCode> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    // Before the start: a signal that arrives in between must not end this process alone.
    let (signals, child_ended) = {
        let _within = runtime.enter();
        outlast_ctrl_z()?;
        (EndSignals::new()?, signal(SignalKind::child())?)
    };
    let mut supervisor = supervisor_command(args, plan)?
        .spawn()
        .context("cannot start the supervisor of the fleet")?;
    let waited = runtime.block_on(wait_for(&mut supervisor, signals, child_ended));
    if waited.is_err() {
        let _ = supervisor.kill();
    }
    let status = supervisor.try_wait()?;
    waited?;
    let code = status.and_then(|status| status.code()).and_then(|code| u8::try_from(code).ok());
    Ok(ExitCode::from(code.unwrap_or(exit::FAILED)))
}

/// From now on Ctrl-Z stops nothing. It would stop this process alone, and a fleet that is stopped loses its leases.
/// Needs a runtime.
fn outlast_ctrl_z() -> io::Result<()> {
    // The handler stays when the receiver is dropped. Unlike an ignored signal, it is not inherited by the fleet.
    drop(signal(SignalKind::from_raw(rustix::process::Signal::TSTP.as_raw()))?);
    Ok(())
}

fn supervisor_command(args: &Args, plan: &DevPlan) -> anyhow::Result<Command> {
    let program =
        std::env::current_exe().context("cannot find the path of the windlass program")?;
    let mut command = Command::new(program);
    command.args(["fleet", "dev", "--nodes", &plan.nodes.to_string()]);
    command.args(["--servers", &plan.servers.to_string()]);
    command.arg("--supervise").arg(&plan.dir).arg("--nats-server").arg(&plan.nats_server);
    if let Some(dir) = &args.dir {
        command.arg("--dir").arg(dir);
    }
    if plan.json {
        command.arg("--json");
    }
    // Ctrl-C reaches this process only. The supervisor sees the end of its standard input, whatever ends this process.
    command.process_group(0).stdin(Stdio::piped());
    Ok(command)
}

/// Returns when the supervisor has ended. After a signal it is told to end the fleet, and killed if that takes too long.
async fn wait_for(
    supervisor: &mut Child,
    mut signals: EndSignals,
    mut child_ended: Signal,
) -> io::Result<()> {
    tokio::select! {
        ended = end_of(supervisor, &mut child_ended) => return ended,
        () = signals.next() => {}
    }
    drop(supervisor.stdin.take());
    let in_time = tokio::select! {
        ended = timeout(END_WAIT, end_of(supervisor, &mut child_ended)) => ended.is_ok(),
        () = signals.next() => false,
    };
    if !in_time {
        supervisor.kill()?;
        // A supervisor that does not end is reported with the rest of the fleet.
        let _ = timeout(KILL_WAIT, end_of(supervisor, &mut child_ended)).await;
    }
    Ok(())
}

/// Returns when the supervisor has ended. Other children are orphans of the fleet.
async fn end_of(supervisor: &mut Child, child_ended: &mut Signal) -> io::Result<()> {
    while supervisor.try_wait()?.is_none() {
        let _ = child_ended.recv().await;
    }
    Ok(())
}
