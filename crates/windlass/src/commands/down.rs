//! `windlass down`: stops the node and waits until its process has exited.

use std::os::fd::OwnedFd;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use windlass_protocol::api::StopSessions;

use crate::counted::counted;
use crate::node_access;
use crate::terminal::Terminal;

/// How long to wait until the node has ended its sessions and exited.
const STOP_WAIT: Duration = Duration::from_secs(60);

/// Stop the node
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  windlass down                    end every session, then stop the node
  windlass down --keep-sessions    for an upgrade: the next node takes over the sessions")]
pub struct Args {
    /// Keep the sessions running; the next node takes them over
    #[arg(long)]
    keep_sessions: bool,
}

pub async fn run(args: Args, terminal: &mut Terminal) -> anyhow::Result<ExitCode> {
    let Some(client) = node_access::connect_if_running().await? else {
        terminal.say("no node is running")?;
        return Ok(ExitCode::SUCCESS);
    };
    let status = client.node_status().await?;
    let sessions = if args.keep_sessions { StopSessions::Keep } else { StopSessions::End };
    if node_access::is_remote() {
        client.stop_node(sessions).await?;
        terminal.say("the node is stopping")?;
        return Ok(ExitCode::SUCCESS);
    }
    // Open the pidfd before the node stops: afterwards the pid may belong to another process.
    let pid = i32::try_from(status.pid).ok().and_then(Pid::from_raw);
    let process = pidfd_open(pid.context("the node reported no valid pid")?, PidfdFlags::empty())?;
    client.stop_node(sessions).await?;
    if !ended(&process)? {
        anyhow::bail!("node {} did not stop within {STOP_WAIT:?}", status.pid);
    }
    let fate = match sessions {
        _ if status.sessions == 0 => String::new(),
        StopSessions::Keep => {
            let kept = counted(status.sessions, "session keeps", "sessions keep");
            format!("; {kept} running for the next node")
        }
        StopSessions::End => {
            format!("; {} ended with it", counted(status.sessions, "session", "sessions"))
        }
    };
    terminal.say(&format!("the node is down{fate}"))?;
    Ok(ExitCode::SUCCESS)
}

/// Waits until the process exits, and returns whether it exited in time. Blocks: this command has nothing
/// else to do.
fn ended(process: &OwnedFd) -> anyhow::Result<bool> {
    let wait = Timespec::try_from(STOP_WAIT)?;
    loop {
        match poll(&mut [PollFd::new(process, PollFlags::IN)], Some(&wait)) {
            Err(Errno::INTR) => {}
            answered => return Ok(answered? > 0),
        }
    }
}
