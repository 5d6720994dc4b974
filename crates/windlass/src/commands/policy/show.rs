//! `windlass policy show`: prints the complete policy and each control.

use std::process::ExitCode;

use anyhow::Context;
use serde_json::json;
use windlass_confine::MachineSupport;
use windlass_protocol::SessionId;
use windlass_protocol::confinement::{ControlReport, Isolation};
use windlass_protocol::policy::Policy;

use crate::outlook::{Outlook, site_here};
use crate::policy_options::PolicyOptions;
use crate::terminal::{Terminal, Tone};
use crate::{control_table, node_access};

/// Show a policy and how each of its controls is enforced here
///
/// Uses the current directory as the workspace. Exits with 1 if a session with this policy would not start.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Show the policy of this session and how it is enforced there
    #[arg(long, value_name = "ID", conflicts_with = "PolicyOptions")]
    session: Option<SessionId>,
    /// Print JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    policy: PolicyOptions,
}

/// A policy and its enforcement, for a session that would start here or for a live one.
struct PolicyReport {
    policy: Option<Policy>,
    isolation: Option<Isolation>,
    controls: Vec<ControlReport>,
    /// Why a session would not start.
    refused: Option<String>,
}

pub fn run(args: Args, terminal: &mut Terminal) -> anyhow::Result<ExitCode> {
    let shown = match &args.session {
        Some(session) => of_session(session)?,
        None => of_here(&args.policy)?,
    };
    if args.json {
        terminal.say(&serde_json::to_string_pretty(&json!({
            "policy": shown.policy,
            "isolation": shown.isolation,
            "controls": shown.controls,
            "refused": shown.refused,
        }))?)?;
    } else {
        page(&shown, terminal)?;
    }
    Ok(if shown.refused.is_some() { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

fn of_here(options: &PolicyOptions) -> anyhow::Result<PolicyReport> {
    let policy = options.resolve()?;
    let outlook = Outlook::new(&policy, &MachineSupport::detect(), &site_here()?);
    Ok(PolicyReport {
        policy: Some(policy),
        isolation: outlook.plan.as_ref().map(|plan| plan.isolation),
        controls: outlook.plan.map(|plan| plan.controls).unwrap_or_default(),
        refused: outlook.refused.map(|error| error.to_string()),
    })
}

fn of_session(id: &SessionId) -> anyhow::Result<PolicyReport> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let session = runtime.block_on(async {
        let client = node_access::connect_if_running().await?.context("no node is running")?;
        anyhow::Ok(client.session(id).await?)
    })?;
    let confinement = session.confinement;
    Ok(PolicyReport {
        policy: session.policy.map(|policy| *policy),
        isolation: confinement.as_ref().map(|confinement| confinement.isolation),
        controls: confinement.map(|confinement| confinement.controls).unwrap_or_default(),
        refused: None,
    })
}

fn page(shown: &PolicyReport, terminal: &mut Terminal) -> anyhow::Result<()> {
    if let Some(policy) = &shown.policy {
        terminal.say(&terminal.tone(Tone::Strong, "Policy"))?;
        // One field of the JSON form per line.
        if let serde_json::Value::Object(parts) = serde_json::to_value(policy)? {
            for (name, value) in parts {
                terminal.say(&format!("  {name:12} {}", value_text(&value)))?;
            }
        }
    }
    if let Some(isolation) = shown.isolation {
        let heading = format!("Controls at level {isolation}");
        terminal.say(&terminal.tone(Tone::Strong, &heading))?;
    }
    for line in control_table::lines(terminal, &shown.controls) {
        terminal.say(&line)?;
    }
    if let Some(refused) = &shown.refused {
        let line = format!("A session with this policy would not start here: {refused}");
        terminal.say(&terminal.tone(Tone::Error, &line))?;
    }
    Ok(())
}

/// Formats strings and lists without quotes; anything else as JSON.
fn value_text(value: &serde_json::Value) -> String {
    match value {
        serde_json::Value::String(text) => text.clone(),
        serde_json::Value::Array(items) if items.is_empty() => "-".to_owned(),
        serde_json::Value::Array(items) => {
            items.iter().map(value_text).collect::<Vec<_>>().join(" ")
        }
        other => other.to_string(),
    }
}
