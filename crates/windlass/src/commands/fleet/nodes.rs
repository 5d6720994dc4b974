//! `windlass fleet nodes`: lists the nodes of the fleet with their load. Never starts a node.

use std::process::ExitCode;

use windlass_client::Client;
use windlass_protocol::fleet_view::{
    FleetNodeList, FleetNodeStatus, FleetNodeView, NodeLoad, NodeStanding,
};

use crate::terminal::{Terminal, Tone, table};
use crate::{node_access, size};

/// List the nodes of the fleet, with their load
///
/// Any node of the fleet answers. A node that is alive and does not answer within half a second is shown without its
/// load. Exits with 3 if no node is running.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Print JSON; null if no node is running
    #[arg(long)]
    json: bool,
}

pub async fn run(args: Args, terminal: &mut Terminal) -> anyhow::Result<ExitCode> {
    let ask = async |client: Client| client.fleet_nodes().await;
    node_access::show_answer(terminal, args.json, ask, |_| ExitCode::SUCCESS, show).await
}

fn show(list: &FleetNodeList, terminal: &mut Terminal) -> anyhow::Result<()> {
    let rows: Vec<_> = list.nodes.iter().map(row).collect();
    let headings =
        ["NODE", "STATUS", "SESSIONS", "MEMORY FREE", "LOAD", "READY", "VERSION", "ADDRESS"];
    for (at, line) in table(headings, &rows).iter().enumerate() {
        let tone = at.checked_sub(1).map_or(Tone::Strong, |at| tone(&list.nodes[at]));
        terminal.say(&terminal.tone(tone, line))?;
    }
    Ok(())
}

fn row(node: &FleetNodeView) -> [String; 8] {
    let name =
        if node.is_self { format!("{} (this node)", node.node) } else { node.node.to_string() };
    let of_load =
        |show: fn(&NodeLoad) -> String| node.load.as_ref().map_or_else(|| "-".to_owned(), show);
    [
        name,
        state(node),
        of_load(|load| format!("{} of {}", load.sessions.live, load.sessions.max)),
        of_load(|load| size::short(load.memory.free_bytes())),
        of_load(|load| {
            let load_average = load.processors.load_hundredths;
            format!("{}.{:02} of {}", load_average / 100, load_average % 100, load.processors.count)
        }),
        of_load(|load| load.ready.iter().map(|workers| workers.ready).sum::<u64>().to_string()),
        of_load(|load| load.release.clone()),
        node.address.clone().unwrap_or_default(),
    ]
}

/// The status in a few words: what matters most for new sessions.
pub(super) fn state(node: &FleetNodeView) -> String {
    let Some(load) = &node.load else {
        return match node.status {
            FleetNodeStatus::Alive => "no answer".to_owned(),
            status => status.as_str().to_owned(),
        };
    };
    match load.standing {
        NodeStanding::Serving if load.is_draining() => "draining".to_owned(),
        NodeStanding::Serving if load.cordoned => "cordoned".to_owned(),
        NodeStanding::Serving => node.status.as_str().to_owned(),
        standing => standing.as_str().to_owned(),
    }
}

fn tone(node: &FleetNodeView) -> Tone {
    match (node.status, &node.load) {
        (FleetNodeStatus::Lost, _) => Tone::Faint,
        (FleetNodeStatus::Unreachable, _) | (FleetNodeStatus::Alive, None) => Tone::Error,
        (FleetNodeStatus::Alive, Some(load)) => match load.standing {
            NodeStanding::Serving if !load.cordoned => Tone::Good,
            NodeStanding::Serving | NodeStanding::Joining => Tone::Busy,
            NodeStanding::Closed | NodeStanding::Fenced => Tone::Error,
        },
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn node(status: &str, cordoned: bool, standing: &str, live: u64) -> FleetNodeView {
        serde_json::from_value(json!({
            "node": "n2", "status": status, "address": "host:7421",
            "load": {
                "version": 1, "node": "n2", "release": "1.2.3", "at_ms": 0, "standing": standing,
                "cordoned": cordoned, "sessions": {"live": live, "max": 100},
                "memory": {"total_bytes": 4096, "available_bytes": 3072, "reserve_bytes": 1024},
                "processors": {"count": 4, "load_hundredths": 105},
                "ready": [{"worker": "python", "interpreter": "python3", "ready": 3}],
            },
        }))
        .unwrap()
    }

    #[test]
    fn a_row_says_what_matters_for_new_sessions() {
        for (cordoned, standing, live, expected) in [
            (false, "serving", 2, "alive"),
            (true, "serving", 2, "draining"),
            (true, "serving", 0, "cordoned"),
            (true, "closed", 2, "closed"),
            (false, "fenced", 0, "fenced"),
        ] {
            assert_eq!(state(&node("alive", cordoned, standing, live)), expected);
        }
        let mut silent = node("alive", false, "serving", 0);
        let cells = row(&silent);
        assert_eq!((&*cells[2], &*cells[4], &*cells[5]), ("0 of 100", "1.05 of 4", "3"));
        silent.load = None;
        assert_eq!((state(&silent), row(&silent)[2].as_str()), ("no answer".to_owned(), "-"));
        silent.status = FleetNodeStatus::Lost;
        assert_eq!(state(&silent), "lost");
    }
}
