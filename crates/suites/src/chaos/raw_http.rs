//! A minimal HTTP/1.1 client over the node's socket or its TCP door. It shares no code with the node's own
//! clients. It returns each answer unchanged; other modules decide whether the answer is right.

use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;

use tokio::io::{AsyncBufReadExt, AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, BufReader};
use tokio::net::{TcpStream, UnixStream};

/// The longest line of a head or of a chunk header.
const LINE_BYTES_MAX: u64 = 64 * 1024;

/// The largest body.
const BODY_BYTES_MAX: u64 = 64 * 1024 * 1024;

/// The address of a node's door, with its token if it needs one.
#[derive(Debug, Clone)]
pub enum NodeEndpoint {
    Socket(PathBuf),
    Tcp { address: SocketAddr, token: String },
}

#[derive(Debug, Clone, Default)]
pub struct RawRequest {
    pub method: &'static str,
    pub path: String,
    pub headers: Vec<(&'static str, String)>,
    pub body: Vec<u8>,
}

#[derive(Debug, Clone)]
pub struct RawResponse {
    pub status: u16,
    pub headers: Vec<(String, String)>,
    pub body: Vec<u8>,
}

impl RawResponse {
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(found, _)| found == name).map(|(_, value)| value.as_str())
    }

    /// The status and the beginning of the body, for messages.
    pub fn shown(&self) -> String {
        let end = self.body.len().min(400);
        format!("{} {}", self.status, String::from_utf8_lossy(&self.body[..end]))
    }
}

impl RawRequest {
    pub fn get(path: impl Into<String>) -> Self {
        Self { method: "GET", path: path.into(), ..Self::default() }
    }

    pub fn delete(path: impl Into<String>) -> Self {
        Self { method: "DELETE", path: path.into(), ..Self::default() }
    }

    pub fn post(path: impl Into<String>, body: &serde_json::Value) -> Self {
        let body = if body.is_null() { Vec::new() } else { body.to_string().into_bytes() };
        Self { method: "POST", path: path.into(), body, ..Self::default() }
    }

    pub fn header(mut self, name: &'static str, value: impl Into<String>) -> Self {
        self.headers.push((name, value.into()));
        self
    }

    /// The bytes of the request for `endpoint`.
    pub fn bytes(&self, endpoint: &NodeEndpoint) -> Vec<u8> {
        let mut head = format!("{} {} HTTP/1.1\r\nhost: chaos\r\n", self.method, self.path);
        if let NodeEndpoint::Tcp { address, token } = endpoint {
            head = format!(
                "{} {} HTTP/1.1\r\nhost: {address}\r\nauthorization: Bearer {token}\r\n",
                self.method, self.path
            );
        }
        for (name, value) in &self.headers {
            head.push_str(&format!("{name}: {value}\r\n"));
        }
        if !self.body.is_empty() || self.method == "POST" {
            head.push_str(&format!(
                "content-type: application/json\r\ncontent-length: {}\r\n",
                self.body.len()
            ));
        }
        head.push_str("\r\n");
        let mut bytes = head.into_bytes();
        bytes.extend_from_slice(&self.body);
        bytes
    }
}

trait ByteStream: AsyncRead + AsyncWrite + Unpin + Send + Sync {}
impl<T: AsyncRead + AsyncWrite + Unpin + Send + Sync> ByteStream for T {}

/// A connection to the node.
pub struct RawConnection {
    stream: BufReader<Box<dyn ByteStream>>,
    /// The number of answers that this connection has received.
    pub answered: u64,
}

impl std::fmt::Debug for RawConnection {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RawConnection").field("answered", &self.answered).finish_non_exhaustive()
    }
}

