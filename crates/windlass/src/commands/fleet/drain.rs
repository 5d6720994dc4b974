//! `windlass fleet drain` and `windlass fleet uncordon`: keep new sessions away from a node, wait until its sessions have
//! ended, and let it take sessions again. Never ends a session.

use std::process::ExitCode;
use std::time::Duration;

use tokio::signal::unix::{SignalKind, signal};
use tokio::time::{Instant, sleep_until};
use windlass_client::{Client, ClientError};
use windlass_protocol::NodeName;
use windlass_protocol::api::{Session, SessionsQuery};
use windlass_protocol::fleet_view::SetCordon;

use crate::terminal::Terminal;
use crate::{duration, exit, node_access};

/// How often the list of sessions is read.
const INTERVAL: Duration = Duration::from_secs(1);

/// Number of sessions that are counted, and of those that are named.
const COUNTED_MAX: usize = 100;
const NAMED_MAX: usize = 5;

/// Keep new sessions away from a node, and wait until its sessions have ended
///
/// The node is cordoned: it takes no new sessions, and serves the ones that it has. The command ends when none is left.
/// It never ends a session itself: use `windlass kill SESSION` for that. Afterwards, or when the command is interrupted,
/// the node stays cordoned until `windlass fleet uncordon NODE`, also over a restart. Exits with 124 if sessions are left
/// when the time is over.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The node, as listed by `windlass fleet nodes`
    #[arg(value_name = "NODE")]
    node: NodeName,
    /// Wait at most this long; default: until no session is left
    #[arg(long, value_name = "DURATION", value_parser = duration::parse)]
    timeout: Option<Duration>,
}

/// Let a cordoned node take sessions again
#[derive(Debug, clap::Args)]
pub struct UncordonArgs {
    /// The node, as listed by `windlass fleet nodes`
    #[arg(value_name = "NODE")]
    node: NodeName,
}

pub async fn run(args: Args, terminal: &mut Terminal) -> anyhow::Result<ExitCode> {
    let Args { node, timeout } = args;
    let Some(client) = node_access::connect_if_running_or_say(terminal, false).await? else {
        return Ok(ExitCode::from(exit::NO_NODE));
    };
    let mut interrupts = signal(SignalKind::interrupt())?;
    client.set_cordon(&node, SetCordon { on: true }).await?;
    terminal.note(&format!("node {node} is cordoned and takes no new sessions"))?;
    let deadline = timeout.map(|timeout| Instant::now() + timeout);
    let mut told = None;
    loop {
        let look_again_at = Instant::now() + INTERVAL;
        let left = left_on(&client, &node).await?;
        if left.sessions.is_empty() {
            terminal.say(&format!("node {node} has no sessions"))?;
            return Ok(ExitCode::SUCCESS);
        }
        let line = left.line();
        if told.as_ref() != Some(&line) {
            terminal.note(&line)?;
            told = Some(line);
        }
        if deadline.is_some_and(|deadline| Instant::now() >= deadline) {
            terminal.note(&stays(&node, "the time is over"))?;
            return Ok(ExitCode::from(exit::TIMED_OUT));
        }
        let until = deadline.map_or(look_again_at, |deadline| deadline.min(look_again_at));
        tokio::select! {
            () = sleep_until(until) => {}
            _ = interrupts.recv() => {
                terminal.note(&stays(&node, "interrupted"))?;
                return Ok(ExitCode::from(exit::INTERRUPTED));
            }
        }
    }
}

pub async fn uncordon(args: UncordonArgs, terminal: &mut Terminal) -> anyhow::Result<ExitCode> {
    let Some(client) = node_access::connect_if_running_or_say(terminal, false).await? else {
        return Ok(ExitCode::from(exit::NO_NODE));
    };
    client.set_cordon(&args.node, SetCordon { on: false }).await?;
    terminal.note(&format!("node {} takes new sessions", args.node))?;
    Ok(ExitCode::SUCCESS)
}

fn stays(node: &NodeName, why: &str) -> String {
    format!("{why}: node {node} stays cordoned; undo it with `windlass fleet uncordon {node}`")
}

/// The first sessions that a node still has.
struct LeftSessions {
    sessions: Vec<Session>,
    has_more: bool,
}

async fn left_on(client: &Client, node: &NodeName) -> Result<LeftSessions, ClientError> {
    let mut left = LeftSessions { sessions: Vec::new(), has_more: false };
    let mut cursor = None;
    loop {
        let (fleet, limit) = (true, Some(COUNTED_MAX));
        let node = Some(node.clone());
        let query = SessionsQuery { fleet, node, limit, cursor, ..SessionsQuery::default() };
        let page = client.session_page(&query).await?;
        left.sessions.extend(page.sessions);
        cursor = page.cursor;
        // A page can be empty and not be the last one.
        if cursor.is_none() || !left.sessions.is_empty() {
            left.has_more = cursor.is_some();
            return Ok(left);
        }
    }
}

impl LeftSessions {
    fn line(&self) -> String {
        let named = self.sessions.iter().take(NAMED_MAX);
        let mut named: Vec<String> = named
            .map(|session| format!("{} ({})", session.id, session.state.as_str().replace('_', " ")))
            .collect();
        if self.has_more || self.sessions.len() > NAMED_MAX {
            named.push("...".to_owned());
        }
        let or_more = if self.has_more { " or more" } else { "" };
        format!("{}{or_more} sessions left: {}", self.sessions.len(), named.join(", "))
    }
}

#[cfg(test)]
mod tests {
    use windlass_protocol::SessionId;
    use windlass_protocol::api::SessionState;

    use super::*;

    #[test]
    fn the_sessions_that_are_left_are_named() {
        let node = NodeName::parse("n1").unwrap();
        let session = |id: &str, state| {
            Session::of_directory(SessionId::parse(id).unwrap(), node.clone(), state)
        };
        let sessions =
            vec![session("a", SessionState::Idle), session("b", SessionState::AwaitingInput)];
        let mut left = LeftSessions { sessions, has_more: false };
        assert_eq!(left.line(), "2 sessions left: a (idle), b (awaiting input)");
        left.sessions
            .extend((0..4).map(|number| session(&format!("c{number}"), SessionState::Busy)));
        left.has_more = true;
        assert!(left.line().starts_with("6 or more sessions left: a (idle), "));
        assert!(left.line().ends_with("c2 (busy), ..."));
    }
}
