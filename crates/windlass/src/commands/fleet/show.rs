//! `windlass fleet show`: the fleet of this machine's node, without asking the node or the store.

use std::time::Duration;

use serde_json::json;
use windlass_client::Dirs;
use windlass_fleet::credentials::{CredentialsError, FleetAuthority, NodeTls};

use super::{now_ms, present_table};
use crate::commands::config::fleet_json;
use crate::duration;
use crate::fleet_table::FleetTable;
use crate::terminal::{Terminal, table};

/// Show the fleet of this machine's node, and when its certificate expires
#[derive(Debug, clap::Args)]
pub struct FleetShowArgs {
    /// Print JSON
    #[arg(long)]
    json: bool,
}

pub fn run(args: &FleetShowArgs, dirs: &Dirs, terminal: &mut Terminal) -> anyhow::Result<()> {
    let Some(fleet) = present_table()? else {
        terminal.say(if args.json { "null" } else { "this node is in no fleet" })?;
        return Ok(());
    };
    let dir = fleet.credentials_in(&dirs.state);
    let credentials = NodeTls::load(&dir);
    let members = FleetAuthority::open(&dir)?.map(|authority| authority.members()).transpose()?;
    if args.json {
        let mut shown = fleet_json(&fleet);
        shown["credentials"] = json!(dir.display().to_string());
        shown["certificate_node"] = json!(credentials.as_ref().ok().map(NodeTls::node));
        shown["expires_at_ms"] = json!(credentials.as_ref().ok().map(NodeTls::expires_at));
        shown["credentials_error"] = json!(credentials.as_ref().err().map(ToString::to_string));
        shown["members"] = json!(members);
        terminal.say(&serde_json::to_string_pretty(&shown)?)?;
        return Ok(());
    }
    let mut rows = rows(&fleet);
    rows.push(["credentials".to_owned(), dir.display().to_string()]);
    rows.push(["certificate".to_owned(), certificate(&fleet, &credentials)]);
    if let Some(members) = members {
        let names: Vec<&str> = members.iter().map(|node| node.as_str()).collect();
        rows.push(["authority".to_owned(), format!("here; members: {}", names.join(", "))]);
    }
    for line in table(["SETTING", "VALUE"], &rows) {
        terminal.say(&line)?;
    }
    Ok(())
}

fn rows(fleet: &FleetTable) -> Vec<[String; 2]> {
    let row = |name: &str, value: String| [name.to_owned(), value];
    let time = |ms: u64| duration::show(Duration::from_millis(ms));
    let config = &fleet.config;
    let store_ca = config.store_ca.as_ref().map(|path| path.display().to_string());
    vec![
        row("node", config.node.to_string()),
        row("servers", fleet.shown_servers().join(", ")),
        row("store ca", store_ca.unwrap_or_else(|| "the machine's authorities".to_owned())),
        row("replicas", config.replicas.to_string()),
        row("listen", config.listen.to_string()),
        row("address", config.address.clone()),
        row("lease", time(config.timing.ttl_ms)),
        row("lost after", time(config.timing.lost_after_ms)),
    ]
}

fn certificate(fleet: &FleetTable, credentials: &Result<NodeTls, CredentialsError>) -> String {
    let tls = match credentials {
        Ok(tls) => tls,
        Err(error) => return format!("cannot be used: {error}"),
    };
    if tls.node() != fleet.config.node {
        return format!("is for the node {}; join the fleet again under one name", tls.node());
    }
    let left_ms = tls.expires_at().saturating_sub(now_ms());
    if left_ms == 0 {
        let node = &fleet.config.node;
        return format!(
            "has expired; join again with a token of `windlass fleet invite --node {node}`"
        );
    }
    format!("expires in {}", duration::show(Duration::from_millis(left_ms)))
}