impl RawConnection {
    pub async fn open(endpoint: &NodeEndpoint) -> io::Result<Self> {
        let stream: Box<dyn ByteStream> = match endpoint {
            NodeEndpoint::Socket(path) => Box::new(UnixStream::connect(path).await?),
            NodeEndpoint::Tcp { address, .. } => Box::new(TcpStream::connect(address).await?),
        };
        Ok(Self { stream: BufReader::new(stream), answered: 0 })
    }

    pub async fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.stream.get_mut().write_all(bytes).await
    }

    /// Reads the next complete answer.
    pub async fn answer(&mut self) -> io::Result<RawResponse> {
        let (status, headers) = self.head().await?;
        let find = |name: &str| headers.iter().find(|(found, _)| found == name);
        let body = match find("content-length") {
            Some((_, length)) => {
                let length =
                    length.parse().map_err(|_| broken("a content-length that is not a number"))?;
                self.sized(length).await?
            }
            None if find("transfer-encoding").is_some() => self.chunks().await?,
            None if matches!(status, 204 | 304) => Vec::new(),
            None => self.rest().await?,
        };
        self.answered += 1;
        Ok(RawResponse { status, headers, body })
    }

    pub async fn head(&mut self) -> io::Result<(u16, Vec<(String, String)>)> {
        loop {
            let line = self.line().await?;
            let status = line.split(' ').nth(1).and_then(|code| code.parse().ok());
            let status: u16 = status.ok_or_else(|| broken("an answer without a status code"))?;
            let mut headers = Vec::new();
            loop {
                let line = self.line().await?;
                if line.is_empty() {
                    break;
                }
                if let Some((name, value)) = line.split_once(':') {
                    headers.push((name.to_ascii_lowercase(), value.trim().to_owned()));
                }
            }
            // "100 Continue" comes before the actual answer.
            if status != 100 {
                return Ok((status, headers));
            }
        }
    }

    /// Reads the next chunk of a body. `None` at its end.
    pub async fn chunk(&mut self) -> io::Result<Option<Vec<u8>>> {
        let line = self.line().await?;
        let length =
            u64::from_str_radix(&line, 16).map_err(|_| broken("a chunk without a size"))?;
        let bytes = self.sized(length).await?;
        self.line().await?;
        Ok((length > 0).then_some(bytes))
    }

    /// Reads until the node closes the connection.
    pub async fn rest(&mut self) -> io::Result<Vec<u8>> {
        let mut bytes = Vec::new();
        (&mut self.stream).take(BODY_BYTES_MAX).read_to_end(&mut bytes).await?;
        Ok(bytes)
    }

    async fn chunks(&mut self) -> io::Result<Vec<u8>> {
        let mut body = Vec::new();
        while let Some(chunk) = self.chunk().await? {
            body.extend_from_slice(&chunk);
        }
        Ok(body)
    }

    async fn sized(&mut self, length: u64) -> io::Result<Vec<u8>> {
        if length > BODY_BYTES_MAX {
            return Err(broken("a body that is too long"));
        }
        let mut body = vec![0; usize::try_from(length).map_err(io::Error::other)?];
        self.stream.read_exact(&mut body).await?;
        Ok(body)
    }

    async fn line(&mut self) -> io::Result<String> {
        let mut line = Vec::new();
        if (&mut self.stream).take(LINE_BYTES_MAX).read_until(b'\n', &mut line).await? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        Ok(String::from_utf8_lossy(&line).trim_end_matches(['\r', '\n']).to_owned())
    }
}

fn broken(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_through_the_tcp_door_carries_its_token() {
        let address = "127.0.0.1:8040".parse().unwrap();
        let endpoint = NodeEndpoint::Tcp { address, token: "secret".to_owned() };
        let bytes = RawRequest::post("/v1/x", &serde_json::json!({"a": 1})).bytes(&endpoint);
        let text = String::from_utf8(bytes).unwrap();
        assert!(text.contains("authorization: Bearer secret\r\n"), "{text}");
        assert!(text.ends_with("content-length: 7\r\n\r\n{\"a\":1}"), "{text}");
    }
}
