//! Isolates a run from the machine: this program runs itself again in new network, mount and process namespaces. The
//! kernel removes all that is in them when the first process in them ends: processes, links, bridges and mounts. So
//! none of these is left, however the run ends.

use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, bail};
use tokio::signal::unix::{SignalKind, signal};

use crate::chaos::isolation::STEP;
use crate::{RunVerdict, workspace};

/// The value of [`STEP`] inside.
const INSIDE: &str = "fleet";

/// The exit code of the script if it cannot prepare the namespaces.
const NOT_PREPARED: i32 = 3;

/// The shell is the first process of the namespaces. It reaps what loses its parent, which a program without that in mind
/// would not do. The directory of `ip netns` is a new one, so that names are free.
const PREPARE: &str = "ip link set lo up && mkdir -p /run/netns && mount -t tmpfs netns /run/netns || exit 3\n\
    \"$@\"\n\
    exit $?";

/// Whether this process is the one in the namespaces.
pub fn is_inside() -> bool {
    std::env::var(STEP).is_ok_and(|step| step == INSIDE)
}

/// Runs the same command in new namespaces.
pub fn enter(program: &Path) -> Result<RunVerdict> {
    // A terminal sends Ctrl-C to the whole group. The process inside stops its run and cleans up, and this one waits for
    // that. Without a handler, this process would end at once.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let _in_runtime = runtime.enter();
    let _interrupts = signal(SignalKind::interrupt())?;
    let status = Command::new("setpriv")
        .args(["--pdeathsig", "KILL", "unshare", "--net", "--mount", "--propagation", "private"])
        .args(["--pid", "--fork", "--kill-child", "--mount-proc", "sh", "-c", PREPARE, "sh"])
        .arg(std::env::current_exe()?)
        .args(std::env::args_os().skip(1))
        .env(STEP, INSIDE)
        .env(workspace::BUILT, program)
        .status()
        .context("cannot run setpriv")?;
    match status.code() {
        Some(0) => Ok(RunVerdict::Good),
        Some(1) => Ok(RunVerdict::Bad),
        Some(NOT_PREPARED) => bail!("cannot prepare the namespaces of the run"),
        other => bail!("the run ended with exit code {other:?}"),
    }
}
