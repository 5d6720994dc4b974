//! A fake node of another release: it answers every request with a status.

use std::io;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{UnixListener, UnixStream};
use tokio::task::JoinHandle;

use crate::TestNode;

/// The status of a newer node. It has fields that this client does not know and must ignore.
const STATUS: &str = r#"{"version":"9.9.9","api":"1.7","pid":7,"epoch":1,"started_at_ms":1,
    "sessions":0,"runtime_dir":"/r","state_dir":"/s","news":{"of":"the future"}}"#;

/// Listens on the socket of a [`TestNode`] until it is dropped.
#[derive(Debug)]
pub struct OddNode(JoinHandle<()>);

impl OddNode {
    /// Every reply contains the line `header` with the protocol version.
    pub fn start(node: &TestNode, header: &'static str) -> io::Result<Self> {
        let listener = UnixListener::bind(node.dirs().socket())?;
        Ok(Self(tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                tokio::spawn(answer(stream, header));
            }
        })))
    }
}

impl Drop for OddNode {
    fn drop(&mut self) {
        self.0.abort();
    }
}

async fn answer(mut stream: UnixStream, header: &str) {
    let mut request = Vec::new();
    while !request.ends_with(b"\r\n\r\n") {
        match stream.read_u8().await {
            Ok(byte) => request.push(byte),
            Err(_) => return,
        }
    }
    let answer = format!(
        "HTTP/1.1 200 OK\r\n{header}content-type: application/json\r\n\
         content-length: {}\r\n\r\n{STATUS}",
        STATUS.len()
    );
    let _ = stream.write_all(answer.as_bytes()).await;
}
