//! `windlass fleet doctor`: checks the fleet as the node sees it. Changes nothing, and never starts a node. Each failed
//! check names a remedy.

use std::process::ExitCode;
use std::time::{Duration, SystemTime};

use serde::Serialize;
use windlass_client::{Client, ClientError};
use windlass_protocol::fleet_view::{
    FleetNodeList, FleetNodeStatus, FleetNodeView, FleetStatus, NodeLoad, NodeStanding,
};

use crate::terminal::{Terminal, Tone};
use crate::{duration, node_access};

/// With less than this left, a certificate should have been renewed.
const CERTIFICATE_LEFT: Duration = Duration::from_secs(7 * 24 * 3600);

/// Clocks that differ by more than this confuse people who compare logs. Leases do not depend on them.
const CLOCK_DIFFERENCE_MS: i64 = 2_000;

/// A store that takes longer is not healthy.
const STORE_ANSWER_MS: u64 = 250;

/// Check the fleet: store, lease, certificate, nodes
///
/// Exits with 3 if no node is running, and with 1 if a check failed.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Print JSON; null if no node is running
    #[arg(long)]
    json: bool,
}

/// The result of one check.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
struct FleetCheck {
    name: &'static str,
    result: FleetCheckResult,
    says: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    help: Option<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
enum FleetCheckResult {
    Good,
    /// The fleet works, but somebody should look.
    Warning,
    Bad,
}

pub async fn run(args: Args, terminal: &mut Terminal) -> anyhow::Result<ExitCode> {
    let code = |checks: &Vec<FleetCheck>| code(checks);
    let show = |checks: &Vec<FleetCheck>, terminal: &mut Terminal| show(checks, terminal);
    node_access::show_answer(terminal, args.json, check, code, show).await
}

async fn check(client: Client) -> Result<Vec<FleetCheck>, ClientError> {
    let status = client.fleet_status().await?;
    let list = client.fleet_nodes().await?;
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    Ok(checks(&status, &list, duration::millis(now)))
}

fn code(checks: &[FleetCheck]) -> ExitCode {
    let is_bad = checks.iter().any(|check| check.result == FleetCheckResult::Bad);
    if is_bad { ExitCode::FAILURE } else { ExitCode::SUCCESS }
}

fn show(checks: &[FleetCheck], terminal: &mut Terminal) -> anyhow::Result<()> {
    for FleetCheck { name, result, says, help } in checks {
        let (mark, tone) = match result {
            FleetCheckResult::Good => ("✓", Tone::Good),
            FleetCheckResult::Warning => ("!", Tone::Busy),
            FleetCheckResult::Bad => ("✗", Tone::Error),
        };
        terminal.say(&terminal.tone(tone, &format!("{mark} {name:12} {says}")))?;
        if let Some(help) = help {
            terminal.say(&format!("  {:12} {help}", ""))?;
        }
    }
    Ok(())
}

impl FleetCheck {
    fn good(name: &'static str, says: impl Into<String>) -> Self {
        Self { name, result: FleetCheckResult::Good, says: says.into(), help: None }
    }

    fn warning(name: &'static str, says: impl Into<String>, help: impl Into<String>) -> Self {
        let help = Some(help.into());
        Self { name, result: FleetCheckResult::Warning, says: says.into(), help }
    }

