//! `windlass down`: stops the node and waits until its process is gone.

use std::os::fd::OwnedFd;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use windlass_protocol::api::StopSessions;

use crate::node_access;
use crate::terminal::Terminal;

/// How long a node may take to end its sessions and itself.
const STOP_WAIT: Duration = Duration::from_secs(60);

/// Stop the node
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  windlass down                    end every session, then the node
  windlass down --keep-sessions    for an upgrade: the next node takes the sessions over")]
pub struct Args {
    /// Leave the sessions running; the next node takes them over
    #[arg(long)]
    keep_sessions: bool,
}

pub async fn run(args: Args, terminal: &mut Terminal) -> anyhow::Result<ExitCode> {
    let Some(client) = node_access::present().await? else {
        terminal.say("no node is running")?;
        return Ok(ExitCode::SUCCESS);
    };
    let status = client.node_status().await?;
    let sessions = if args.keep_sessions { StopSessions::Keep } else { StopSessions::End };
    if node_access::is_remote() {
        client.stop_node(sessions).await?;
        terminal.say("the node was told to stop")?;
        return Ok(ExitCode::SUCCESS);
    }
    // Taken before the node is told to stop: afterwards the number may be someone else's.
    let pid = i32::try_from(status.pid).ok().and_then(Pid::from_raw);
    let process = pidfd_open(pid.context("the node has no process id")?, PidfdFlags::empty())?;
    client.stop_node(sessions).await?;
    if !ended(&process)? {
        anyhow::bail!("node {} has not ended within {STOP_WAIT:?}", status.pid);
    }
    let kept = match sessions {
        StopSessions::Keep if status.sessions > 0 => {
            format!("; {} sessions wait for the next one", status.sessions)
        }
        _ => String::new(),
    };
    terminal.say(&format!("the node is down{kept}"))?;
    Ok(ExitCode::SUCCESS)
}

/// Waits for the process's end; whether it came in time. Blocks: nothing else is left to do.
fn ended(process: &OwnedFd) -> anyhow::Result<bool> {
    let wait = Timespec::try_from(STOP_WAIT)?;
    loop {
        match poll(&mut [PollFd::new(process, PollFlags::IN)], Some(&wait)) {
            Err(Errno::INTR) => {}
            answered => return Ok(answered? > 0),
        }
    }
}
