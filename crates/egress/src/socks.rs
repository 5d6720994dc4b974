//! The part of SOCKS5 that a client needs to connect to a host by name: no authentication, no BIND, no
//! UDP.

use std::io;
use std::net::{Ipv4Addr, Ipv6Addr};

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

use super::reach::{NotReached, SessionEgress, Upstream};

/// The first byte of every SOCKS5 message.
pub(super) const VERSION: u8 = 5;

const NO_AUTHENTICATION: u8 = 0;
const NO_METHOD: u8 = 0xff;
const CONNECT: u8 = 1;
const IPV4: u8 = 1;
const NAME: u8 = 3;
const IPV6: u8 = 4;

/// The reply code that a client receives.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum SocksReply {
    Granted = 0,
    NotAllowed = 2,
    HostUnreachable = 4,
    ConnectionRefused = 5,
    TimedOut = 6,
    NoSuchCommand = 7,
    NoSuchAddressType = 8,
}

/// The host and port that a client requests, or the reply to an unsupported request.
type SocksRequest = Result<(String, u16), SocksReply>;

/// Reads the whole request. `None` when the client offers no method without authentication.
async fn read_request(
    client: &mut (impl AsyncRead + AsyncWrite + Unpin),
) -> io::Result<Option<SocksRequest>> {
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
        _ => return Ok(Some(Err(SocksReply::NoSuchAddressType))),
    };
    let port = u16::from_be_bytes(read(client).await?);
    if command != CONNECT {
        return Ok(Some(Err(SocksReply::NoSuchCommand)));
    }
    Ok(Some(Ok((host, port))))
}

/// Answers a client's request and connects to its host. `None` when the request was refused.
pub(super) async fn serve(
    client: &mut (impl AsyncRead + AsyncWrite + Unpin),
    egress: &SessionEgress,
) -> io::Result<Option<Upstream>> {
    let request = match tokio::time::timeout(egress.timeouts.head, read_request(client)).await {
        Ok(request) => request?,
        Err(_) => return Ok(None),
    };
    let (reply, upstream) = match request {
        None => return Ok(None),
        Some(Err(reply)) => (reply, None),
        Some(Ok((host, port))) => match egress.reach(&host, port).await {
            Ok(upstream) => (SocksReply::Granted, Some(upstream)),
            Err(why) => (reply_to(why), None),
        },
    };
    // The reply hides the node's own address from the session: it is always 0.0.0.0:0.
    client.write_all(&[VERSION, reply as u8, 0, IPV4, 0, 0, 0, 0, 0, 0]).await?;
    Ok(upstream)
}

fn reply_to(why: NotReached) -> SocksReply {
    match why {
        NotReached::Refused(_) => SocksReply::NotAllowed,
        NotReached::Unknown => SocksReply::HostUnreachable,
        NotReached::TooSlow => SocksReply::TimedOut,
        NotReached::Unreachable | NotReached::BadTls => SocksReply::ConnectionRefused,
    }
}

async fn read<const N: usize>(client: &mut (impl AsyncRead + Unpin)) -> io::Result<[u8; N]> {
    let mut bytes = [0; N];
    client.read_exact(&mut bytes).await?;
    Ok(bytes)
}
