//! One client connection, from its first byte to its end. SOCKS5 and HTTP proxy clients use the same
//! port; the first byte tells which of them it is.

use std::io;
use std::sync::Arc;

use tokio::net::TcpStream;
use tokio::time::timeout;

use super::meter::{Flow, Metered};
use super::reach::SessionEgress;
use super::{socks, tunnel, web};

/// Serves a connection until it closes, passes its idle timeout, or its session ends.
pub async fn serve(client: TcpStream, egress: Arc<SessionEgress>) {
    let Some(_slot) = egress.ledger.connection_slot().await else { return };
    // An optimisation: without it the stream still works.
    let _ = client.set_nodelay(true);
    let flow = Arc::new(Flow::default());
    tokio::select! {
        // An error means that the client closed its connection. It needs no report.
        _ = converse(client, &egress, flow.clone()) => {}
        () = flow.until_idle(egress.timeouts.idle) => {}
        () = egress.ledger.until_over() => {}
    }
}

async fn converse(
    client: TcpStream,
    egress: &Arc<SessionEgress>,
    flow: Arc<Flow>,
) -> io::Result<()> {
    let mut first = [0];
    let Ok(seen) = timeout(egress.timeouts.head, client.peek(&mut first)).await else {
        return Ok(());
    };
    if seen? == 0 {
        return Ok(());
    }
    let mut client = Metered::new(client, flow);
    if first == [socks::VERSION] {
        if let Some(upstream) = socks::serve(&mut client, egress).await? {
            tunnel::run(client, upstream, egress).await;
        }
    } else {
        web::serve_proxy(client, egress).await;
    }
    Ok(())
}
