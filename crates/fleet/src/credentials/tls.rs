//! TLS between the nodes of a fleet: TLS 1.3 only, and both sides trust only the fleet's authority.
//!
//! Connections are never resumed: a resumed one would not check the certificate of the other side again. Nodes keep
//! their connections, so a handshake is rare.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{Resumption, WebPkiServerVerifier};
use rustls::crypto::{CryptoProvider, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::server::{NoServerSessionStorage, WebPkiClientVerifier};
use rustls::version::TLS13;
use rustls::{
    CertificateError, ClientConfig, DigitallySignedStruct, RootCertStore, ServerConfig,
    ServerConnection, SignatureScheme,
};
use tokio_rustls::{TlsAcceptor, TlsConnector};
use windlass_protocol::NodeName;
use windlass_protocol::enrolment::{ENROLMENT, RenewAnswer, RenewRequest};

use super::certificate::CertificateFacts;
use super::error::CredentialsError;
use super::names;
use super::node_files::NodeCredentialFiles;
use super::random::{Fingerprint, sha256};

/// What connections between nodes carry.
const HTTP_1: &[u8] = b"http/1.1";

/// The credentials of this node, ready for connections. Clones share them.
#[derive(Clone)]
pub struct NodeTls {
    shared: Arc<SharedTls>,
}

struct SharedTls {
    dir: PathBuf,
    node: NodeName,
    current: RwLock<Arc<LoadedTls>>,
}

/// What follows from one state of the files.
struct LoadedTls {
    facts: CertificateFacts,
    files: NodeCredentialFiles,
    acceptor: TlsAcceptor,
    connector: TlsConnector,
}

impl NodeTls {
    /// Reads the credentials in the directory. A certificate that has expired is read too; no connection accepts it.
    pub fn load(dir: &Path) -> Result<Self, CredentialsError> {
        let loaded = LoadedTls::of(NodeCredentialFiles::read(dir)?)?;
        let node = loaded.facts.node.clone();
        let current = RwLock::new(Arc::new(loaded));
        Ok(Self { shared: Arc::new(SharedTls { dir: dir.to_owned(), node, current }) })
    }

    /// Reads the files again. Only new connections use them.
    pub fn reload(&self) -> Result<(), CredentialsError> {
        let loaded = LoadedTls::of(NodeCredentialFiles::read(&self.shared.dir)?)?;
        self.check_node(&loaded.facts)?;
        let mut current = self.shared.current.write().unwrap_or_else(PoisonError::into_inner);
        *current = Arc::new(loaded);
        Ok(())
    }

    /// The node that the certificate names.
    pub fn node(&self) -> NodeName {
        self.shared.node.clone()
    }

    /// When the certificate expires, in milliseconds since 1970.
    pub fn expires_at(&self) -> u64 {
        self.current().facts.expires_at_ms
    }

    /// Whether the certificate should be renewed: less than a third of its life is left.
    pub fn is_due(&self, now_ms: u64) -> bool {
        let CertificateFacts { valid_from_ms, expires_at_ms, .. } = self.current().facts;
        let life_ms = expires_at_ms.saturating_sub(valid_from_ms);
        expires_at_ms.saturating_sub(now_ms).saturating_mul(3) < life_ms
    }

    /// For the side that listens. A client may have no certificate; one that is not of the fleet, or has expired, is
    /// refused.
    pub fn acceptor(&self) -> TlsAcceptor {
        self.current().acceptor.clone()
    }

    /// For the side that connects, with the name of [`NodeTls::server_name`].
    pub fn connector(&self) -> TlsConnector {
        self.current().connector.clone()
    }

    /// The name that the certificate of a node must have.
    pub fn server_name(node: &NodeName) -> ServerName<'static> {
        names::server_name(node)
    }

    /// The node on the other side, after the handshake. `None`: it has no certificate.
    pub fn peer_of(connection: &ServerConnection) -> Option<NodeName> {
        let certificate = connection.peer_certificates()?.first()?;
        CertificateFacts::read(certificate).map(|facts| facts.node)
    }

    /// How long the certificate of the other side stays valid. `None`: it has no certificate.
    pub fn peer_valid_for(connection: &ServerConnection, now_ms: u64) -> Option<Duration> {
        let certificate = connection.peer_certificates()?.first()?;
        let expires_at_ms = CertificateFacts::read(certificate)?.expires_at_ms;
        Some(Duration::from_millis(expires_at_ms.saturating_sub(now_ms)))
    }

    /// The request for the next certificate. It has the same key, so that a new certificate is one file that is
    /// replaced in one step.
    pub fn renewal_request(&self) -> Result<RenewRequest, CredentialsError> {
        let csr = self.current().files.request()?;
        Ok(RenewRequest { version: ENROLMENT, csr })
    }

    /// Checks the certificate of the answer, stores it, and uses it for new connections.
    pub fn install(&self, answer: &RenewAnswer) -> Result<(), CredentialsError> {
        let files = self.current().files.with_certificate(answer.certificate.clone());
        let loaded = LoadedTls::of(files)?;
        self.check_node(&loaded.facts)?;
        loaded.files.write_certificate(&self.shared.dir)?;
        self.reload()
    }

    fn current(&self) -> Arc<LoadedTls> {
        self.shared.current.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn check_node(&self, facts: &CertificateFacts) -> Result<(), CredentialsError> {
        let node = &self.shared.node;
        if facts.node == *node {
            return Ok(());
        }
        let problem = format!("it names the node {} and this node is {node}", facts.node);
        Err(CredentialsError::Certificate(problem))
    }
}

impl fmt::Debug for NodeTls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NodeTls")
            .field("node", &self.shared.node)
            .field("dir", &self.shared.dir)
            .field("expires_at", &self.expires_at())
            .finish_non_exhaustive()
    }
}

