//! `windlass usage`: shows what each tenant uses on the node. Never starts a node.

use std::process::ExitCode;

use windlass_client::Client;
use windlass_protocol::TenantName;
use windlass_protocol::api::{TenantUsage, UsageList, UsageQuery};

use crate::commands::status::since;
use crate::terminal::{Terminal, Tone, table};
use crate::{duration, node_access, size};

/// Show what each tenant uses on the node
///
/// MEMORY is what the processes of live sessions use now, and CPU what sessions have used; a column is empty where no
/// cgroup counts it. MAX MEMORY and MAX DISK are the limits of the live sessions together, as quotas count them. TURN CPU
/// is the CPU time of turns since the node started. Exits with 3 if no node is running.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  windlass usage                  all tenants
  windlass usage --tenant acme    one tenant
  windlass usage --json           the same for programs")]
pub struct Args {
    /// Show only this tenant
    #[arg(long)]
    tenant: Option<TenantName>,
    /// Print JSON; null if no node is running
    #[arg(long)]
    json: bool,
}

pub async fn run(args: Args, terminal: &mut Terminal) -> anyhow::Result<ExitCode> {
    let query = UsageQuery { tenant: args.tenant };
    let ask = async |client: Client| client.usage(&query).await;
    node_access::show_answer(terminal, args.json, ask, |_| ExitCode::SUCCESS, show).await
}

fn show(found: &UsageList, terminal: &mut Terminal) -> anyhow::Result<()> {
    let rows: Vec<_> = found.tenants.iter().map(row).collect();
    let headings = [
        "TENANT",
        "SESSIONS",
        "MEMORY",
        "MAX MEMORY",
        "MAX DISK",
        "CPU",
        "TURNS",
        "TURN CPU",
        "OUTPUT",
    ];
    for (at, line) in table(headings, &rows).iter().enumerate() {
        let tone = if at == 0 { Tone::Strong } else { Tone::Plain };
        terminal.say(&terminal.tone(tone, line))?;
    }
    let age = duration::show(since(found.since_ms));
    terminal.say(&format!("turns of the last {age}, since the node started"))?;
    Ok(())
}

fn row(usage: &TenantUsage) -> [String; 9] {
    let bytes = |bytes: Option<u64>| bytes.map(size::show).unwrap_or_default();
    let seconds = |ms: f64| format!("{:.1} s", ms / 1000.0);
    [
        usage.tenant.as_ref().map_or_else(|| "-".to_owned(), TenantName::to_string),
        usage.sessions.to_string(),
        bytes(usage.measured.memory_bytes),
        bytes(usage.held.memory_bytes),
        bytes(usage.held.disk_bytes),
        usage.measured.cpu_ms.map(seconds).unwrap_or_default(),
        usage.turns.to_string(),
        seconds(usage.cpu_ms),
        size::show(usage.output_bytes),
    ]
}
