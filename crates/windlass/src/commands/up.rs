//! `windlass up`: starts the node if it is not running, and checks that it listens on the given address.

use std::ffi::OsString;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;

use windlass_protocol::api::NodeStatus;

use crate::duration::Timeout;
use crate::terminal::Terminal;
use crate::{duration, node_access, settings};

/// Start the node if it is not running
///
/// Commands that need the node start it themselves. Use this command in scripts that need the node earlier,
/// or to make the node listen on TCP.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  windlass up
  windlass up --listen 127.0.0.1:8040    also listen on TCP; clients need `windlass token`
  windlass up --session-idle 2h          end unused sessions after two hours")]
pub struct Args {
    #[command(flatten)]
    pub listen: ListenArgs,
    #[command(flatten)]
    pub defaults: DefaultsArgs,
}

/// Defaults for sessions and turns that set no value of their own.
#[derive(Debug, Clone, clap::Args)]
pub struct DefaultsArgs {
    /// End a session after this long without a client and without a turn, or `never`; default: 24h
    #[arg(long, value_name = "DURATION", value_parser = duration::parse_timeout)]
    pub session_idle: Option<Timeout>,
    /// Stop a turn that runs this long, at most 7d, or `never`; default: 24h
    #[arg(long, value_name = "DURATION", value_parser = settings::deadline)]
    pub deadline: Option<Timeout>,
}

impl DefaultsArgs {
    /// The same options as arguments of `windlass node`.
    pub fn node_args(&self) -> Vec<OsString> {
        let named = [("--session-idle", self.session_idle), ("--deadline", self.deadline)];
        let given = named.into_iter().filter_map(|(name, value)| Some((name, value?)));
        given.flat_map(|(name, value)| [OsString::from(name), value.to_string().into()]).collect()
    }
}

/// The address of the node's TCP door.
#[derive(Debug, Clone, clap::Args)]
pub struct ListenArgs {
    /// Also listen on this TCP address; clients need the token
    #[arg(long, value_name = "ADDRESS:PORT")]
    pub listen: Option<SocketAddr>,
    /// Allow an ADDRESS that other machines can reach; without --tls-certificate the traffic is not encrypted
    #[arg(long, requires = "listen")]
    pub listen_anywhere: bool,
    /// Encrypt TCP with the certificate chain in this PEM file; the node reads a renewed file without a restart
    #[arg(long, value_name = "FILE", requires = "tls_key")]
    pub tls_certificate: Option<PathBuf>,
    /// The PEM file with the private key of the certificate; only you may be able to read it
    #[arg(long, value_name = "FILE", requires = "tls_certificate")]
    pub tls_key: Option<PathBuf>,
}

impl ListenArgs {
    /// The same options as arguments of `windlass node`.
    pub fn node_args(&self) -> Vec<OsString> {
        let mut args = Vec::new();
        if let Some(address) = self.listen {
            args.push("--listen".into());
            args.push(address.to_string().into());
        }
        if self.listen_anywhere {
            args.push("--listen-anywhere".into());
        }
        let files = [("--tls-certificate", &self.tls_certificate), ("--tls-key", &self.tls_key)];
        for (name, file) in files {
            if let Some(file) = file {
                args.push(name.into());
                // The node may be started in another directory.
                args.push(std::path::absolute(file).unwrap_or_else(|_| file.clone()).into());
            }
        }
        args
    }

    /// Whether the TCP door must be encrypted.
    fn has_tls(&self) -> bool {
        self.tls_certificate.is_some()
    }
}

/// The URL of the node's TCP door, if it is open.
pub fn door_url(status: &NodeStatus) -> Option<String> {
    let scheme = if status.listen_tls { "https" } else { "http" };
    status.listen.as_ref().map(|address| format!("{scheme}://{address}"))
}

pub async fn run(args: Args, terminal: &mut Terminal) -> anyhow::Result<ExitCode> {
    let defaults = args.defaults.node_args();
    if !defaults.is_empty()
        && let Some(client) = node_access::connect_if_running().await?
    {
        let pid = client.node_status().await?.pid;
        anyhow::bail!(
            "node {pid} is already running and keeps the defaults it was started with: stop it with \
             `windlass down --keep-sessions`, then try again"
        );
    }
    let client =
        node_access::connect_or_start_with([args.listen.node_args(), defaults].concat()).await?;
    let status = client.node_status().await?;
    let wanted = args.listen.listen;
    if let Some(wanted) = wanted
        && !is_at(wanted, status.listen.as_deref())
    {
        return Err(not_listening(status.pid, wanted));
    }
    if args.listen.has_tls() && !status.listen_tls {
        anyhow::bail!(
            "node {} is already running and its TCP door is not encrypted: stop it with \
             `windlass down --keep-sessions`, then try again with --listen and --tls-certificate",
            status.pid
        );
    }
    let door = door_url(&status).map(|url| format!(", at {url}")).unwrap_or_default();
    let (pid, version) = (status.pid, status.version);
    terminal.say(&format!("the node is up (pid {pid}, version {version}{door})"))?;
    Ok(ExitCode::SUCCESS)
}

pub fn not_listening(pid: u32, wanted: SocketAddr) -> anyhow::Error {
    anyhow::anyhow!(
        "node {pid} is already running and does not listen on {wanted}: stop it with \
         `windlass down --keep-sessions`, then try again"
    )
}

/// Whether the address `real` satisfies `wanted`. Port 0 in `wanted` accepts every port.
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
    fn port_zero_accepts_any_port_of_that_address() {
        let at = |wanted: &str, real| is_at(wanted.parse().unwrap(), real);
        assert!(at("127.0.0.1:80", Some("127.0.0.1:80")));
        assert!(at("127.0.0.1:0", Some("127.0.0.1:80")));
        assert!(!at("127.0.0.1:81", Some("127.0.0.1:80")));
        assert!(!at("0.0.0.0:0", Some("127.0.0.1:80")));
        assert!(!at("127.0.0.1:0", None));
    }
}
