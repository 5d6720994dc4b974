//! HTTP by hand, for tests that control which bytes are written when: a request in pieces, two requests in
//! one write, a client that disconnects before the reply.

use std::io;
use std::path::Path;

use serde_json::Value;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::UnixStream;

/// The bytes of a request that keeps the connection open.
pub fn request(method: &str, path: &str, body: &[u8]) -> Vec<u8> {
    let length = body.len();
    let mut bytes = format!(
        "{method} {path} HTTP/1.1\r\nhost: node\r\ncontent-type: application/json\r\n\
         content-length: {length}\r\n\r\n"
    )
    .into_bytes();
    bytes.extend_from_slice(body);
    bytes
}

/// A connection to a node's socket.
#[derive(Debug)]
pub struct RawHttp {
    stream: BufReader<UnixStream>,
}

impl RawHttp {
    pub async fn connect(socket: &Path) -> io::Result<Self> {
        Ok(Self { stream: BufReader::new(UnixStream::connect(socket).await?) })
    }

    /// Writes exactly these bytes.
    pub async fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.stream.get_mut().write_all(bytes).await
    }

    /// The next reply: its status and its JSON. Only for replies with a content-length.
    pub async fn answer(&mut self) -> io::Result<(u16, Value)> {
        let broken = |what: String| io::Error::new(io::ErrorKind::InvalidData, what);
        let status = self.line().await?;
        let code = status.split(' ').nth(1).and_then(|code| code.parse().ok());
        let code = code.ok_or_else(|| broken(format!("no status: {status:?}")))?;
        let mut length = None;
        loop {
            let line = self.line().await?;
            if line.is_empty() {
                break;
            }
            if let Some((name, value)) = line.split_once(':')
                && name.eq_ignore_ascii_case("content-length")
            {
                length = value.trim().parse().ok();
            }
        }
        let length = length.ok_or_else(|| broken("a reply without content-length".to_owned()))?;
        let mut body = vec![0; length];
        self.stream.read_exact(&mut body).await?;
        Ok((code, serde_json::from_slice(&body).map_err(io::Error::other)?))
    }

    async fn line(&mut self) -> io::Result<String> {
        let mut line = String::new();
        if self.stream.read_line(&mut line).await? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        Ok(line.trim_end_matches(['\r', '\n']).to_owned())
    }
}
