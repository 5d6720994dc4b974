//! Ends TLS in a tunnel to a host that a secret rule names. The client speaks TLS with the proxy, by a certificate of
//! the node's authority; the proxy speaks TLS with the host, whose certificate it checks. Both sides speak HTTP/1.

use std::sync::Arc;

use rustls::pki_types::ServerName;
use tokio::io::AsyncReadExt;
use tokio::time::timeout;
use tokio_rustls::{TlsAcceptor, TlsConnector};
use windlass_protocol::policy::SecretScheme;

use super::SessionSecrets;
use crate::reach::{NotReached, SessionEgress, Upstream};
use crate::rules::RefusalReason;
use crate::tunnel::Duplex;
use crate::web::{self, TunnelEnd};

/// Serves a tunnel whose client begins TLS. `held` are the client's bytes that were read already.
pub(crate) async fn serve(
    client: impl Duplex,
    held: Vec<u8>,
    upstream: Upstream,
    secrets: &SessionSecrets,
    egress: &Arc<SessionEgress>,
) {
    let Upstream { host, port, stream, .. } = upstream;
    let Some(authority) = secrets.authority() else {
        let why = NotReached::Refused(RefusalReason::NoAuthority);
        egress.ledger.note(&host, port, Err(why)).await;
        return;
    };
    let config = match authority.server_for(&host) {
        Ok(config) => config,
        Err(error) => {
            tracing::error!(host, %error, "cannot make a certificate for a host of a secret rule");
            return;
        }
    };
    let (reader, writer) = tokio::io::split(client);
    let client = tokio::io::join(std::io::Cursor::new(held).chain(reader), writer);
    let accepted = TlsAcceptor::from(config).accept(client);
    // Both handshakes run concurrently, so the first request waits only for the slower one.
    let connected = async {
        let name = ServerName::try_from(host.clone()).map_err(|error| error.to_string())?;
        let connecting = TlsConnector::from(authority.client()).connect(name, stream);
        match timeout(egress.timeouts.hello, connecting).await {
            Ok(connected) => connected.map_err(|error| error.to_string()),
            Err(_) => Err("the TLS handshake takes too long".to_owned()),
        }
    };
    let (accepted, connected) = tokio::join!(timeout(egress.timeouts.hello, accepted), connected);
    // A client that does not trust the authority closes the connection. It reports the error itself.
    let Ok(Ok(client)) = accepted else { return };
    if let Err(why) = &connected {
        tracing::debug!(host, port, why, "no TLS with a host of a secret rule");
        egress.ledger.note(&host, port, Err(NotReached::BadTls)).await;
    }
    let end = TunnelEnd { scheme: SecretScheme::Https, host, port };
    web::serve_requests(client, connected, end, egress).await;
}
