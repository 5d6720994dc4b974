//! `windlass secret`: sets, lists and removes secrets of the node, and shows or changes where a session's secrets may
//! go. Values are never printed.

use std::io::{IsTerminal as _, Read as _, Write as _};
use std::process::ExitCode;

use anyhow::{Context, bail};
use clap::Subcommand;
use windlass_client::Client;
use windlass_protocol::SessionId;
use windlass_protocol::api::{SessionSecretRules, SetSecretRules};
use windlass_protocol::policy::{BadSecretName, SecretName, SecretPosition, SecretRule};

use crate::commands::status::since;
use crate::terminal::{Terminal, Tone, table};
use crate::{duration, node_access};

/// Keep keys outside the sandbox: the egress proxy puts them into requests
///
/// The session's code has a placeholder instead of the value. The proxy replaces it in requests to the URL that a rule
/// names, and refuses it everywhere else.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  windlass secret set OPENAI_API_KEY                    asks for the value
  windlass secret set OPENAI_API_KEY < key.txt
  windlass run --secret OPENAI_API_KEY=https://api.openai.com/v1/ job.py
  windlass secret list
  windlass secret rm OPENAI_API_KEY")]
pub struct Args {
    #[command(subcommand)]
    command: SecretCommand,
}

#[derive(Debug, Subcommand)]
enum SecretCommand {
    /// Set a secret: the value comes from the terminal or from standard input
    Set {
        /// Letters, digits and _
        // Parsed later: an error of the command line would repeat a value that was typed here by mistake.
        #[arg(value_name = "NAME")]
        name: String,
    },
    /// List the secrets, without their values
    List {
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Remove a secret
    Rm {
        #[arg(value_name = "NAME", value_parser = parse_name)]
        name: SecretName,
    },
    /// Show or replace the rules of a live session
    Rules {
        /// The session id, as listed by `windlass ps`
        #[arg(value_name = "SESSION")]
        session: SessionId,
        /// A new rule instead of the present ones: NAME=URL[,option=value]...; can be repeated
        #[arg(long, value_name = "RULE", value_parser = SecretRule::parse)]
        set: Vec<SecretRule>,
        /// Remove all rules: no secret goes anywhere
        #[arg(long, conflicts_with = "set")]
        none: bool,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
}

fn parse_name(text: &str) -> Result<SecretName, BadSecretName> {
    SecretName::parse(text)
}

pub async fn run(args: Args, terminal: &mut Terminal) -> anyhow::Result<ExitCode> {
    // The value is read before a node is started: an interrupt at the prompt leaves nothing behind.
    let new = match &args.command {
        SecretCommand::Set { name } => {
            let name = SecretName::parse(name.clone())?;
            let value = read_value(&name, terminal)?;
            Some((name, value))
        }
        _ => None,
    };
    let client = node_access::connect_or_start().await?;
    match args.command {
        SecretCommand::Set { .. } => {
            let Some((name, value)) = new else { bail!("no value was read") };
            client.set_secret(&name, value).await?;
            terminal.note(&format!(
                "secret {name} is set; let a session use it with --secret {name}=URL"
            ))?;
        }
        SecretCommand::List { json } => list(&client, json, terminal).await?,
        SecretCommand::Rm { name } => {
            client.remove_secret(&name).await?;
            terminal.note(&format!("secret {name} is removed"))?;
        }
        SecretCommand::Rules { session, set, none, json } => {
            let rules = if none || !set.is_empty() {
                client.set_secret_rules(&session, &SetSecretRules { rules: set }).await?
            } else {
                client.secret_rules(&session).await?
            };
            show_rules(&rules, json, terminal)?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// Reads a value: from the terminal without showing it, or from standard input without its last line break.
fn read_value(name: &SecretName, terminal: &mut Terminal) -> anyhow::Result<String> {
    let mut stdin = std::io::stdin();
    let mut value = String::new();
    if stdin.is_terminal() {
        terminal.prompt(&format!("value of {name} (not shown): "))?;
        let hidden =
            HiddenTyping::begin().context("cannot hide what is typed; use standard input")?;
        stdin.read_line(&mut value).context("cannot read the value")?;
        drop(hidden);
        writeln!(std::io::stderr())?;
    } else {
        stdin.read_to_string(&mut value).context("cannot read the value from standard input")?;
    }
    if value.ends_with('\n') {
        value.pop();
    }
    if value.ends_with('\r') {
        value.pop();
    }
    if value.is_empty() {
        bail!("the value is empty; type it, or pass it on standard input");
    }
    Ok(value)
}

/// While this lives, the terminal does not show what is typed.
struct HiddenTyping(rustix::termios::Termios);

impl HiddenTyping {
    fn begin() -> rustix::io::Result<Self> {
        use rustix::termios::{LocalModes, OptionalActions, tcgetattr, tcsetattr};
        let before = tcgetattr(std::io::stdin())?;
        let mut hidden = before.clone();
        hidden.local_modes.remove(LocalModes::ECHO);
        tcsetattr(std::io::stdin(), OptionalActions::Flush, &hidden)?;
        Ok(Self(before))
    }
}

impl Drop for HiddenTyping {
    fn drop(&mut self) {
        use rustix::termios::{OptionalActions, tcsetattr};
        // A terminal that is gone shows nothing.
        let _ = tcsetattr(std::io::stdin(), OptionalActions::Now, &self.0);
    }
}

async fn list(client: &Client, json: bool, terminal: &mut Terminal) -> anyhow::Result<()> {
    let list = client.secrets().await?;
    if json {
        terminal.say(&serde_json::to_string_pretty(&list)?)?;
        return Ok(());
    }
    let rows: Vec<_> = list
        .secrets
        .iter()
        .map(|secret| [secret.name.clone(), duration::show(since(secret.set_at_ms))])
        .collect();
    print_table(["NAME", "SET"], &rows, terminal)
}

fn show_rules(
    rules: &SessionSecretRules,
    json: bool,
    terminal: &mut Terminal,
) -> anyhow::Result<()> {
    if json {
        terminal.say(&serde_json::to_string_pretty(rules)?)?;
        return Ok(());
    }
    let rows: Vec<_> = rules
        .rules
        .iter()
        .map(|rule| {
            let methods =
                if rule.methods.is_empty() { "all".to_owned() } else { rule.methods.join(",") };
            let position = match rule.position() {
                SecretPosition::Header(header) => format!("header {header}"),
                SecretPosition::Query(query) => format!("query {query}"),
            };
            [rule.name.to_string(), rule.to.to_string(), methods, position, rule.name.placeholder()]
        })
        .collect();
    print_table(["SECRET", "TO", "METHODS", "IN", "PLACEHOLDER"], &rows, terminal)
}

fn print_table<const COLUMNS: usize>(
    titles: [&str; COLUMNS],
    rows: &[[String; COLUMNS]],
    terminal: &mut Terminal,
) -> anyhow::Result<()> {
    for (at, line) in table(titles, rows).iter().enumerate() {
        let tone = if at == 0 { Tone::Strong } else { Tone::Plain };
        terminal.say(&terminal.tone(tone, line))?;
    }
    Ok(())
}
