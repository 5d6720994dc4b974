//! `windlass fleet join`: gets the credentials of a node from the fleet's authority.

use std::io::Read as _;

use anyhow::{Context as _, bail};
use windlass_client::Dirs;
use windlass_fleet::credentials::{AuthoritySite, JoinToken, join};

use super::{SiteArgs, config_edit, present_table, say_restart, store_ca_path};
use crate::config_file;
use crate::fleet_table::{FleetTable, new_settings};
use crate::terminal::Terminal;

/// Maximum number of bytes of a token on standard input.
const INPUT_BYTES_MAX: u64 = 4 * 1024;

/// Join a fleet with this machine's node
///
/// `windlass fleet invite` prints the token on the fleet's first machine. The token holds that machine's address and the
/// fingerprint of the fleet's authority; its node must run. The settings of the fleet come with the answer.
///
/// A node whose certificate has expired joins again under its name, with a token of `windlass fleet invite --node NAME`.
#[derive(Debug, clap::Args)]
pub struct FleetJoinArgs {
    /// The token, or - to read it from standard input, where no other user sees it
    #[arg(value_name = "TOKEN")]
    token: String,
    #[command(flatten)]
    site: SiteArgs,
}

pub async fn run(args: FleetJoinArgs, dirs: &Dirs, terminal: &mut Terminal) -> anyhow::Result<()> {
    let token = JoinToken::parse(&token_text(args.token)?)?;
    let SiteArgs { node, address, listen, store_ca } = args.site;
    let present = present_table()?;
    if let Some(table) = present.as_ref().filter(|table| table.config.node != node) {
        bail!(
            "this node is in a fleet already, as {}; `windlass fleet leave` leaves it",
            table.config.node
        );
    }
    // The token can be used once, so everything that can be wrong here is checked first.
    let store_ca = store_ca.map(|file| store_ca_path(&file)).transpose()?;
    let draft = new_settings(vec!["nats://127.0.0.1".to_owned()], 1, None, None);
    let mut table =
        FleetTable::new(node.clone(), &address, listen, draft).map_err(anyhow::Error::msg)?;
    config_edit::ConfigEdit::with_table(&table)?;
    if let Some(present) = present {
        table.config.credentials = present.config.credentials;
    }
    let dir = table.credentials_in(&dirs.state);

    let (files, answer) = join(&token, &node).await?;
    files.write(&dir)?;
    AuthoritySite::new(token.authority.clone(), token.address.clone()).write(&dir)?;
    let mut table = FleetTable::new(node, &address, listen, answer.settings)
        .map_err(anyhow::Error::msg)
        .context(
            "the settings of the fleet cannot be used; correct [fleet] on the first machine",
        )?;
    table.config.store_ca = store_ca;
    config_edit::ConfigEdit::with_table(&table)?.write()?;
    terminal.say(&format!("joined the fleet as {}", table.config.node))?;
    terminal.note(&format!("credentials: {}", dir.display()))?;
    terminal.note(&format!("configuration: {}", config_file::path().display()))?;
    say_restart(terminal).await
}

fn token_text(given: String) -> anyhow::Result<String> {
    if given != "-" {
        return Ok(given);
    }
    let mut text = String::new();
    std::io::stdin()
        .take(INPUT_BYTES_MAX)
        .read_to_string(&mut text)
        .context("cannot read the token from standard input")?;
    Ok(text)
}
