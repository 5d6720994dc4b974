//! `windlass tools`: lists the tools that the code of a session may call.

use std::process::ExitCode;

use windlass_protocol::SessionId;

use crate::node_access;
use crate::terminal::{Terminal, Tone};

/// List the tools that the code of a session may call
///
/// These are the tools of the node's MCP servers that the session's policy allows, and the tools that clients
/// offer to the session. Code calls a tool as `tools.NAME(...)`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  windlass tools SESSION
  windlass tools SESSION read a file    search for tools, best match first")]
pub struct Args {
    /// The session id, as listed by `windlass ps`
    #[arg(value_name = "SESSION")]
    session: SessionId,
    /// Search for tools that match these words
    #[arg(value_name = "WORDS")]
    words: Vec<String>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

pub async fn run(args: Args, terminal: &mut Terminal) -> anyhow::Result<ExitCode> {
    let words = (!args.words.is_empty()).then(|| args.words.join(" "));
    let client = node_access::connect_or_start().await?;
    let found = client.session_tools(&args.session, words.as_deref()).await?;
    if args.json {
        terminal.say(&serde_json::to_string_pretty(&found)?)?;
        return Ok(ExitCode::SUCCESS);
    }
    for tool in &found.tools {
        terminal.say(&terminal.tone(Tone::Strong, &tool.signature))?;
        if !tool.summary.is_empty() {
            terminal.say(&format!("    {}", tool.summary))?;
        }
    }
    if found.tools.is_empty() {
        terminal.note(
            "no tools; start a session with `--tools RULE` to allow tools of `windlass servers`",
        )?;
    }
    if found.more {
        terminal.note("there are more tools: add words to search for")?;
    }
    Ok(ExitCode::SUCCESS)
}
