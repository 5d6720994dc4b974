//! A forwarder between the suites and the node. The suites cannot send a token, so the forwarder adds it to
//! their requests. It handles one request per connection and copies the head line by line, so that a
//! malformed header reaches the node as the suite sent it. Answers are copied byte by byte.

use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};

use serde_json::Value;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::task::{JoinHandle, JoinSet};

use super::fixtures::{NameReplacement, Translator};

const CONNECTIONS_MAX: usize = 64;
const HEAD_BYTES_MAX: u64 = 64 << 10;
const BODY_BYTES_MAX: usize = 1 << 20;

/// Forwards requests until it is dropped.
#[derive(Debug)]
pub struct Forwarder {
    pub address: SocketAddr,
    accepting: JoinHandle<()>,
}

/// The addresses, the token and the translator for all requests.
#[derive(Debug)]
struct ForwardRoute {
    here: SocketAddr,
    node: SocketAddr,
    token: String,
    translator: Mutex<Translator>,
}

impl Forwarder {
    pub async fn start(node: SocketAddr, token: &str, translator: Translator) -> io::Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let address = listener.local_addr()?;
        let translator = Mutex::new(translator);
        let route = ForwardRoute { here: address, node, token: token.to_owned(), translator };
        Ok(Self { address, accepting: tokio::spawn(accept_all(listener, Arc::new(route))) })
    }
}

impl Drop for Forwarder {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

async fn accept_all(listener: TcpListener, route: Arc<ForwardRoute>) {
    let slots = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    // When this task is aborted, the set is dropped and all connections close.
    let mut connections = JoinSet::new();
    loop {
        let Ok(slot) = slots.clone().acquire_owned().await else { return };
        let Ok((stream, _)) = listener.accept().await else { return };
        let route = route.clone();
        connections.spawn(async move {
            // After an error the connection closes, and the suite reports it.
            let _ = forward(stream, &route).await;
            drop(slot);
        });
        while connections.try_join_next().is_some() {}
    }
}

async fn forward(client: TcpStream, route: &ForwardRoute) -> io::Result<()> {
    let mut client = BufReader::new(client);
    let Some(request) = read_request(&mut client).await? else { return Ok(()) };
    let mut node = TcpStream::connect(route.node).await?;
    node.write_all(&request.forwarded_bytes(route)).await?;
    let (mut from_node, _to_node) = node.split();
    let (mut from_client, mut to_client) = tokio::io::split(client);
    let mut nowhere = tokio::io::sink();
    // The exchange ends when the node closes after its answer, or when the client disconnects.
    tokio::select! {
        done = tokio::io::copy(&mut from_node, &mut to_client) => done?,
        done = tokio::io::copy(&mut from_client, &mut nowhere) => done?,
    };
    to_client.shutdown().await
}

/// A request as the suite sent it: the lines of its head, and its body.
#[derive(Debug, PartialEq, Eq)]
struct ForwardedRequest {
    head: Vec<String>,
    body: Vec<u8>,
}

/// Reads the request. `None` if the client closed the connection.
async fn read_request(
    client: &mut (impl AsyncBufReadExt + Unpin),
) -> io::Result<Option<ForwardedRequest>> {
    let broken = |what: &str| io::Error::new(io::ErrorKind::InvalidData, what.to_owned());
    let mut head = Vec::new();
    let mut left = HEAD_BYTES_MAX;
    loop {
        let mut line = String::new();
        let read = (&mut *client).take(left).read_line(&mut line).await?;
        left -= read as u64;
        match line.strip_suffix('\n') {
            None if read == 0 && head.is_empty() => return Ok(None),
            None => return Err(broken("a head that does not end, or is too long")),
            Some(line) => match line.trim_end_matches('\r') {
                "" => break,
                line => head.push(line.to_owned()),
            },
        }
    }
    let mut length = 0;
    for line in &head[1.min(head.len())..] {
        if header(line, "transfer-encoding").is_some() {
            return Err(broken("a body of unknown length"));
        }
        if let Some(value) = header(line, "content-length") {
            length = value.parse().map_err(|_| broken("a content-length that is not a number"))?;
        }
    }
    if length > BODY_BYTES_MAX {
        return Err(broken("a body that is too long"));
    }
    let mut body = vec![0; length];
    client.read_exact(&mut body).await?;
    Ok(Some(ForwardedRequest { head, body }))
}

impl ForwardedRequest {
    /// The bytes for the node: with the token, and with the node's address in place of the forwarder's. Any
    /// other address stays, because the suite tests that the node refuses it.
    fn forwarded_bytes(mut self, route: &ForwardRoute) -> Vec<u8> {
        let renamed = self.translate(route);
        let (here, node) = (route.here.to_string(), route.node.to_string());
        let (here_site, node_site) = (format!("http://{here}"), format!("http://{node}"));
        let mut bytes = Vec::new();
        for line in &self.head {
            let dropped = ["connection", "content-length", "authorization"];
            if dropped.iter().any(|name| header(line, name).is_some()) {
                continue;
            }
            let replaced = match &renamed {
                _ if header(line, "host") == Some(&here) => format!("host: {node}"),
                _ if header(line, "origin") == Some(&here_site) => format!("origin: {node_site}"),
                Some((from, to)) if header(line, "mcp-name") == Some(from.as_str()) => {
                    format!("mcp-name: {to}")
                }
                _ => line.clone(),
            };
            bytes.extend_from_slice(replaced.as_bytes());
            bytes.extend_from_slice(b"\r\n");
        }
        let added = format!(
            "authorization: Bearer {}\r\nconnection: close\r\ncontent-length: {}\r\n\r\n",
            route.token,
            self.body.len()
        );
        bytes.extend_from_slice(added.as_bytes());
        bytes.append(&mut self.body);
        bytes
    }

