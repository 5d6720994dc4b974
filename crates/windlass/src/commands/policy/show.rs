//! `windlass policy show`: the whole policy and each control, exactly.

use std::process::ExitCode;

use anyhow::Context;
use serde_json::json;
use windlass_confine::Machine;
use windlass_protocol::SessionId;
use windlass_protocol::confinement::{ControlReport, Isolation};
use windlass_protocol::policy::Policy;

use crate::outlook::{Outlook, site_here};
use crate::policy_options::PolicyOptions;
use crate::terminal::{Terminal, Tone};
use crate::{control_table, node_access};

/// Show a policy, and what each of its controls amounts to here
///
/// The current directory is taken as the workspace. Exits with 1 if such a session would not start.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The policy of this session, and how it is enforced there
    #[arg(long, value_name = "ID", conflicts_with = "PolicyOptions")]
    session: Option<SessionId>,
    /// As JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    policy: PolicyOptions,
}

/// What is shown.
struct Shown {
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

fn of_here(options: &PolicyOptions) -> anyhow::Result<Shown> {
    let policy = options.resolve()?;
    let outlook = Outlook::new(&policy, &Machine::detect(), &site_here()?);
    Ok(Shown {
        policy: Some(policy),
        isolation: outlook.plan.as_ref().map(|plan| plan.isolation),
        controls: outlook.plan.map(|plan| plan.controls).unwrap_or_default(),
        refused: outlook.refused.map(|error| error.to_string()),
    })
}

fn of_session(id: &SessionId) -> anyhow::Result<Shown> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let session = runtime.block_on(async {
        let client = node_access::present().await?.context("no node is running")?;
        anyhow::Ok(client.session(id).await?)
    })?;
    let confinement = session.confinement;
    Ok(Shown {
        policy: session.policy.map(|policy| *policy),
        isolation: confinement.as_ref().map(|confinement| confinement.isolation),
        controls: confinement.map(|confinement| confinement.controls).unwrap_or_default(),
        refused: None,
    })
}

fn page(shown: &Shown, terminal: &mut Terminal) -> anyhow::Result<()> {
    if let Some(policy) = &shown.policy {
        terminal.say(&terminal.tone(Tone::Strong, "Policy"))?;
        // As a client would send it: flat, each part on a line.
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

/// Texts and lists of texts without quotes; anything else as JSON.
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
