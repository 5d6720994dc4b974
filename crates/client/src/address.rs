//! The address of a node: its unix socket or its TCP door. Owns how to connect to it and which
//! headers each request needs there.

use std::fmt;
use std::io;
use std::path::PathBuf;
use std::time::Duration;

use hyper::Uri;
use hyper::header::{AUTHORIZATION, HOST, HeaderMap, HeaderValue, USER_AGENT};
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::door_stream::NodeStream;
use crate::error::ClientError;
use crate::stream::LeanStream;
use crate::tls::{ClientTls, TlsError};
use crate::token::Token;

/// How long a TCP connect may take, and the TLS handshake with it.
const CONNECT_WAIT: Duration = Duration::from_secs(10);

/// A node that is reached over TCP.
#[derive(Debug, Clone)]
pub struct RemoteNode {
    /// Host and port, as in a request's `Host` header.
    authority: String,
    host: HeaderValue,
    authorization: HeaderValue,
    /// `None` if the URL begins with `http://`.
    tls: Option<ClientTls>,
}

impl RemoteNode {
    /// Whether a node can be reached at this URL, as far as its text tells.
    pub fn check_url(url: &str) -> Result<(), ClientError> {
        NodeUrl::parse(url).map(drop).ok_or(ClientError::BadUrl)
    }

    /// Whether anything listens at this URL. Sends nothing, so it needs no token.
    pub async fn check_listens(url: &str) -> Result<(), ClientError> {
        let address = NodeUrl::parse(url).ok_or(ClientError::BadUrl)?.authority;
        let tried = timeout(CONNECT_WAIT, TcpStream::connect(&address)).await;
        let connected = tried.unwrap_or_else(|late| Err(late.into()));
        connected.map(drop).map_err(|cause| ClientError::RemoteUnreachable { address, cause })
    }

    /// Takes a plain URL, for example `http://127.0.0.1:8040` or `https://node.example:8040`. With `https`, the node's
    /// certificate must be from an authority that this machine trusts.
    pub fn new(url: &str, token: &Token) -> Result<Self, ClientError> {
        let NodeUrl { authority, tls } = NodeUrl::parse(url).ok_or(ClientError::BadUrl)?;
        let host = HeaderValue::from_str(&authority).map_err(|_| ClientError::BadUrl)?;
        let mut authorization = HeaderValue::from_str(&format!("Bearer {}", token.as_str()))
            .expect("hexadecimal digits are a valid header value");
        authorization.set_sensitive(true);
        Ok(Self { authority, host, authorization, tls })
    }

    /// The same node, whose certificate must be from an authority in this PEM file and from no other. The file is read
    /// at the first connection. Without TLS it is not read.
    #[must_use]
    pub fn with_ca(mut self, pem_file: PathBuf) -> Self {
        if let Some(tls) = &mut self.tls {
            tls.trust_only(pem_file);
        }
        self
    }

    async fn connect(&self) -> io::Result<NodeStream> {
        let Some(tls) = &self.tls else {
            return Ok(NodeStream::Plain(timeout(CONNECT_WAIT, self.connect_tcp()).await??));
        };
        // In a box: its state is large, and most connections have no TLS.
        Box::pin(self.connect_tls(tls)).await
    }

    async fn connect_tcp(&self) -> io::Result<LeanStream> {
        let stream = TcpStream::connect(&self.authority).await?;
        stream.set_nodelay(true)?;
        LeanStream::new(stream.into_std()?.into())
    }

    async fn connect_tls(&self, tls: &ClientTls) -> io::Result<NodeStream> {
        // The time limit is for the node, so it does not include files of this machine.
        let connector = tls.connector().await?;
        let connecting = async {
            let stream = self.connect_tcp().await?;
            tls.handshake(&connector, stream, &self.authority).await
        };
        Ok(NodeStream::Tls(Box::new(timeout(CONNECT_WAIT, connecting).await??)))
    }
}