    fn bad(name: &'static str, says: impl Into<String>, help: impl Into<String>) -> Self {
        let help = Some(help.into());
        Self { name, result: FleetCheckResult::Bad, says: says.into(), help }
    }
}

/// All checks, in the order in which a person would look.
fn checks(status: &FleetStatus, list: &FleetNodeList, now_ms: u64) -> Vec<FleetCheck> {
    vec![
        store(status),
        lease(status),
        certificate(status, now_ms),
        reachable(list),
        versions(list),
        clocks(list),
        room(list),
    ]
}

fn store(status: &FleetStatus) -> FleetCheck {
    let store = &status.store;
    match (store.reachable, store.answer_ms.unwrap_or(0)) {
        (true, ms) if ms <= STORE_ANSWER_MS => FleetCheck::good(
            "store",
            format!("answered within {ms} ms; its settings were checked at the connection"),
        ),
        (true, ms) => FleetCheck::warning(
            "store",
            format!("took {ms} ms to answer"),
            "look at the disks of the store's servers, and at the network to them",
        ),
        (false, _) => FleetCheck::bad(
            "store",
            store.error.clone().unwrap_or_else(|| "does not answer".to_owned()),
            "see that a majority of the servers runs and can be reached from this machine, and that `servers` of [fleet] \
             in the configuration names them; do what the message says about their settings",
        ),
    }
}

fn lease(status: &FleetStatus) -> FleetCheck {
    let age = status.lease_age_ms.map(|ms| duration::show(Duration::from_millis(ms)));
    let renewed =
        age.map_or_else(|| "never renewed".to_owned(), |age| format!("renewed {age} ago"));
    match status.standing {
        NodeStanding::Serving => FleetCheck::good("lease", renewed),
        NodeStanding::Joining => FleetCheck::bad(
            "lease",
            format!("{renewed}; node {} has not joined yet", status.node),
            "wait a moment; another process may have the lease of this name until it expires, and the node's log says \
             what it waits for",
        ),
        NodeStanding::Closed => FleetCheck::bad(
            "lease",
            format!("{renewed}; node {} takes no new sessions", status.node),
            "bring the store back before the node ends its sessions",
        ),
        NodeStanding::Fenced => FleetCheck::bad(
            "lease",
            format!("{renewed}; node {} ends its sessions", status.node),
            "the node joins again by itself when the store answers; the node's log says why it lost the lease",
        ),
    }
}

fn certificate(status: &FleetStatus, now_ms: u64) -> FleetCheck {
    let left = Duration::from_millis(status.certificate_expires_at_ms.saturating_sub(now_ms));
    let shown = duration::show(left);
    if left.is_zero() {
        let help = "other nodes refuse this node: let it join again with `windlass fleet join` and a new invitation";
        return FleetCheck::bad("certificate", "has expired", help);
    }
    if left < CERTIFICATE_LEFT {
        let help = "the node renews it by itself: see that the node where `windlass fleet init` ran can be reached";
        return FleetCheck::warning("certificate", format!("expires in {shown}"), help);
    }
    FleetCheck::good("certificate", format!("is valid for {shown}"))
}

fn reachable(list: &FleetNodeList) -> FleetCheck {
    let silent: Vec<String> = list
        .nodes
        .iter()
        .filter_map(|node| match (node.status, &node.error) {
            (FleetNodeStatus::Unreachable, _) => Some(format!("{} has no lease", node.node)),
            (FleetNodeStatus::Alive, Some(error)) => Some(error.clone()),
            (FleetNodeStatus::Alive | FleetNodeStatus::Lost, _) => None,
        })
        .collect();
    let lost = list.nodes.iter().filter(|node| node.status == FleetNodeStatus::Lost).count();
    let answered = list.nodes.iter().filter(|node| node.load.is_some()).count();
    if !silent.is_empty() {
        let help = "see that these machines run, and that this machine reaches the addresses that `windlass fleet nodes` \
                    shows; a node that is gone for good is declared lost by itself";
        return FleetCheck::bad("nodes", silent.join("; "), help);
    }
    let and_lost = if lost > 0 { format!(", {lost} lost") } else { String::new() };
    FleetCheck::good("nodes", format!("{answered} answered{and_lost}"))
}

fn versions(list: &FleetNodeList) -> FleetCheck {
    let mut releases: Vec<&str> = loads(list).map(|(_, load)| load.release.as_str()).collect();
    releases.sort_unstable();
    releases.dedup();
    match releases[..] {
        [] => FleetCheck::warning("versions", "no node told its version", "see the check of nodes"),
        [release] => FleetCheck::good("versions", format!("all nodes run {release}")),
        _ => {
            let named: Vec<String> =
                loads(list).map(|(node, load)| format!("{} {}", node.node, load.release)).collect();
            let help = "finish the upgrade: nodes of two releases work together only for the time of an upgrade";
            FleetCheck::warning("versions", named.join(", "), help)
        }
    }
}

fn clocks(list: &FleetNodeList) -> FleetCheck {
    let differing: Vec<String> = list
        .nodes
        .iter()
        .filter_map(|node| {
            let ahead = node.clock_ahead_ms?;
            // Half of the time of the answer is not known.
            let unsure = i64::try_from(node.answer_ms.unwrap_or(0) / 2).unwrap_or(i64::MAX);
            let off = ahead.saturating_abs().saturating_sub(unsure);
            let side = if ahead > 0 { "ahead" } else { "behind" };
            let shown = duration::show(Duration::from_millis(ahead.unsigned_abs()));
            (off > CLOCK_DIFFERENCE_MS).then(|| format!("{} is {shown} {side}", node.node))
        })
        .collect();
    if differing.is_empty() {
        return FleetCheck::good("clocks", "differ by less than 2 s");
    }
    let help = "run a time service on all machines; leases do not depend on it, times in logs and certificates do";
    FleetCheck::warning("clocks", differing.join(", "), help)
}

fn room(list: &FleetNodeList) -> FleetCheck {
    let takes = |load: &NodeLoad| {
        !load.cordoned
            && load.standing == NodeStanding::Serving
            && load.memory.free_bytes() > 0
            && load.sessions.live < load.sessions.max
    };
    let total = loads(list).count();
    let open = loads(list).filter(|(_, load)| takes(load)).count();
    let cordoned: Vec<String> = loads(list)
        .filter(|(_, load)| load.cordoned)
        .map(|(node, _)| node.node.to_string())
        .collect();
    let says = match cordoned.is_empty() {
        true => format!("{open} of {total} nodes take new sessions"),
        false => {
            format!("{open} of {total} nodes take new sessions; cordoned: {}", cordoned.join(", "))
        }
    };
    match open {
        0 => FleetCheck::bad(
            "room",
            says,
            "end sessions, add a node with `windlass fleet join`, or use `windlass fleet uncordon NODE`",
        ),
        _ => FleetCheck::good("room", says),
    }
}

/// The nodes that told their load.
fn loads(list: &FleetNodeList) -> impl Iterator<Item = (&FleetNodeView, &NodeLoad)> {
    list.nodes.iter().filter_map(|node| Some((node, node.load.as_ref()?)))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn status(standing: &str, expires_at_ms: u64, store: Value) -> FleetStatus {
        serde_json::from_value(json!({
            "node": "n1", "release": "1.2.3", "standing": standing, "cordoned": false,
            "lease_age_ms": 1000, "lease_close_ms": 22_000, "lease_fence_ms": 308_500, "store": store,
            "certificate_expires_at_ms": expires_at_ms,
            "nodes": {"alive": 1, "unreachable": 0, "lost": 0, "silent": 0}, "sessions": 0,
        }))
        .unwrap()
    }

    fn node(name: &str, release: &str, cordoned: bool, clock_ahead_ms: i64) -> FleetNodeView {
        serde_json::from_value(json!({
            "node": name, "status": "alive", "answer_ms": 10, "clock_ahead_ms": clock_ahead_ms,
            "load": {
                "version": 1, "node": name, "release": release, "at_ms": 0, "standing": "serving",
                "cordoned": cordoned, "sessions": {"live": 0, "max": 100},
                "memory": {"total_bytes": 4096, "available_bytes": 3072, "reserve_bytes": 1024},
                "processors": {"count": 4, "load_hundredths": 0},
            },
        }))
        .unwrap()
    }

    /// Name and result of each check that is not good.
    fn not_good(status: &FleetStatus, nodes: Vec<FleetNodeView>) -> Vec<(&'static str, bool)> {
        let checks = checks(status, &FleetNodeList { nodes }, 1_000_000);
        assert!(
            checks
                .iter()
                .all(|check| { (check.result == FleetCheckResult::Good) == check.help.is_none() })
        );
        let not_good = checks.iter().filter(|check| check.result != FleetCheckResult::Good);
        not_good.map(|check| (check.name, check.result == FleetCheckResult::Bad)).collect()
    }

    #[test]
    fn each_fault_is_found_by_its_check() {
        let far = 1_000_000 + 30 * 24 * 3_600_000;
        let good = || json!({"reachable": true, "answer_ms": 1});
        let well = status("serving", far, good());
        let two = || vec![node("n1", "1.2.3", false, 0), node("n2", "1.2.3", false, -100)];
        assert!(not_good(&well, two()).is_empty());
        let gone = status("closed", far, json!({"reachable": false, "error": "no server"}));
        assert_eq!(not_good(&gone, two()), [("store", true), ("lease", true)]);
        let old = status("serving", 1_000_000 + 3_600_000, good());
        assert_eq!(not_good(&old, two()), [("certificate", false)]);
        assert_eq!(not_good(&status("serving", 5, good()), two()), [("certificate", true)]);
        let mut silent = two();
        (silent[1].load, silent[1].error) = (None, Some("node n2 did not answer".to_owned()));
        silent[1].clock_ahead_ms = None;
        assert_eq!(not_good(&well, silent), [("nodes", true)]);
        let mut unreachable = two();
        unreachable[1].status = FleetNodeStatus::Unreachable;
        assert_eq!(not_good(&well, unreachable), [("nodes", true)]);
        let other = vec![node("n1", "1.2.3", false, 0), node("n2", "1.3.0", false, 5_000)];
        assert_eq!(not_good(&well, other), [("versions", false), ("clocks", false)]);
        assert_eq!(not_good(&well, vec![node("n1", "1.2.3", true, 0)]), [("room", true)]);
    }
}
