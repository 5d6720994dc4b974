//! The address of a node: its unix socket or its TCP door. Owns how to connect to it and which
//! headers each request needs there.

use std::fmt;
use std::io;
use std::path::PathBuf;
use std::time::Duration;

use hyper::Uri;
use hyper::header::{AUTHORIZATION, HOST, HeaderMap, HeaderValue};
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::error::ClientError;
use crate::stream::LeanStream;
use crate::token::Token;

/// How long a TCP connect may take.
const CONNECT_WAIT: Duration = Duration::from_secs(10);

/// A node that is reached over TCP.
#[derive(Debug, Clone)]
pub struct RemoteNode {
    /// Host and port, as in a request's `Host` header.
    authority: String,
    host: HeaderValue,
    authorization: HeaderValue,
}

impl RemoteNode {
    /// Takes a plain URL, for example `http://127.0.0.1:8040`.
    pub fn new(url: &str, token: &Token) -> Result<Self, ClientError> {
        let authority = authority(url).ok_or(ClientError::BadUrl)?;
        let host = HeaderValue::from_str(&authority).map_err(|_| ClientError::BadUrl)?;
        let mut authorization = HeaderValue::from_str(&format!("Bearer {}", token.as_str()))
            .expect("hexadecimal digits are a valid header value");
        authorization.set_sensitive(true);
        Ok(Self { authority, host, authorization })
    }
}

/// `HOST:PORT` of a plain URL. The URL is never repeated in an error: it may hold a secret.
fn authority(url: &str) -> Option<String> {
    let url: Uri = url.parse().ok()?;
    let plain = url.scheme_str() == Some("http") && matches!(url.path(), "" | "/");
    let authority = url.authority()?;
    let wanted = plain && url.query().is_none() && !authority.as_str().contains('@');
    let port = authority.port_u16().unwrap_or(80);
    wanted.then(|| format!("{}:{port}", authority.host()))
}

#[derive(Debug, Clone)]
pub(crate) enum NodeAddress {
    Socket(PathBuf),
    Tcp(RemoteNode),
}

impl NodeAddress {
    pub(crate) async fn connect(&self) -> io::Result<LeanStream> {
        match self {
            Self::Socket(path) => LeanStream::connect(path),
            Self::Tcp(remote) => {
                let connecting = TcpStream::connect(&remote.authority);
                let stream = timeout(CONNECT_WAIT, connecting).await??;
                stream.set_nodelay(true)?;
                LeanStream::new(stream.into_std()?.into())
            }
        }
    }

    /// The error of a failed connect.
    pub(crate) fn unreachable(&self, cause: io::Error) -> ClientError {
        let address = self.to_string();
        match self {
            Self::Socket(_) => ClientError::Unreachable { address, cause },
            Self::Tcp(_) => ClientError::RemoteUnreachable { address, cause },
        }
    }

    /// Adds the headers that name the node and authorize the request.
    pub(crate) fn introduce(&self, headers: &mut HeaderMap) {
        const SOCKET_HOST: HeaderValue = HeaderValue::from_static("windlass");
        match self {
            Self::Socket(_) => {
                headers.insert(HOST, SOCKET_HOST);
            }
            Self::Tcp(remote) => {
                headers.insert(HOST, remote.host.clone());
                headers.insert(AUTHORIZATION, remote.authorization.clone());
            }
        }
    }
}

impl fmt::Display for NodeAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Socket(path) => path.display().fmt(f),
            Self::Tcp(remote) => remote.authority.fmt(f),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_host_and_port_and_nothing_that_could_be_a_secret() {
        for (url, expected) in [
            ("http://127.0.0.1:8040", Some("127.0.0.1:8040")),
            ("http://localhost:8040/", Some("localhost:8040")),
            ("http://[::1]:8040", Some("[::1]:8040")),
            ("http://windlass", Some("windlass:80")),
            ("https://127.0.0.1:8040", None),
            ("http://localhost:secret@127.0.0.1:8040", None),
            ("http://127.0.0.1:8040/v1", None),
            ("http://127.0.0.1:8040/?token=secret", None),
            ("127.0.0.1:8040", None),
            ("", None),
        ] {
            assert_eq!(authority(url).as_deref(), expected, "{url}");
        }
    }

    #[test]
    fn debug_and_errors_of_a_remote_node_do_not_show_its_token() {
        let token = Token::parse(&"ab".repeat(32)).unwrap();
        let remote = RemoteNode::new("http://127.0.0.1:8040", &token).unwrap();
        assert!(!format!("{remote:?}").contains("abab"), "{remote:?}");
        let error = RemoteNode::new("http://localhost:secret@127.0.0.1:8040", &token).unwrap_err();
        assert!(!format!("{error} {error:?}").contains("secret"), "{error:?}");
    }
}
