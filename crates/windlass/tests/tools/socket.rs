//! A WebSocket by hand, so that a test controls the bytes that a host sends.

use std::path::Path;

use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;
use windlass_client::protocol::frame;
use windlass_testkit::{PATIENCE, within};

pub const TEXT: u8 = 1;
pub const BINARY: u8 = 2;
pub const CLOSE: u8 = 8;
pub const PING: u8 = 9;
pub const PONG: u8 = 10;

/// The FIN bit: the last fragment of a message.
pub const LAST: u8 = 0x80;

/// The host's end of the connection.
pub struct Socket {
    stream: UnixStream,
}

impl Socket {
    /// Attaches with this query.
    pub async fn attach(node: &Path, query: &str) -> Self {
        let (status, socket) = Self::ask(node, query, "upgrade").await;
        assert_eq!(status, 101);
        socket
    }

    /// Requests to attach, and returns the status of the reply.
    pub async fn ask(node: &Path, query: &str, connection: &str) -> (u16, Self) {
        let mut stream = UnixStream::connect(node).await.unwrap();
        let head = format!(
            "GET /v1/tools/host{query} HTTP/1.1\r\nhost: node\r\nconnection: {connection}\r\n\
             upgrade: websocket\r\nsec-websocket-version: 13\r\n\
             sec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
        );
        stream.write_all(head.as_bytes()).await.unwrap();
        let mut answer = Vec::new();
        while !answer.ends_with(b"\r\n\r\n") {
            answer.push(within(PATIENCE, stream.read_u8()).await.unwrap());
        }
        let answer = String::from_utf8(answer).unwrap();
        let status = answer.split(' ').nth(1).unwrap().parse().unwrap();
        if status == 101 {
            // The reply to the key above, from the example in the standard.
            assert!(answer.contains("s3pPLMBiTxaQ9kYGzzhZRbK+xOo="), "{answer}");
        }
        (status, Self { stream })
    }

    /// Sends one complete message of the protocol.
    pub async fn say(&mut self, header: Value, body: &[u8]) {
        let mut bytes = Vec::new();
        frame::encode(&mut bytes, &header, body).unwrap();
        self.send(LAST | BINARY, &bytes).await;
    }

    /// Sends one WebSocket frame. The mask is zero, so it changes nothing.
    pub async fn send(&mut self, first: u8, payload: &[u8]) {
        let mut bytes = head(first, payload.len());
        bytes[1] |= 0x80;
        bytes.extend_from_slice(&[0; 4]);
        bytes.extend_from_slice(payload);
        self.send_bytes(&bytes).await;
    }

    /// Sends these bytes. The node may close before it has read them all.
    pub async fn send_bytes(&mut self, bytes: &[u8]) {
        let _ = within(PATIENCE, self.stream.write_all(bytes)).await;
    }

    /// The next WebSocket frame: its opcode and its payload.
    pub async fn next(&mut self) -> Option<(u8, Vec<u8>)> {
        within(PATIENCE, async {
            let first = self.stream.read_u8().await.ok()?;
            let length = match self.stream.read_u8().await.ok()? {
                126 => u64::from(self.stream.read_u16().await.ok()?),
                127 => self.stream.read_u64().await.ok()?,
                small => u64::from(small),
            };
            let mut payload = vec![0; usize::try_from(length).unwrap()];
            self.stream.read_exact(&mut payload).await.ok()?;
            Some((first & 0x0f, payload))
        })
        .await
    }

    /// The next message of the protocol.
    pub async fn hear(&mut self) -> (Value, Vec<u8>) {
        let (kind, payload) = self.next().await.unwrap();
        assert_eq!(kind, BINARY, "{payload:?}");
        let frame = frame::decode(payload.into()).unwrap();
        (serde_json::from_slice(&frame.header).unwrap(), frame.body.to_vec())
    }

    /// How the node closes the connection, whatever it sends before. `None` without a close frame.
    pub async fn close_code(&mut self) -> Option<u16> {
        loop {
            let (kind, payload) = self.next().await?;
            if kind == CLOSE {
                return Some(u16::from_be_bytes(payload[..2].try_into().unwrap()));
            }
        }
    }

    /// Whether the node still replies.
    pub async fn is_alive(&mut self) -> bool {
        self.send(LAST | PING, b"there?").await;
        while let Some((kind, payload)) = self.next().await {
            if kind == PONG {
                return payload == b"there?";
            }
        }
        false
    }
}

/// The header of a frame, as a server sends it.
pub fn head(first: u8, length: usize) -> Vec<u8> {
    let mut bytes = vec![first];
    match length {
        0..=125 => bytes.push(length as u8),
        126..=0xffff => {
            bytes.push(126);
            bytes.extend_from_slice(&(length as u16).to_be_bytes());
        }
        _ => {
            bytes.push(127);
            bytes.extend_from_slice(&(length as u64).to_be_bytes());
        }
    }
    bytes
}
