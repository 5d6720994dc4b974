//! SOCKS5, as far as a client needs it to connect to a host by name: no authentication, no BIND,
//! no UDP.

use std::io;
use std::net::{Ipv4Addr, Ipv6Addr};

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

use super::reach::{Door, NotReached, Upstream};

/// The first byte of every SOCKS5 message.
pub(super) const VERSION: u8 = 5;

const NO_AUTHENTICATION: u8 = 0;
const NO_METHOD: u8 = 0xff;
const CONNECT: u8 = 1;
const IPV4: u8 = 1;
const NAME: u8 = 3;
const IPV6: u8 = 4;

/// What a client is told.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Reply {
    Granted = 0,
    NotAllowed = 2,
    HostUnreachable = 4,
    ConnectionRefused = 5,
    TimedOut = 6,
    NoSuchCommand = 7,
    NoSuchAddressType = 8,
}

/// What a client asks for: a host and port, or what it must be told instead.
type Asked = Result<(String, u16), Reply>;

/// Reads the request whole. `None` when the client cannot go on without authentication.
async fn read_request(
    client: &mut (impl AsyncRead + AsyncWrite + Unpin),
) -> io::Result<Option<Asked>> {
    let [version, count] = read(client).await?;
    let mut methods = vec![0; usize::from(count)];
    client.read_exact(&mut methods).await?;
    if version != VERSION || !methods.contains(&NO_AUTHENTICATION) {
        client.write_all(&[VERSION, NO_METHOD]).await?;
        return Ok(None);
    }
    client.write_all(&[VERSION, NO_AUTHENTICATION]).await?;
    let [version, command, _, kind] = read(client).await?;
    if version != VERSION {
        return Err(io::ErrorKind::InvalidData.into());
    }
    let host = match kind {
        IPV4 => Ipv4Addr::from(read::<4>(client).await?).to_string(),
        IPV6 => Ipv6Addr::from(read::<16>(client).await?).to_string(),
        NAME => {
            let [length] = read(client).await?;
            let mut name = vec![0; usize::from(length)];
            client.read_exact(&mut name).await?;
            String::from_utf8_lossy(&name).into_owned()
        }
        _ => return Ok(Some(Err(Reply::NoSuchAddressType))),
    };
    let port = u16::from_be_bytes(read(client).await?);
    if command != CONNECT {
        return Ok(Some(Err(Reply::NoSuchCommand)));
    }
    Ok(Some(Ok((host, port))))
}

/// Serves a client's request up to the point from which bytes are passed on. `None` when it was
/// refused.
pub(super) async fn serve(
    client: &mut (impl AsyncRead + AsyncWrite + Unpin),
    door: &Door,
) -> io::Result<Option<Upstream>> {
    let asked = match tokio::time::timeout(door.times.head, read_request(client)).await {
        Ok(asked) => asked?,
        Err(_) => return Ok(None),
    };
    let (reply, upstream) = match asked {
        None => return Ok(None),
        Some(Err(reply)) => (reply, None),
        Some(Ok((host, port))) => match door.reach(&host, port).await {
            Ok(upstream) => (Reply::Granted, Some(upstream)),
            Err(why) => (reply_to(why), None),
        },
    };
    // From which address the connection goes out is nobody's business inside.
    client.write_all(&[VERSION, reply as u8, 0, IPV4, 0, 0, 0, 0, 0, 0]).await?;
    Ok(upstream)
}

fn reply_to(why: NotReached) -> Reply {
    match why {
        NotReached::Refused(_) => Reply::NotAllowed,
        NotReached::Unknown => Reply::HostUnreachable,
        NotReached::TooSlow => Reply::TimedOut,
        NotReached::Unreachable => Reply::ConnectionRefused,
    }
}

async fn read<const N: usize>(client: &mut (impl AsyncRead + Unpin)) -> io::Result<[u8; N]> {
    let mut bytes = [0; N];
    client.read_exact(&mut bytes).await?;
    Ok(bytes)
}
