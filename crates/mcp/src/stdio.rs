//! The bridge: the door on standard input and output. It ends as soon as its client closes its end.
//! Running turns continue.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use rmcp::ServiceExt;
use rmcp::service::ServerInitializeError;
use rmcp::transport::io::stdio_pipes;
use tokio::io::{AsyncRead, ReadBuf};

use crate::door::Door;

/// Why a bridge ended with an error.
#[derive(Debug, thiserror::Error)]
pub enum BridgeError {
    #[error("the client did not open an MCP session: {0}")]
    Begin(String),
    #[error("the bridge broke: {0}")]
    Broken(String),
}

/// Serves the client on standard input and output until the client closes it.
pub async fn serve_stdio(door: Door) -> Result<(), BridgeError> {
    let (input, output) = stdio_pipes();
    let input = DoorInput { input, door: door.clone() };
    let running = match door.serve((input, output)).await {
        Ok(running) => running,
        // A client may leave before it sends anything; that is no error.
        Err(ServerInitializeError::ConnectionClosed(_)) => return Ok(()),
        Err(error) => return Err(BridgeError::Begin(error.to_string())),
    };
    let ended = running.waiting().await.map_err(|error| BridgeError::Broken(error.to_string()));
    ended.map(drop)
}

/// Standard input that tells the door first when the client has closed it.
struct DoorInput<R> {
    input: R,
    door: Door,
}

impl<R: AsyncRead + Unpin> AsyncRead for DoorInput<R> {
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
