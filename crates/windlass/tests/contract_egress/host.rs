//! Hosts on this machine that record what they receive.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

/// The reply of every HTTP host.
pub const WORDS: &str = "words of the host";

/// The reply of a host that was reached.
pub const REACHED: &str = "200 words of the host";

/// A host on this machine that records what it receives.
pub struct Host {
    pub address: SocketAddr,
    seen: Arc<Mutex<Seen>>,
}

#[derive(Debug, Default)]
struct Seen {
    connections: usize,
    heard: Vec<u8>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Manner {
    /// Answers every request with [`WORDS`].
    Web,
    /// Echoes what it receives.
    Echo,
}

impl Host {
    pub async fn new(manner: Manner) -> Self {
        Self::at(Ipv4Addr::LOCALHOST.into(), manner).await
    }

    pub async fn at(address: IpAddr, manner: Manner) -> Self {
        let listener = TcpListener::bind((address, 0)).await.unwrap();
        let address = listener.local_addr().unwrap();
        let seen: Arc<Mutex<Seen>> = Arc::default();
        let host = Self { address, seen: seen.clone() };
        tokio::spawn(async move {
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                seen.lock().unwrap().connections += 1;
                tokio::spawn(behave(stream, manner, seen.clone()));
            }
        });
        host
    }

    pub fn port(&self) -> u16 {
        self.address.port()
    }

    pub fn connections(&self) -> usize {
        self.seen.lock().unwrap().connections
    }

    /// Everything received so far, in lower case.
    pub fn heard(&self) -> String {
        String::from_utf8_lossy(&self.seen.lock().unwrap().heard).to_lowercase()
    }

    pub fn heard_bytes(&self) -> u64 {
        self.seen.lock().unwrap().heard.len() as u64
    }
}

async fn behave(mut stream: TcpStream, manner: Manner, seen: Arc<Mutex<Seen>>) {
    let mut head = Vec::new();
    let mut buffer = [0; 4096];
    let answer = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{WORDS}", WORDS.len());
    while let Ok(read @ 1..) = stream.read(&mut buffer).await {
        let said = &buffer[..read];
        seen.lock().unwrap().heard.extend_from_slice(said);
        head.extend_from_slice(said);
        let answer = match manner {
            Manner::Echo => said,
            Manner::Web if head.ends_with(b"\r\n\r\n") => answer.as_bytes(),
            Manner::Web => continue,
        };
        head.clear();
        if stream.write_all(answer).await.is_err() {
            return;
        }
    }
}
