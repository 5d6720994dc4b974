//! Connections to other nodes: HTTP/1.1 over TLS, where both sides have a certificate of the fleet. Idle ones are kept.

use std::collections::{HashMap, VecDeque};
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use axum::body::Body;
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use rustix::net::sockopt;
use tokio::net::TcpStream;
use windlass_fleet::credentials::NodeTls;
use windlass_protocol::NodeName;

/// Maximum number of idle connections that are kept: to one node, and to all.
const IDLE_OF_NODE_MAX: usize = 32;
const IDLE_MAX: usize = 1_024;

/// How long a connection to another node may take.
const CONNECT_WAIT: Duration = Duration::from_secs(2);

/// A machine that is gone sends nothing. After this time without a byte the kernel asks for a sign of life, so often, and
/// then ends the connection. A node that is only stopped still gives the sign.
const QUIET_MAX: Duration = Duration::from_secs(10);
const PROBE_INTERVAL: Duration = Duration::from_secs(5);
const PROBES: u32 = 4;

/// How long sent bytes may stay without an acknowledgement, in milliseconds. Without a limit, the kernel sends them again
/// for a quarter of an hour.
const UNACKNOWLEDGED_MS_MAX: u32 = 120_000;

/// One connection, which takes one request at a time.
pub(super) type PeerSender = http1::SendRequest<Body>;

/// See the module documentation.
#[derive(Debug, Clone)]
pub(super) struct PeerConnections(Arc<PeerPool>);

#[derive(Debug)]
struct PeerPool {
    tls: NodeTls,
    idle: Mutex<IdleConnections>,
}

#[derive(Debug, Default)]
struct IdleConnections {
    by_node: HashMap<NodeName, VecDeque<PeerSender>>,
    count: usize,
}

impl PeerConnections {
    pub fn new(tls: NodeTls) -> Self {
        Self(Arc::new(PeerPool { tls, idle: Mutex::default() }))
    }

    /// When this node's certificate expires.
    pub fn certificate_expires_at_ms(&self) -> u64 {
        self.0.tls.expires_at()
    }

    fn idle(&self) -> MutexGuard<'_, IdleConnections> {
        self.0.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The connection that was used last, if one is open.
    pub fn take(&self, node: &NodeName) -> Option<PeerSender> {
        let mut idle = self.idle();
        let IdleConnections { by_node, count } = &mut *idle;
        let all = by_node.get_mut(node)?;
        while let Some(sender) = all.pop_back() {
            *count -= 1;
            if sender.is_ready() {
                return Some(sender);
            }
        }
        by_node.remove(node);
        None
    }

    /// Keeps a connection whose last answer was read whole.
    pub fn put(&self, node: NodeName, sender: PeerSender) {
        if sender.is_closed() {
            return;
        }
        let mut idle = self.idle();
        let IdleConnections { by_node, count } = &mut *idle;
        if *count >= IDLE_MAX {
            return;
        }
        let all = by_node.entry(node).or_default();
        if all.len() < IDLE_OF_NODE_MAX {
            all.push_back(sender);
            *count += 1;
        }
    }

    /// Closes the idle connections to a node that does not answer.
    pub fn forget(&self, node: &NodeName) {
        let mut idle = self.idle();
        let all = idle.by_node.remove(node).unwrap_or_default();
        idle.count -= all.len();
    }

    /// Connects to a node. Another node at its address is refused.
    pub async fn open(&self, node: &NodeName, address: &str) -> io::Result<PeerSender> {
        let connector = self.0.tls.connector();
        let connecting = async {
            let stream = TcpStream::connect(address).await?;
            stream.set_nodelay(true)?;
            end_when_gone(&stream)?;
            connector.connect(NodeTls::server_name(node), stream).await
        };
        let stream = tokio::time::timeout(CONNECT_WAIT, connecting).await??;
        let (sender, connection) =
            http1::handshake(TokioIo::new(stream)).await.map_err(io::Error::other)?;
        let node = node.clone();
        tokio::spawn(async move {
            if let Err(error) = connection.with_upgrades().await {
                tracing::debug!(%node, %error, "a connection to another node ended");
            }
        });
        Ok(sender)
    }
}

/// Has the kernel end the connection when the other machine is gone: a client that waits for an answer would never know.
fn end_when_gone(stream: &TcpStream) -> io::Result<()> {
    sockopt::set_socket_keepalive(stream, true)?;
    sockopt::set_tcp_keepidle(stream, QUIET_MAX)?;
    sockopt::set_tcp_keepintvl(stream, PROBE_INTERVAL)?;
    sockopt::set_tcp_keepcnt(stream, PROBES)?;
    Ok(sockopt::set_tcp_user_timeout(stream, UNACKNOWLEDGED_MS_MAX)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn the_kernel_ends_a_connection_whose_other_machine_is_gone() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let stream = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        end_when_gone(&stream).unwrap();
        assert!(sockopt::socket_keepalive(&stream).unwrap());
        assert_eq!(sockopt::tcp_keepidle(&stream).unwrap(), QUIET_MAX);
        assert_eq!(sockopt::tcp_keepintvl(&stream).unwrap(), PROBE_INTERVAL);
        assert_eq!(sockopt::tcp_keepcnt(&stream).unwrap(), PROBES);
        assert_eq!(sockopt::tcp_user_timeout(&stream).unwrap(), UNACKNOWLEDGED_MS_MAX);
    }
}
