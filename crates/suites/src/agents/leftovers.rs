//! Checks which processes run after a client has ended: the node and its sessions, and no process of the
//! client or of `windlass mcp`.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use windlass_client::WhichSessions;
use windlass_testkit::processes;

use super::client_home::ClientHome;

/// How long the client's child processes may live after the client has ended.
const GONE_WAIT: Duration = Duration::from_secs(10);

/// The time between two looks.
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// Compares the processes that use the client's directories with those that the node reports.
pub async fn check(home: &ClientHome, sessions_expected: usize) -> Result<(), String> {
    let client = home
        .node()
        .client()
        .await
        .map_err(|error| format!("the node does not answer: {error:#}"))?;
    let status =
        client.node_status().await.map_err(|error| format!("the node has no status: {error}"))?;
    let sessions = client.sessions(WhichSessions::Live).await;
    let sessions =
        sessions.map_err(|error| format!("the node does not list its sessions: {error}"))?.sessions;
    let deadline = Instant::now() + GONE_WAIT;
    let others = loop {
        let mut others = processes::belonging(home.node().base());
        // Listed after `others`: the node may make more processes of its own at any time.
        let mut known = BTreeSet::from([status.pid]);
        known.extend(processes::descendants(status.pid));
        for keeper in sessions.iter().filter_map(|session| session.keeper_pid) {
            known.insert(keeper);
            known.extend(processes::descendants(keeper));
        }
        others.retain(|pid| !known.contains(pid) && processes::alive(*pid));
        if others.is_empty() || Instant::now() > deadline {
            break others;
        }
        tokio::time::sleep(LOOK_EVERY).await;
    };
    if !others.is_empty() {
        let shown: Vec<String> = others
            .iter()
            .map(|pid| format!("{pid} {}", processes::arguments(*pid).join(" ")))
            .collect();
        return Err(format!("still running: {}", shown.join("; ")));
    }
    let names: Vec<&str> = sessions.iter().map(|session| session.id.as_str()).collect();
    match names.len() == sessions_expected {
        true => Ok(()),
        false => Err(format!("expected {sessions_expected} sessions, found: {}", names.join(", "))),
    }
}
