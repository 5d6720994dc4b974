//! `windlass up`: sees that a node runs, and that it listens where it is to.

use std::ffi::OsString;
use std::net::SocketAddr;
use std::process::ExitCode;

use windlass_protocol::limits::DEADLINE_MS_MAX;

use crate::duration::Timeout;
use crate::terminal::Terminal;
use crate::{duration, node_access};

/// Start the node, if it does not run yet
///
/// Commands that need the node start it by themselves; this is for scripts that want it up before,
/// and for a node that is to be reached over TCP.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  windlass up
  windlass up --listen 127.0.0.1:8040    also over TCP, for whoever has `windlass token`
  windlass up --session-idle 2h          sessions that nobody uses end after two hours")]
pub struct Args {
    #[command(flatten)]
    pub listen: ListenArgs,
    #[command(flatten)]
    pub defaults: DefaultsArgs,
}

/// What holds for sessions and turns that do not say themselves.
#[derive(Debug, Clone, clap::Args)]
pub struct DefaultsArgs {
    /// End sessions that had no client and no turn for so long, or `never`; default 24h
    #[arg(long, value_name = "DURATION", value_parser = duration::parse_timeout)]
    pub session_idle: Option<Timeout>,
    /// Stop turns that run for so long, at most 7d, or `never`; default 24h
    #[arg(long, value_name = "DURATION", value_parser = parse_deadline)]
    pub deadline: Option<Timeout>,
}

impl DefaultsArgs {
    /// The same, for `windlass node`.
    pub fn of_node(&self) -> Vec<OsString> {
        let named = [("--session-idle", self.session_idle), ("--deadline", self.deadline)];
        let said = named.into_iter().filter_map(|(name, value)| Some((name, value?)));
        said.flat_map(|(name, value)| [OsString::from(name), value.to_string().into()]).collect()
    }
}

/// A deadline that a turn may have.
fn parse_deadline(text: &str) -> Result<Timeout, String> {
    let deadline = duration::parse_timeout(text).map_err(|error| error.to_string())?;
    match deadline.duration() {
        Some(longest) if duration::millis(longest) > DEADLINE_MS_MAX => {
            Err("a deadline is at most 7d".to_owned())
        }
        _ => Ok(deadline),
    }
}

/// Where the node's TCP door is to be.
#[derive(Debug, Clone, clap::Args)]
pub struct ListenArgs {
    /// Serve over TCP too, for whoever has the token
    #[arg(long, value_name = "ADDRESS:PORT")]
    pub listen: Option<SocketAddr>,
    /// Let ADDRESS be one that other machines can reach; what is said there is not encrypted
    #[arg(long, requires = "listen")]
    pub listen_anywhere: bool,
}

impl ListenArgs {
    /// The same, for `windlass node`.
    pub fn of_node(&self) -> Vec<OsString> {
        let mut args = Vec::new();
        if let Some(address) = self.listen {
            args.push("--listen".into());
            args.push(address.to_string().into());
        }
        if self.listen_anywhere {
            args.push("--listen-anywhere".into());
        }
        args
    }
}

pub async fn run(args: Args, terminal: &mut Terminal) -> anyhow::Result<ExitCode> {
    let defaults = args.defaults.of_node();
    if !defaults.is_empty()
        && let Some(client) = node_access::present().await?
    {
        let pid = client.node_status().await?.pid;
        anyhow::bail!(
            "node {pid} runs already, with the defaults that it was started with: stop it with \
             `windlass down --keep-sessions`, then try again"
        );
    }
    let client = node_access::started_with([args.listen.of_node(), defaults].concat()).await?;
    let status = client.node_status().await?;
    let wanted = args.listen.listen;
    if let Some(wanted) = wanted
        && !is_at(wanted, status.listen.as_deref())
    {
        return Err(not_listening(status.pid, wanted));
    }
    let door = status.listen.map(|address| format!(", at http://{address}")).unwrap_or_default();
    let (pid, version) = (status.pid, status.version);
    terminal.say(&format!("the node is up (pid {pid}, version {version}{door})"))?;
    Ok(ExitCode::SUCCESS)
}

pub fn not_listening(pid: u32, wanted: SocketAddr) -> anyhow::Error {
    anyhow::anyhow!(
        "node {pid} runs already and does not listen at {wanted}: stop it with \
         `windlass down --keep-sessions`, then try again"
    )
}

/// Whether `real` is what `wanted` asks for; port 0 asks for any.
fn is_at(wanted: SocketAddr, real: Option<&str>) -> bool {
    let real: Option<SocketAddr> = real.and_then(|text| text.parse().ok());
    real.is_some_and(|real| {
        real.ip() == wanted.ip() && (wanted.port() == 0 || real.port() == wanted.port())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn port_zero_asks_for_any_port_of_that_address() {
        let at = |wanted: &str, real| is_at(wanted.parse().unwrap(), real);
        assert!(at("127.0.0.1:80", Some("127.0.0.1:80")));
        assert!(at("127.0.0.1:0", Some("127.0.0.1:80")));
        assert!(!at("127.0.0.1:81", Some("127.0.0.1:80")));
        assert!(!at("0.0.0.0:0", Some("127.0.0.1:80")));
        assert!(!at("127.0.0.1:0", None));
    }
}
