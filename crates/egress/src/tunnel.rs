//! A tunnel copies bytes between a client and an allowed host. The client's first bytes are held back
//! until they show that they are not for another host. The host's bytes are never held back.

use std::io;
use std::sync::Arc;

use tokio::io::{
    AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, copy_bidirectional_with_sizes,
};
use tokio::time::Instant;

use super::hello::{Candidate, ClientProtocol, detect};
use super::reach::{AddressSource, NotReached, SessionEgress, Upstream};
use super::rules::{RefusalReason, decide};
use super::secrets::termination;
use super::web;

/// Size of the copy buffer in each direction of one tunnel.
const COPY_BYTES: usize = 16 * 1024;

/// Maximum number of a client's first bytes that are inspected. A longer TLS hello or request line is
/// refused.
const HELLO_BYTES_MAX: usize = 32 * 1024;

/// A stream in both directions.
pub(super) trait Duplex: AsyncRead + AsyncWrite + Unpin + Send + 'static {}

impl<S: AsyncRead + AsyncWrite + Unpin + Send + 'static> Duplex for S {}

/// Serves a tunnel until either end closes it.
pub(super) async fn run(
    mut client: impl Duplex,
    mut upstream: Upstream,
    egress: &Arc<SessionEgress>,
) {
    match open(&mut client, &mut upstream, egress).await {
        Ok(Opening::Bytes) => {
            let Upstream { host, port, stream, .. } = upstream;
            tokio::select! {
                () = copy(client, stream) => {}
                () = until_guarded(&host, port, egress) => {}
            }
        }
        Ok(Opening::Http(held)) => web::serve_tunnel(client, held, upstream, egress).await,
        Ok(Opening::EndTls(held)) => {
            if let Some(secrets) = egress.ledger.secrets() {
                termination::serve(client, held, upstream, secrets, egress).await;
            }
        }
        Ok(Opening::Refused { host, why }) => {
            // Inside a tunnel, closing the connection is the only way to signal a refusal.
            egress.ledger.note(&host, upstream.port, Err(NotReached::Refused(why))).await;
        }
        // The end that closed the connection needs no report.
        Ok(Opening::Over) | Err(_) => {}
    }
}

/// Copies both ways until both ends have finished, or one breaks.
pub(super) async fn copy(
    mut client: impl AsyncRead + AsyncWrite + Unpin,
    mut upstream: impl AsyncRead + AsyncWrite + Unpin,
) {
    // Both ends see a broken connection themselves.
    let _ = copy_bidirectional_with_sizes(&mut client, &mut upstream, COPY_BYTES, COPY_BYTES).await;
}

/// What a tunnel carries, as its first bytes show.
enum Opening {
    /// Bytes for this host, or bytes that name no host. All bytes so far were forwarded.
    Bytes,
    /// HTTP. These bytes have arrived, and none was forwarded.
    Http(Vec<u8>),
    /// TLS for a host that a secret rule names. These bytes have arrived, and none was forwarded.
    EndTls(Vec<u8>),
    Refused {
        host: String,
        why: RefusalReason,
    },
    Over,
}

/// A client's first bytes.
#[derive(Default)]
struct FirstBytes {
    held: Vec<u8>,
    /// How many of them were forwarded already, because they stayed undecided for too long.
    forwarded: usize,
    host_spoke: bool,
    until: Option<Instant>,
}

async fn open(
    client: &mut impl Duplex,
    upstream: &mut Upstream,
    egress: &SessionEgress,
) -> io::Result<Opening> {
    let mut first = FirstBytes::default();
    let mut answer = vec![0; COPY_BYTES];
    loop {
        let room = (HELLO_BYTES_MAX - first.held.len()) as u64;
        let until = first.until.filter(|_| first.forwarded == 0);
        tokio::select! {
            read = async { (&mut *client).take(room).read_buf(&mut first.held).await } => {
                if read? == 0 {
                    return first.ended(upstream, egress).await;
                }
                first.until.get_or_insert_with(|| Instant::now() + egress.timeouts.hello);
                if let Some(opening) = first.judge(upstream, egress).await? {
                    return Ok(opening);
                }
            }
            read = upstream.stream.read(&mut answer) => {
                let read = read?;
                if read > 0 && is_guarded(&upstream.host, upstream.port, egress) {
                    // What a host says before the client is not searched for secrets.
                    return Ok(first.refused(upstream, RefusalReason::SecretProtocol));
                }
                if read == 0 {
                    return Ok(Opening::Over);
                }
                first.host_spoke = true;
                client.write_all(&answer[..read]).await?;
                client.flush().await?;
            }
            () = tokio::time::sleep_until(until.unwrap_or_else(Instant::now)), if until.is_some() => {
                match detect(&first.held) {
                    ClientProtocol::Undecided(Candidate::Line)
                        if !is_guarded(&upstream.host, upstream.port, egress) =>
                    {
                        first.forward(upstream).await?;
                    }
                    _ => return Ok(first.refused(upstream, RefusalReason::TlsHello)),
                }
            }
        }
    }
}

