//! One client's connection, from its first byte to its end: SOCKS5 or an HTTP proxy's client, both
//! at the same port.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use tokio::net::TcpStream;
use tokio::time::timeout;

use super::meter::{Flow, Metered};
use super::reach::Door;
use super::{socks, tunnel, web};

/// How long a client may take.
#[derive(Debug, Clone, Copy)]
pub struct Times {
    /// To say what it wants.
    pub head: Duration,
    /// From the first byte in a tunnel to the end of its hello.
    pub hello: Duration,
    /// To say or be told anything at all.
    pub idle: Duration,
}

impl Times {
    pub const USUAL: Self = Self {
        head: Duration::from_secs(30),
        hello: Duration::from_secs(10),
        idle: Duration::from_secs(10 * 60),
    };
}

/// Serves a connection until it is over, it is silent for too long, or its session has ended.
pub async fn serve(client: TcpStream, door: Arc<Door>) {
    let Some(_place) = door.ledger.connection().await else { return };
    // A setting for speed: where it cannot be had, the stream works all the same.
    let _ = client.set_nodelay(true);
    let flow = Arc::new(Flow::default());
    tokio::select! {
        // A client that breaks off is its own affair.
        _ = converse(client, &door, flow.clone()) => {}
        () = flow.until_idle(door.times.idle) => {}
        () = door.ledger.until_over() => {}
    }
}

async fn converse(client: TcpStream, door: &Arc<Door>, flow: Arc<Flow>) -> io::Result<()> {
    let mut first = [0];
    let Ok(seen) = timeout(door.times.head, client.peek(&mut first)).await else { return Ok(()) };
    if seen? == 0 {
        return Ok(());
    }
    let mut client = Metered::new(client, flow);
    if first == [socks::VERSION] {
        if let Some(upstream) = socks::serve(&mut client, door).await? {
            tunnel::run(client, upstream, door).await;
        }
    } else {
        web::serve_proxy(client, door).await;
    }
    Ok(())
}
