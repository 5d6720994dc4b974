//! `windlass ps`: lists the sessions. Never starts a node.

use std::collections::HashSet;
use std::process::ExitCode;

use windlass_client::WhichSessions;
use windlass_protocol::SessionId;
use windlass_protocol::api::{Session, SessionList, SessionState};

use crate::commands::status::since;
use crate::terminal::{Terminal, Tone, table};
use crate::{duration, node_access, size};

/// List the sessions
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Also list ended sessions
    #[arg(long, short)]
    all: bool,
    /// Show the sessions that run an agent's code below the agent's session
    #[arg(long, conflicts_with = "json")]
    tree: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

pub async fn run(args: Args, terminal: &mut Terminal) -> anyhow::Result<ExitCode> {
    let which = if args.all { WhichSessions::EndedToo } else { WhichSessions::Live };
    let list = match node_access::connect_if_running().await? {
        Some(client) => client.sessions(which).await?,
        None => SessionList { sessions: Vec::new() },
    };
    if args.json {
        terminal.say(&serde_json::to_string_pretty(&list)?)?;
        return Ok(ExitCode::SUCCESS);
    }
    let shown = if args.tree { tree(&list.sessions) } else { flat(&list.sessions) };
    let rows: Vec<_> = shown.iter().map(|(branch, session)| row(branch, session)).collect();
    let lines = table(
        ["SESSION", "STATE", "WORKER", "TURNS", "WAITING", "OUTPUT", "AGE", "WORKSPACE"],
        &rows,
    );
    for (at, line) in lines.iter().enumerate() {
        let tone = match at.checked_sub(1).map(|at| shown[at].1.state) {
            None => Tone::Strong,
            Some(SessionState::Idle) => Tone::Good,
            Some(SessionState::Ended) => Tone::Faint,
            Some(_) => Tone::Busy,
        };
        terminal.say(&terminal.tone(tone, line))?;
    }
    Ok(ExitCode::SUCCESS)
}

fn flat(sessions: &[Session]) -> Vec<(&'static str, &Session)> {
    sessions.iter().map(|session| ("", session)).collect()
}

/// Each session, with its children directly after it. A child whose parent is not listed is shown as if it had none.
fn tree(sessions: &[Session]) -> Vec<(&'static str, &Session)> {
    let listed: HashSet<&SessionId> = sessions.iter().map(|session| &session.id).collect();
    let parent = |session: &Session| session.parent.clone().filter(|id| listed.contains(id));
    let mut lines = Vec::new();
    for session in sessions.iter().filter(|session| parent(session).is_none()) {
        lines.push(("", session));
        // The list begins with the newest session. Children are told in the order in which they were made.
        let children = sessions.iter().rev();
        let mut children: Vec<&Session> =
            children.filter(|child| parent(child).as_ref() == Some(&session.id)).collect();
        let last = children.pop();
        lines.extend(children.into_iter().map(|child| ("├─ ", child)));
        lines.extend(last.map(|child| ("└─ ", child)));
    }
    lines
}

fn row(branch: &str, session: &Session) -> [String; 8] {
    [
        format!("{branch}{}", session.id),
        state(session.state).to_owned(),
        session.worker.clone(),
        session.turns.to_string(),
        session.waiting.to_string(),
        size::show(session.output_bytes),
        duration::show(since(session.created_at_ms)),
        session.workspace.clone(),
    ]
}

fn state(state: SessionState) -> &'static str {
    match state {
        SessionState::Starting => "starting",
        SessionState::Idle => "idle",
        SessionState::Busy => "busy",
        SessionState::AwaitingInput => "awaiting input",
        SessionState::Interrupting => "interrupting",
        SessionState::Restarting => "restarting",
        SessionState::Ended => "ended",
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn session(id: &str, parent: Option<&str>) -> Session {
        serde_json::from_value(json!({
            "id": id, "state": "idle", "worker": "", "workspace": "", "created_at_ms": 0, "waiting": 0,
            "turns": 0, "seq": 0, "restarts": 0, "output_bytes": 0, "output_dropped_bytes": 0,
            "messages_dropped": 0, "parent": parent,
        }))
        .unwrap()
    }

    #[test]
    fn children_come_after_their_parent_and_orphans_stay_in_the_list() {
        let sessions = [
            session("c2", Some("a")),
            session("b", None),
            session("c1", Some("a")),
            session("lost", Some("gone")),
            session("a", None),
        ];
        let lines: Vec<String> =
            tree(&sessions).iter().map(|(branch, one)| format!("{branch}{}", one.id)).collect();
        assert_eq!(lines, ["b", "lost", "a", "├─ c1", "└─ c2"]);
    }
}