/// The parts of a plain URL.
#[derive(Debug)]
struct NodeUrl {
    /// Host and port.
    authority: String,
    /// Present if the scheme is `https`.
    tls: Option<ClientTls>,
}

impl NodeUrl {
    /// The URL is never repeated in an error: it may hold a secret.
    fn parse(url: &str) -> Option<Self> {
        let url: Uri = url.parse().ok()?;
        let authority = url.authority()?;
        let (tls, default_port) = match url.scheme_str()? {
            "http" => (None, 80),
            "https" => (Some(ClientTls::new(authority.host())?), 443),
            _ => return None,
        };
        let plain = matches!(url.path(), "" | "/")
            && url.query().is_none()
            && !authority.as_str().contains('@');
        let port = authority.port_u16().unwrap_or(default_port);
        plain.then(|| Self { authority: format!("{}:{port}", authority.host()), tls })
    }
}

#[derive(Debug, Clone)]
pub(crate) enum NodeAddress {
    Socket(PathBuf),
    Tcp(RemoteNode),
}

impl NodeAddress {
    pub(crate) async fn connect(&self) -> io::Result<NodeStream> {
        match self {
            Self::Socket(path) => LeanStream::connect(path).map(NodeStream::Plain),
            Self::Tcp(remote) => remote.connect().await,
        }
    }

    /// The error of a failed connect.
    pub(crate) fn unreachable(&self, cause: io::Error) -> ClientError {
        let cause = match cause.downcast::<TlsError>() {
            Ok(error) => return error.into(),
            Err(cause) => cause,
        };
        let address = self.to_string();
        match self {
            Self::Socket(_) => ClientError::Unreachable { address, cause },
            Self::Tcp(_) => ClientError::RemoteUnreachable { address, cause },
        }
    }

    /// The error of an answer that is not HTTP, if a node with a certificate may listen there.
    pub(crate) fn not_http(&self) -> Option<TlsError> {
        match self {
            Self::Tcp(RemoteNode { authority, tls: None, .. }) => {
                Some(TlsError::NotHttp { node: authority.clone() })
            }
            Self::Tcp(_) | Self::Socket(_) => None,
        }
    }

    /// Adds the headers that name the node and the client, and authorize the request.
    pub(crate) fn introduce(&self, headers: &mut HeaderMap) {
        const SOCKET_HOST: HeaderValue = HeaderValue::from_static("windlass");
        const CLIENT: HeaderValue =
            HeaderValue::from_static(concat!("windlass/", env!("CARGO_PKG_VERSION")));
        headers.insert(USER_AGENT, CLIENT);
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
            ("http://127.0.0.1:8040", Some(("127.0.0.1:8040", false))),
            ("http://localhost:8040/", Some(("localhost:8040", false))),
            ("http://[::1]:8040", Some(("[::1]:8040", false))),
            ("http://windlass", Some(("windlass:80", false))),
            ("https://127.0.0.1:8040", Some(("127.0.0.1:8040", true))),
            ("https://[::1]:8040/", Some(("[::1]:8040", true))),
            ("https://node.example", Some(("node.example:443", true))),
            ("HTTPS://node.example:80", Some(("node.example:80", true))),
            ("https://localhost:secret@127.0.0.1:8040", None),
            ("https://node.example/v1", None),
            ("https://bad..example", None),
            ("wss://127.0.0.1:8040", None),
            ("http://localhost:secret@127.0.0.1:8040", None),
            ("http://127.0.0.1:8040/v1", None),
            ("http://127.0.0.1:8040/?token=secret", None),
            ("127.0.0.1:8040", None),
            ("", None),
        ] {
            let found = NodeUrl::parse(url).map(|url| (url.authority, url.tls.is_some()));
            let found = found.as_ref().map(|(authority, tls)| (authority.as_str(), *tls));
            assert_eq!(found, expected, "{url}");
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