impl LoadedTls {
    fn of(files: NodeCredentialFiles) -> Result<Self, CredentialsError> {
        let (ca, certificate) = (der_of(&files.ca)?, der_of(&files.certificate)?);
        let facts = CertificateFacts::read(&certificate)
            .ok_or_else(|| bad("it does not name exactly one node"))?;
        let mut roots = RootCertStore::empty();
        roots.add(ca.clone()).map_err(bad)?;
        let roots = Arc::new(roots);
        check_signed(&certificate, &facts, &roots)?;
        let key = files.private_key()?;
        let acceptor = server_config(vec![certificate.clone(), ca], key.clone_key(), &roots)?;
        let connector = client_config(vec![certificate], key, &roots)?;
        Ok(Self { facts, files, acceptor, connector })
    }
}

/// Checks that the files belong together: the certificate is the node's, of this authority, and has this key.
pub(super) fn check_files(
    files: &NodeCredentialFiles,
    node: &NodeName,
) -> Result<(), CredentialsError> {
    let loaded = LoadedTls::of(files.clone())?;
    if loaded.facts.node == *node {
        return Ok(());
    }
    Err(bad(format!("it names the node {} instead of {node}", loaded.facts.node)))
}

/// The first certificate of a PEM text.
pub(super) fn der_of(pem: &str) -> Result<CertificateDer<'static>, CredentialsError> {
    let read = CertificateDer::from_pem_slice(pem.as_bytes());
    read.map_err(|error| bad(format!("it is not PEM: {error}")))
}

pub(super) fn provider() -> Arc<CryptoProvider> {
    Arc::new(rustls::crypto::ring::default_provider())
}

