//! `windlass tools`: what the code of a session may call.

use std::process::ExitCode;

use windlass_protocol::SessionId;

use crate::node_access;
use crate::terminal::{Terminal, Tone};

/// Show what a session's code may call
///
/// Tools of the node's MCP servers, as far as the session's policy names them, and tools that clients
/// offer to it. Code calls them as `tools.NAME(...)`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  windlass tools SESSION
  windlass tools SESSION read a file    what these words lead to, best first")]
pub struct Args {
    /// The session, as ps shows it
    #[arg(value_name = "SESSION")]
    session: SessionId,
    /// Only what these words lead to
    #[arg(value_name = "WORDS")]
    words: Vec<String>,
    /// As JSON
    #[arg(long)]
    json: bool,
}

pub async fn run(args: Args, terminal: &mut Terminal) -> anyhow::Result<ExitCode> {
    let words = (!args.words.is_empty()).then(|| args.words.join(" "));
    let client = node_access::started().await?;
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
        terminal.note("nothing: `--tools` of a new session names tools of `windlass servers`")?;
    }
    if found.more {
        terminal.note("there are more: name words to look for")?;
    }
    Ok(ExitCode::SUCCESS)
}
