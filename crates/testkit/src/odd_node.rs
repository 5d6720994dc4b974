//! A node of another release, as far as its first answer shows.

use std::io;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{UnixListener, UnixStream};
use tokio::task::JoinHandle;

use crate::TestNode;

/// Fields that a newer node may say and this client does not know are no obstacle.
const STATUS: &str = r#"{"version":"9.9.9","api":"1.7","pid":7,"epoch":1,"started_at_ms":1,
    "sessions":0,"runtime_dir":"/r","state_dir":"/s","news":{"of":"the future"}}"#;

/// Listens where the node of a place would, until it is dropped.
#[derive(Debug)]
pub struct OddNode(JoinHandle<()>);

impl OddNode {
    /// Every answer has the line `header`, which says the version that it speaks.
    pub fn start(place: &TestNode, header: &'static str) -> io::Result<Self> {
        let listener = UnixListener::bind(place.dirs().socket())?;
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
    let mut heard = Vec::new();
    while !heard.ends_with(b"\r\n\r\n") {
        match stream.read_u8().await {
            Ok(byte) => heard.push(byte),
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
