//! A tunnel: bytes between a client and a host that is allowed. The client's first bytes are held
//! until they show that they are not for another host; what the host says is never held.

use std::io;
use std::sync::Arc;

use tokio::io::{
    AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, copy_bidirectional_with_sizes,
};
use tokio::time::Instant;

use super::hello::{Maybe, Seen, look};
use super::reach::{Door, NotReached, Place, Upstream};
use super::rules::{Refused, decide};
use super::web;

/// Bytes on their way in each direction of one tunnel.
const COPY_BYTES: usize = 16 * 1024;

/// A client's first bytes that are looked at. A longer hello or request line is refused.
const HELLO_BYTES_MAX: usize = 32 * 1024;

/// A stream in both directions.
pub(super) trait Duplex: AsyncRead + AsyncWrite + Unpin + Send + 'static {}

impl<S: AsyncRead + AsyncWrite + Unpin + Send + 'static> Duplex for S {}

/// Serves a tunnel until either end has had enough.
pub(super) async fn run(mut client: impl Duplex, mut upstream: Upstream, door: &Arc<Door>) {
    match open(&mut client, &mut upstream, door).await {
        Ok(Opening::Bytes) => copy(client, upstream.stream).await,
        Ok(Opening::Http(held)) => web::serve_tunnel(client, held, upstream, door).await,
        Ok(Opening::Refused { host, why }) => {
            // There is no way to say so in the middle of a tunnel but to close it.
            door.ledger.note(&host, upstream.port, Err(NotReached::Refused(why))).await;
        }
        // Whoever went away knows.
        Ok(Opening::Over) | Err(_) => {}
    }
}

/// Copies both ways until both ends have finished, or one breaks.
pub(super) async fn copy(
    mut client: impl AsyncRead + AsyncWrite + Unpin,
    mut upstream: impl AsyncRead + AsyncWrite + Unpin,
) {
    // A connection that breaks in the middle is the affair of its two ends.
    let _ = copy_bidirectional_with_sizes(&mut client, &mut upstream, COPY_BYTES, COPY_BYTES).await;
}

/// What a tunnel turns out to be.
enum Opening {
    /// Bytes that are for this host, or for none; all that came were passed on.
    Bytes,
    /// HTTP, of which these bytes have come and none was passed on.
    Http(Vec<u8>),
    Refused {
        host: String,
        why: Refused,
    },
    Over,
}

/// A client's first bytes.
#[derive(Default)]
struct First {
    held: Vec<u8>,
    /// So many of them were passed on already: they took too long to become anything.
    passed: usize,
    host_spoke: bool,
    until: Option<Instant>,
}

async fn open(
    client: &mut impl Duplex,
    upstream: &mut Upstream,
    door: &Door,
) -> io::Result<Opening> {
    let mut first = First::default();
    let mut answer = vec![0; COPY_BYTES];
    loop {
        let room = (HELLO_BYTES_MAX - first.held.len()) as u64;
        let until = first.until.filter(|_| first.passed == 0);
        tokio::select! {
            read = async { (&mut *client).take(room).read_buf(&mut first.held).await } => {
                if read? == 0 {
                    return first.ended(upstream).await;
                }
                first.until.get_or_insert_with(|| Instant::now() + door.times.hello);
                if let Some(opening) = first.judge(upstream, door).await? {
                    return Ok(opening);
                }
            }
            read = upstream.stream.read(&mut answer) => {
                let read = read?;
                if read == 0 {
                    return Ok(Opening::Over);
                }
                first.host_spoke = true;
                client.write_all(&answer[..read]).await?;
                client.flush().await?;
            }
            () = tokio::time::sleep_until(until.unwrap_or_else(Instant::now)), if until.is_some() => {
                match look(&first.held) {
                    Seen::Undecided(Maybe::Line) => first.pass(upstream).await?,
                    _ => return Ok(first.refused(upstream, Refused::TlsHello)),
                }
            }
        }
    }
}

impl First {
    /// What the bytes so far are; `None` when only more of them can tell.
    async fn judge(&mut self, upstream: &mut Upstream, door: &Door) -> io::Result<Option<Opening>> {
        let full = self.held.len() >= HELLO_BYTES_MAX;
        let refused = match look(&self.held) {
            Seen::Undecided(Maybe::Tls) if full => Refused::TlsHello,
            Seen::Undecided(Maybe::Line) if full => Refused::RequestLine,
            Seen::Undecided(_) => {
                if self.passed > 0 {
                    self.pass(upstream).await?;
                }
                return Ok(None);
            }
            Seen::Tls { name: Some(name) }
                if !is_for(&name, &upstream.host, upstream.port, door) =>
            {
                return Ok(Some(Opening::Refused { host: name, why: Refused::TlsName }));
            }
            Seen::BrokenTls => Refused::TlsHello,
            Seen::Http if self.passed > 0 || self.host_spoke => Refused::RequestLine,
            Seen::Http => return Ok(Some(Opening::Http(std::mem::take(&mut self.held)))),
            Seen::PlainHttp2 if upstream.place == Place::LookedUp => Refused::PlainHttp2,
            Seen::Tls { .. } | Seen::PlainHttp2 | Seen::Other => {
                self.pass(upstream).await?;
                return Ok(Some(Opening::Bytes));
            }
        };
        Ok(Some(self.refused(upstream, refused)))
    }

    /// Passes on what has not been.
    async fn pass(&mut self, upstream: &mut Upstream) -> io::Result<()> {
        upstream.stream.write_all(&self.held[self.passed..]).await?;
        self.passed = self.held.len();
        Ok(())
    }

    /// The client has said all it will.
    async fn ended(&mut self, upstream: &mut Upstream) -> io::Result<Opening> {
        if look(&self.held) == Seen::Undecided(Maybe::Tls) {
            return Ok(self.refused(upstream, Refused::TlsHello));
        }
        self.pass(upstream).await?;
        Ok(Opening::Bytes)
    }

    fn refused(&self, upstream: &Upstream, why: Refused) -> Opening {
        Opening::Refused { host: upstream.host.clone(), why }
    }
}

/// Whether a name that a client asks for inside a tunnel is the tunnel's host, or one that it could
/// have asked for in the first place.
pub(super) fn is_for(name: &str, host: &str, port: u16, door: &Door) -> bool {
    name == host || decide(door.ledger.rules(), name, port).is_ok()
}
