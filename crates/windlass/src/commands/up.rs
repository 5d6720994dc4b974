//! `windlass up`: sees that a node runs, and that it listens where it is to.

use std::ffi::OsString;
use std::net::SocketAddr;
use std::process::ExitCode;

use crate::node_access;
use crate::terminal::Terminal;

/// Start the node, if it does not run yet
///
/// Commands that need the node start it by themselves; this is for scripts that want it up before,
/// and for a node that is to be reached over TCP.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  windlass up
  windlass up --listen 127.0.0.1:8040    also over TCP, for whoever has `windlass token`")]
pub struct Args {
    #[command(flatten)]
    pub listen: ListenArgs,
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
    let client = node_access::started_with(args.listen.of_node()).await?;
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
