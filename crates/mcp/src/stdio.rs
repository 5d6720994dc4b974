//! The bridge: the door on standard input and output. It ends when its client closes its end, at
//! once, and leaves turns as they are.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use rmcp::ServiceExt;
use rmcp::service::ServerInitializeError;
use rmcp::transport::io::stdio_pipes;
use tokio::io::{AsyncRead, ReadBuf};

use crate::door::Door;

/// Why a bridge cannot go on.
#[derive(Debug, thiserror::Error)]
pub enum BridgeError {
    #[error("the client did not begin as MCP does: {0}")]
    Begin(String),
    #[error("the bridge broke: {0}")]
    Broken(String),
}

/// Serves the client on standard input and output until it is gone.
pub async fn serve_stdio(door: Door) -> Result<(), BridgeError> {
    let (input, output) = stdio_pipes();
    let input = Leaving { input, door: door.clone() };
    let running = match door.serve((input, output)).await {
        Ok(running) => running,
        // A client that goes before it has said anything had its reasons.
        Err(ServerInitializeError::ConnectionClosed(_)) => return Ok(()),
        Err(error) => return Err(BridgeError::Begin(error.to_string())),
    };
    let ended = running.waiting().await.map_err(|error| BridgeError::Broken(error.to_string()));
    ended.map(drop)
}

/// Input that tells the door when it is over, before anybody else learns of it.
struct Leaving<R> {
    input: R,
    door: Door,
}

impl<R: AsyncRead + Unpin> AsyncRead for Leaving<R> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        let read = Pin::new(&mut self.input).poll_read(cx, buffer);
        if let Poll::Ready(done) = &read
            && (done.is_err() || buffer.filled().len() == before)
        {
            self.door.leave();
        }
        read
    }
}
