//! `windlass ps`: lists the sessions. Never starts a node.

use std::collections::HashSet;
use std::process::ExitCode;

use windlass_client::{Client, ClientError, WhichSessions};
use windlass_protocol::api::{SESSION_PAGE_MAX, Session, SessionList, SessionState, SessionsQuery};
use windlass_protocol::{NodeName, SessionId, TenantName};

use crate::commands::status::since;
use crate::terminal::{Terminal, Tone, table};
use crate::{duration, node_access, size};

/// List the sessions
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  windlass ps                       the live sessions of the node
  windlass ps --all                 ended sessions too
  windlass ps --fleet --state idle  the idle sessions of all nodes of the fleet
  windlass ps --fleet --node n2     the sessions of one node of the fleet")]
pub struct Args {
    /// Also list ended sessions
    #[arg(long, short)]
    all: bool,
    /// List the sessions of all nodes of the fleet, by node
    #[arg(long)]
    fleet: bool,
    /// List only sessions in this state: idle, busy, ...; with --fleet also unreachable or lost
    #[arg(long, value_name = "STATE", value_parser = parse_state)]
    state: Option<SessionState>,
    /// List only sessions of this node
    #[arg(long, value_name = "NODE", requires = "fleet")]
    node: Option<NodeName>,
    /// List only sessions of this tenant
    #[arg(long)]
    tenant: Option<TenantName>,
    /// Maximum number of sessions
    #[arg(long, value_name = "NUMBER", requires = "fleet", default_value_t = 1000)]
    limit: usize,
    /// Show the sessions that run an agent's code below the agent's session
    #[arg(long, conflicts_with_all = ["json", "fleet"])]
    tree: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

fn parse_state(text: &str) -> Result<SessionState, String> {
    SessionState::parse(text).ok_or_else(|| {
        "a state is starting, idle, busy, awaiting_input, interrupting, restarting, ended, unreachable or lost"
            .to_owned()
    })
}

pub async fn run(args: Args, terminal: &mut Terminal) -> anyhow::Result<ExitCode> {
    let list = match node_access::connect_if_running().await? {
        Some(client) if args.fleet => of_fleet(&client, &args).await?,
        Some(client) => of_node(&client, &args).await?,
        None => SessionList::default(),
    };
    if args.json {
        terminal.say(&serde_json::to_string_pretty(&list)?)?;
        return Ok(ExitCode::SUCCESS);
    }
    let shown = if args.tree { tree(&list.sessions) } else { flat(&list.sessions) };
    let lines = if args.fleet {
        let rows: Vec<_> = list.sessions.iter().map(fleet_row).collect();
        table(
            [
                "SESSION",
                "NODE",
                "STATE",
                "WORKER",
                "TURNS",
                "WAITING",
                "OUTPUT",
                "AGE",
                "WORKSPACE",
            ],
            &rows,
        )
    } else {
        let rows: Vec<_> = shown.iter().map(|(branch, session)| row(branch, session)).collect();
        table(
            ["SESSION", "STATE", "WORKER", "TURNS", "WAITING", "OUTPUT", "AGE", "WORKSPACE"],
            &rows,
        )
    };
    for (at, line) in lines.iter().enumerate() {
        let tone = match at.checked_sub(1).map(|at| shown[at].1.state) {
            None => Tone::Strong,
            Some(SessionState::Idle) => Tone::Good,
            Some(SessionState::Ended) => Tone::Faint,
            Some(SessionState::Unreachable | SessionState::Lost) => Tone::Error,
            Some(_) => Tone::Busy,
        };
        terminal.say(&terminal.tone(tone, line))?;
    }
    if list.cursor.is_some() {
        terminal.note(&format!("there are more sessions than {}; see --limit", args.limit))?;
    }
    Ok(ExitCode::SUCCESS)
}

async fn of_node(client: &Client, args: &Args) -> Result<SessionList, ClientError> {
    let which = if args.all { WhichSessions::EndedToo } else { WhichSessions::Live };
    let mut list = client.sessions(which).await?;
    list.sessions.retain(|session| {
        let is_of_tenant = args.tenant.is_none() || session.id.is_of(args.tenant.as_ref());
        is_of_tenant && args.state.is_none_or(|state| session.state == state)
    });
    Ok(list)
}

/// Follows the pages of the fleet's list up to the limit.
async fn of_fleet(client: &Client, args: &Args) -> Result<SessionList, ClientError> {
    let mut list = SessionList::default();
    loop {
        let left = args.limit.saturating_sub(list.sessions.len());
        if left == 0 {
            return Ok(list);
        }
        let page = client
            .session_page(&SessionsQuery {
                all: args.all,
                fleet: true,
                state: args.state,
                node: args.node.clone(),
                tenant: args.tenant.clone(),
                limit: Some(left.min(SESSION_PAGE_MAX)),
                cursor: list.cursor.take(),
            })
            .await?;
        list.sessions.extend(page.sessions);
        list.cursor = page.cursor;
        if list.cursor.is_none() {
            return Ok(list);
        }
    }
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
        state(session.state),
        session.worker.clone(),
        session.turns.to_string(),
        session.waiting.to_string(),
        size::show(session.output_bytes),
        duration::show(since(session.created_at_ms)),
        session.workspace.clone(),
    ]
}

/// Of a session whose node does not answer, only name, node and state are known.
fn fleet_row(session: &Session) -> [String; 9] {
    let node = session.node.as_ref().map(NodeName::to_string).unwrap_or_default();
    let [id, state, rest @ ..] = row("", session);
    let [worker, turns, waiting, output, age, workspace] =
        if session.state.is_of_directory() { rest.map(|_| "-".to_owned()) } else { rest };
    [id, node, state, worker, turns, waiting, output, age, workspace]
}

fn state(state: SessionState) -> String {
    state.as_str().replace('_', " ")
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
    fn of_a_session_without_its_node_only_name_node_and_state_are_shown() {
        let mut lost = session("s1", None);
        (lost.state, lost.node) = (SessionState::Lost, Some(NodeName::parse("n2").unwrap()));
        assert_eq!(fleet_row(&lost), ["s1", "n2", "lost", "-", "-", "-", "-", "-", "-"]);
        let mut waits = session("s2", None);
        waits.state = SessionState::AwaitingInput;
        assert_eq!(fleet_row(&waits)[..3], ["s2", "", "awaiting input"]);
        assert!(parse_state("awaiting_input").is_ok() && parse_state("gone").is_err());
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