impl FirstBytes {
    /// What the bytes so far are; `None` when more bytes are needed to decide.
    async fn judge(
        &mut self,
        upstream: &mut Upstream,
        egress: &SessionEgress,
    ) -> io::Result<Option<Opening>> {
        let full = self.held.len() >= HELLO_BYTES_MAX;
        let refused = match detect(&self.held) {
            ClientProtocol::Undecided(Candidate::Tls) if full => RefusalReason::TlsHello,
            ClientProtocol::Undecided(Candidate::Line) if full => RefusalReason::RequestLine,
            ClientProtocol::Undecided(_) => {
                if self.forwarded > 0 {
                    self.forward(upstream).await?;
                }
                return Ok(None);
            }
            ClientProtocol::Tls { name: Some(name) }
                if !is_for(&name, &upstream.host, upstream.port, egress) =>
            {
                return Ok(Some(Opening::Refused { host: name, why: RefusalReason::TlsName }));
            }
            ClientProtocol::BrokenTls => RefusalReason::TlsHello,
            ClientProtocol::Tls { name } if sends_secrets(name.as_deref(), upstream, egress) => {
                // A hello for another host would let the client name the certificate that is checked.
                if name.is_none_or(|name| name == upstream.host) {
                    return Ok(Some(Opening::EndTls(std::mem::take(&mut self.held))));
                }
                RefusalReason::TlsName
            }
            ClientProtocol::Http if self.forwarded > 0 || self.host_spoke => {
                RefusalReason::RequestLine
            }
            ClientProtocol::Http => return Ok(Some(Opening::Http(std::mem::take(&mut self.held)))),
            ClientProtocol::PlainHttp2 | ClientProtocol::Other
                if is_guarded(&upstream.host, upstream.port, egress) =>
            {
                RefusalReason::SecretProtocol
            }
            ClientProtocol::PlainHttp2 if upstream.source == AddressSource::Dns => {
                RefusalReason::PlainHttp2
            }
            ClientProtocol::Tls { .. } | ClientProtocol::PlainHttp2 | ClientProtocol::Other => {
                self.forward(upstream).await?;
                return Ok(Some(Opening::Bytes));
            }
        };
        Ok(Some(self.refused(upstream, refused)))
    }

    /// Forwards the bytes that were not forwarded yet.
    async fn forward(&mut self, upstream: &mut Upstream) -> io::Result<()> {
        upstream.stream.write_all(&self.held[self.forwarded..]).await?;
        self.forwarded = self.held.len();
        Ok(())
    }

    /// The client has closed its sending side.
    async fn ended(
        &mut self,
        upstream: &mut Upstream,
        egress: &SessionEgress,
    ) -> io::Result<Opening> {
        if is_guarded(&upstream.host, upstream.port, egress) {
            return Ok(self.refused(upstream, RefusalReason::SecretProtocol));
        }
        if detect(&self.held) == ClientProtocol::Undecided(Candidate::Tls) {
            return Ok(self.refused(upstream, RefusalReason::TlsHello));
        }
        self.forward(upstream).await?;
        Ok(Opening::Bytes)
    }

    fn refused(&self, upstream: &Upstream, why: RefusalReason) -> Opening {
        Opening::Refused { host: upstream.host.clone(), why }
    }
}

/// Whether the tunnel's host, or the host of the TLS hello, may know a secret.
fn sends_secrets(name: Option<&str>, upstream: &Upstream, egress: &SessionEgress) -> bool {
    let is_guarded = |host: &str| is_guarded(host, upstream.port, egress);
    is_guarded(&upstream.host) || name.is_some_and(is_guarded)
}

/// Whether a host may know a secret, so that the proxy reads all that the host sends.
pub(super) fn is_guarded(host: &str, port: u16, egress: &SessionEgress) -> bool {
    egress.ledger.secrets().is_some_and(|secrets| secrets.guards(host, port))
}

/// Returns when a change of rules makes the host one that may know a secret.
pub(super) async fn until_guarded(host: &str, port: u16, egress: &SessionEgress) {
    match egress.ledger.secrets() {
        Some(secrets) => secrets.until_guarded(host, port).await,
        None => std::future::pending().await,
    }
}

/// Whether a name that a client requests inside a tunnel is the tunnel's host, or another host that
/// the rules allow.
pub(super) fn is_for(name: &str, host: &str, port: u16, egress: &SessionEgress) -> bool {
    name == host || decide(egress.ledger.rules(), name, port).is_ok()
}
