//! One HTTP request on a connection of its own, and its reply as bytes: two nodes can be compared exactly.

use std::collections::BTreeMap;
use std::path::Path;

use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;
use windlass_testkit::{PATIENCE, within};

/// Headers that describe the connection or the moment, not the content.
const OF_CONNECTION: [&str; 5] =
    ["connection", "content-length", "date", "keep-alive", "transfer-encoding"];

/// A request.
#[derive(Debug, Clone, Copy)]
pub struct HttpAsk<'a> {
    pub method: &'a str,
    pub path: &'a str,
    pub accept: &'a str,
    pub body: &'a str,
}

impl<'a> HttpAsk<'a> {
    pub fn get(path: &'a str) -> Self {
        Self { method: "GET", path, accept: "*/*", body: "" }
    }
}

/// A reply, without the headers of its connection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HttpSaid {
    pub status: u16,
    pub headers: BTreeMap<String, String>,
    pub body: Vec<u8>,
}

impl HttpSaid {
    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }

    /// The status, and the code of the error.
    pub fn refusal(&self) -> (u16, String) {
        (self.status, self.json()["code"].as_str().unwrap_or_default().to_owned())
    }
}

/// Sends a request to a node's socket, and reads the reply to its end.
pub async fn ask(socket: &Path, request: HttpAsk<'_>) -> HttpSaid {
    ask_with(socket, request, "").await
}

/// The same with more headers, each of which ends with a line break.
pub async fn ask_with(socket: &Path, request: HttpAsk<'_>, headers: &str) -> HttpSaid {
    let HttpAsk { method, path, accept, body } = request;
    let text = format!(
        "{method} {path} HTTP/1.1\r\nhost: node\r\nconnection: close\r\naccept: {accept}\r\n\
         content-type: application/json\r\n{headers}content-length: {}\r\n\r\n{body}",
        body.len()
    );
    let mut bytes = Vec::new();
    let exchange = async {
        let mut stream = UnixStream::connect(socket).await?;
        stream.write_all(text.as_bytes()).await?;
        stream.read_to_end(&mut bytes).await
    };
    within(PATIENCE, exchange).await.unwrap_or_else(|error| panic!("{method} {path}: {error}"));
    read(&bytes).unwrap_or_else(|| panic!("{method} {path}: {}", String::from_utf8_lossy(&bytes)))
}

fn read(bytes: &[u8]) -> Option<HttpSaid> {
    let end = bytes.windows(4).position(|window| window == b"\r\n\r\n")?;
    let head = std::str::from_utf8(&bytes[..end]).ok()?;
    let status = head.split(' ').nth(1)?.parse().ok()?;
    let headers = head.lines().skip(1).filter_map(|line| line.split_once(':'));
    let mut headers: BTreeMap<String, String> =
        headers.map(|(name, value)| (name.to_lowercase(), value.trim().to_owned())).collect();
    let rest = &bytes[end + 4..];
    let is_chunked = headers.get("transfer-encoding").is_some_and(|coding| coding == "chunked");
    let body = if is_chunked { unchunked(rest)? } else { rest.to_vec() };
    headers.retain(|name, _| !OF_CONNECTION.contains(&name.as_str()));
    Some(HttpSaid { status, headers, body })
}

/// `None` if the last chunk is missing: the reply was cut.
fn unchunked(mut rest: &[u8]) -> Option<Vec<u8>> {
    let mut body = Vec::new();
    loop {
        let end = rest.windows(2).position(|window| window == b"\r\n")?;
        let size = std::str::from_utf8(&rest[..end]).ok()?;
        let size = usize::from_str_radix(size.split(';').next()?.trim(), 16).ok()?;
        if size == 0 {
            return Some(body);
        }
        rest = &rest[end + 2..];
        body.extend_from_slice(rest.get(..size)?);
        rest = rest.get(size + 2..)?;
    }
}