    fn translate(&mut self, route: &ForwardRoute) -> Option<NameReplacement> {
        let mut message: Value = serde_json::from_slice(&self.body).ok()?;
        let mut translator = route.translator.lock().unwrap_or_else(PoisonError::into_inner);
        let renamed = translator.translate(&mut message)?;
        self.body = message.to_string().into_bytes();
        renamed
    }
}

/// The value of a header line, if the header has this name.
fn header<'l>(line: &'l str, name: &str) -> Option<&'l str> {
    let (said, value) = line.split_once(':')?;
    said.eq_ignore_ascii_case(name).then(|| value.trim())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn block_on<T>(future: impl Future<Output = T>) -> T {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        runtime.unwrap().block_on(future)
    }

    fn route() -> ForwardRoute {
        ForwardRoute {
            here: "127.0.0.1:1".parse().unwrap(),
            node: "127.0.0.1:2".parse().unwrap(),
            token: "secret".to_owned(),
            translator: Mutex::default(),
        }
    }

    fn forwarded_bytes(text: &str) -> String {
        let mut bytes = BufReader::new(text.as_bytes());
        let request = block_on(read_request(&mut bytes)).unwrap().unwrap();
        String::from_utf8(request.forwarded_bytes(&route())).unwrap()
    }

    #[test]
    fn a_request_gets_the_token_and_the_nodes_address_for_ours() {
        let sent = forwarded_bytes(
            "POST /mcp HTTP/1.1\r\nHost: 127.0.0.1:1\r\nOrigin: http://127.0.0.1:1\r\n\
             Mcp-Name:   two  spaces  \r\nContent-Length: 2\r\nConnection: keep-alive\r\n\r\n{}",
        );
        assert_eq!(
            sent,
            "POST /mcp HTTP/1.1\r\nhost: 127.0.0.1:2\r\norigin: http://127.0.0.1:2\r\n\
             Mcp-Name:   two  spaces  \r\nauthorization: Bearer secret\r\nconnection: close\r\n\
             content-length: 2\r\n\r\n{}"
        );
    }

    #[test]
    fn an_address_of_somebody_else_stays_what_it_is() {
        let sent = forwarded_bytes("GET /mcp HTTP/1.1\r\nHost: evil.test\r\nOrigin: null\r\n\r\n");
        assert!(sent.contains("Host: evil.test\r\nOrigin: null\r\n"), "{sent}");
    }

    #[test]
    fn a_call_of_the_suites_tool_is_renamed_in_body_and_head() {
        let body = r#"{"method":"tools/call","params":{"name":"greet","arguments":{"name":"A"}}}"#;
        let sent = forwarded_bytes(&format!(
            "POST /mcp HTTP/1.1\r\nMcp-Name: greet\r\nContent-Length: {}\r\n\r\n{body}",
            body.len()
        ));
        let (head, body) = sent.split_once("\r\n\r\n").unwrap();
        assert!(head.contains("mcp-name: run\r\n"), "{head}");
        assert!(head.contains(&format!("content-length: {}", body.len())), "{head}");
        assert!(body.contains(r#""name":"run""#), "{body}");
    }

    #[test]
    fn a_name_in_the_head_that_is_not_the_bodys_stays_wrong() {
        let body = r#"{"method":"tools/call","params":{"name":"greet","arguments":{"name":"A"}}}"#;
        let sent = forwarded_bytes(&format!(
            "POST /mcp HTTP/1.1\r\nMcp-Name: other\r\nContent-Length: {}\r\n\r\n{body}",
            body.len()
        ));
        assert!(sent.contains("Mcp-Name: other\r\n"), "{sent}");
    }

    #[test]
    fn what_is_too_long_or_of_unknown_length_is_refused() {
        let long_line = format!("GET / HTTP/1.1\r\nx: {}\r\n\r\n", "y".repeat(70_000));
        let long_body = format!("POST / HTTP/1.1\r\nContent-Length: {}\r\n\r\n", (1 << 20) + 1);
        let chunked = "POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n";
        for text in
            [&*long_line, &*long_body, chunked, "GET / HT", "P\r\nContent-Length: x\r\n\r\n"]
        {
            let read = block_on(read_request(&mut BufReader::new(text.as_bytes())));
            assert!(read.is_err(), "{:?}", &text[..20.min(text.len())]);
        }
        assert_eq!(block_on(read_request(&mut BufReader::new(&b""[..]))).unwrap(), None);
    }

    #[test]
    fn an_answer_comes_back_whole_and_a_client_that_leaves_ends_its_request() {
        block_on(async {
            let node = TcpListener::bind("127.0.0.1:0").await.unwrap();
            let forwarder =
                Forwarder::start(node.local_addr().unwrap(), "secret", Translator::default());
            let forwarder = forwarder.await.unwrap();
            let ask = b"GET /mcp HTTP/1.1\r\nHost: x\r\n\r\n";

            let mut client = TcpStream::connect(forwarder.address).await.unwrap();
            client.write_all(ask).await.unwrap();
            let (mut at_node, _) = node.accept().await.unwrap();
            let mut head = [0; 64];
            assert!(at_node.read(&mut head).await.unwrap() > 0);
            at_node.write_all(b"HTTP/1.1 200 OK\r\n\r\nwhole").await.unwrap();
            drop(at_node);
            let mut answer = String::new();
            client.read_to_string(&mut answer).await.unwrap();
            assert_eq!(answer, "HTTP/1.1 200 OK\r\n\r\nwhole");

            let mut client = TcpStream::connect(forwarder.address).await.unwrap();
            client.write_all(ask).await.unwrap();
            let (mut at_node, _) = node.accept().await.unwrap();
            drop(client);
            let mut rest = Vec::new();
            at_node.read_to_end(&mut rest).await.unwrap();
            assert!(rest.starts_with(b"GET /mcp"));
        });
    }
}