/// For a machine that joins: it has no certificate, and trusts only a server whose chain leads to the authority with
/// this fingerprint. The server sends the authority's certificate.
pub fn join_connector(ca: Fingerprint) -> TlsConnector {
    let verifier = Arc::new(PinnedAuthority { ca, provider: provider() });
    let mut config = ClientConfig::builder_with_provider(provider())
        .with_protocol_versions(&[&TLS13])
        .expect("ring has cipher suites of TLS 1.3")
        .dangerous()
        .with_custom_certificate_verifier(verifier)
        .with_no_client_auth();
    config.resumption = Resumption::disabled();
    config.alpn_protocols = vec![HTTP_1.to_vec()];
    TlsConnector::from(Arc::new(config))
}

/// Accepts only certificates of the authority with this fingerprint.
#[derive(Debug)]
struct PinnedAuthority {
    ca: Fingerprint,
    provider: Arc<CryptoProvider>,
}

impl ServerCertVerifier for PinnedAuthority {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        let ca = intermediates.iter().find(|certificate| sha256(certificate) == self.ca);
        let ca = ca.ok_or(rustls::Error::InvalidCertificate(CertificateError::UnknownIssuer))?;
        let mut roots = RootCertStore::empty();
        roots.add(ca.clone())?;
        let provider = self.provider.clone();
        let verifier =
            WebPkiServerVerifier::builder_with_provider(Arc::new(roots), provider).build();
        let verifier = verifier.map_err(|error| rustls::Error::General(error.to_string()))?;
        verifier.verify_server_cert(end_entity, &[], server_name, ocsp_response, now)
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let supported = &self.provider.signature_verification_algorithms;
        verify_tls12_signature(message, cert, dss, supported)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let supported = &self.provider.signature_verification_algorithms;
        verify_tls13_signature(message, cert, dss, supported)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}

/// Checks that the authority has signed the certificate. The time is the certificate's first moment, so that one that
/// has expired can still be shown.
fn check_signed(
    certificate: &CertificateDer<'_>,
    facts: &CertificateFacts,
    roots: &Arc<RootCertStore>,
) -> Result<(), CredentialsError> {
    let built = WebPkiServerVerifier::builder_with_provider(roots.clone(), provider()).build();
    let verifier = built.map_err(bad)?;
    let name = names::server_name(&facts.node);
    let time = UnixTime::since_unix_epoch(Duration::from_millis(facts.valid_from_ms));
    verifier.verify_server_cert(certificate, &[], &name, &[], time).map(drop).map_err(bad)
}

fn server_config(
    chain: Vec<CertificateDer<'static>>,
    key: PrivateKeyDer<'static>,
    roots: &Arc<RootCertStore>,
) -> Result<TlsAcceptor, CredentialsError> {
    let clients = WebPkiClientVerifier::builder_with_provider(roots.clone(), provider())
        .allow_unauthenticated()
        .build()
        .map_err(bad)?;
    let mut config = ServerConfig::builder_with_provider(provider())
        .with_protocol_versions(&[&TLS13])
        .map_err(bad)?
        .with_client_cert_verifier(clients)
        .with_single_cert(chain, key)
        .map_err(bad)?;
    config.session_storage = Arc::new(NoServerSessionStorage {});
    config.send_tls13_tickets = 0;
    config.alpn_protocols = vec![HTTP_1.to_vec()];
    Ok(TlsAcceptor::from(Arc::new(config)))
}

fn client_config(
    chain: Vec<CertificateDer<'static>>,
    key: PrivateKeyDer<'static>,
    roots: &Arc<RootCertStore>,
) -> Result<TlsConnector, CredentialsError> {
    let mut config = ClientConfig::builder_with_provider(provider())
        .with_protocol_versions(&[&TLS13])
        .map_err(bad)?
        .with_root_certificates(roots.clone())
        .with_client_auth_cert(chain, key)
        .map_err(bad)?;
    config.resumption = Resumption::disabled();
    config.alpn_protocols = vec![HTTP_1.to_vec()];
    Ok(TlsConnector::from(Arc::new(config)))
}

fn bad(problem: impl fmt::Display) -> CredentialsError {
    CredentialsError::Certificate(problem.to_string())
}
