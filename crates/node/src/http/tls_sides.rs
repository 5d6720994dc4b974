//! The two sides of TLS, for tests.

use std::sync::Arc;

use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer};
use rustls::{ClientConfig, RootCertStore, ServerConfig};
use tokio_rustls::{TlsAcceptor, TlsConnector};

/// The name in the certificate of the server's side.
pub(super) const NAME: &str = "door.test";

/// A server with a self-signed certificate, and a client that trusts it.
pub(super) fn sides() -> (TlsAcceptor, TlsConnector) {
    let made = rcgen::generate_simple_self_signed(vec![NAME.to_owned()])
        .expect("a certificate for a valid name can be made");
    let certificate = CertificateDer::from(made.cert);
    let key = PrivateKeyDer::from(PrivatePkcs8KeyDer::from(made.signing_key.serialize_der()));
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let server = ServerConfig::builder_with_provider(provider.clone())
        .with_safe_default_protocol_versions()
        .expect("the provider has the default versions")
        .with_no_client_auth()
        .with_single_cert(vec![certificate.clone()], key)
        .expect("the key is that of the certificate");
    let mut roots = RootCertStore::empty();
    roots.add(certificate).expect("the certificate is valid");
    let client = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .expect("the provider has the default versions")
        .with_root_certificates(roots)
        .with_no_client_auth();
    (Arc::new(server).into(), Arc::new(client).into())
}
