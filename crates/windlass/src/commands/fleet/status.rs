//! `windlass fleet status`: shows how the node stands in its fleet. Never starts a node.

use std::process::ExitCode;
use std::time::{Duration, SystemTime};

use windlass_client::Client;
use windlass_protocol::fleet_view::{FleetStatus, NodeStanding};

use crate::terminal::{Terminal, Tone};
use crate::{duration, node_access};

/// Show how the node stands in its fleet
///
/// Exits with 3 if no node is running, and with 1 if the node does not serve in its fleet.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Print JSON; null if no node is running
    #[arg(long)]
    json: bool,
}

pub async fn run(args: Args, terminal: &mut Terminal) -> anyhow::Result<ExitCode> {
    let ask = async |client: Client| client.fleet_status().await;
    node_access::show_answer(terminal, args.json, ask, code, show).await
}

fn code(status: &FleetStatus) -> ExitCode {
    match status.standing {
        NodeStanding::Serving => ExitCode::SUCCESS,
        NodeStanding::Joining | NodeStanding::Closed | NodeStanding::Fenced => ExitCode::FAILURE,
    }
}

fn show(status: &FleetStatus, terminal: &mut Terminal) -> anyhow::Result<()> {
    let tone = if status.standing == NodeStanding::Serving { Tone::Good } else { Tone::Error };
    let standing = terminal.tone(tone, status.standing.as_str());
    let cordon = if status.cordoned { ", cordoned" } else { "" };
    for (name, value) in [
        ("node", status.node.to_string()),
        ("standing", format!("{standing}{cordon}")),
        ("lease", lease(status)),
        ("store", store(status)),
        ("certificate", format!("expires {}", until(status.certificate_expires_at_ms))),
        ("nodes", nodes(status)),
        ("sessions", status.sessions.to_string()),
        ("version", status.release.clone()),
    ] {
        terminal.say(&format!("{name:12} {value}"))?;
    }
    Ok(())
}

fn lease(status: &FleetStatus) -> String {
    let shown = |ms: u64| duration::show(Duration::from_millis(ms));
    let Some(age) = status.lease_age_ms else { return "none yet".to_owned() };
    format!(
        "renewed {} ago; no new sessions after {}, sessions end after {}",
        shown(age),
        shown(status.lease_close_ms),
        shown(status.lease_fence_ms)
    )
}

fn store(status: &FleetStatus) -> String {
    let store = &status.store;
    match (store.reachable, store.answer_ms, &store.error) {
        (true, Some(ms), _) => format!("answers within {ms} ms"),
        (true, None, _) => "answers".to_owned(),
        (false, _, Some(error)) => format!("does not answer: {error}"),
        (false, _, None) => "does not answer".to_owned(),
    }
}

fn nodes(status: &FleetStatus) -> String {
    let counts = status.nodes;
    let mut text = format!("{} alive", counts.alive);
    for (count, what) in [
        (counts.silent, "of them without an answer"),
        (counts.unreachable, "unreachable"),
        (counts.lost, "lost"),
    ] {
        if count > 0 {
            text += &format!(", {count} {what}");
        }
    }
    text
}

/// How far a moment is away, given in milliseconds since the Unix epoch.
fn until(moment_ms: u64) -> String {
    let moment = SystemTime::UNIX_EPOCH + Duration::from_millis(moment_ms);
    match moment.duration_since(SystemTime::now()) {
        Ok(left) => format!("in {}", duration::show(left)),
        Err(past) => format!("{} ago", duration::show(past.duration())),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_status_is_told_in_words() {
        let status: FleetStatus = serde_json::from_value(json!({
            "node": "n1", "release": "1.2.3", "standing": "closed", "cordoned": false,
            "lease_age_ms": 23_000, "lease_close_ms": 22_000, "lease_fence_ms": 308_500,
            "store": {"reachable": false, "error": "no answer"}, "certificate_expires_at_ms": 0,
            "nodes": {"alive": 3, "unreachable": 1, "lost": 0, "silent": 1}, "sessions": 7,
        }))
        .unwrap();
        assert_eq!(nodes(&status), "3 alive, 1 of them without an answer, 1 unreachable");
        assert_eq!(store(&status), "does not answer: no answer");
        assert_eq!(
            lease(&status),
            "renewed 23s ago; no new sessions after 22s, sessions end after 5m8s"
        );
        assert!(until(0).ends_with(" ago") && until(u64::MAX / 1_000_000).starts_with("in "));
    }
}
