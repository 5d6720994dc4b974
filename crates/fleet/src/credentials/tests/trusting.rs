//! Who trusts whom: handshakes between nodes, and the files that are used.

use std::fs::{self, Permissions};
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};

use rustls::pki_types::ServerName;
use time::OffsetDateTime;
use tokio::io::DuplexStream;
use tokio_rustls::{TlsConnector, client, server};
use windlass_protocol::NodeName;

use super::super::{CredentialsError, NODE_VALID_MS, NodeTls, join_connector};
use super::{TestDir, credentials, named, now_ms};

/// A handshake without a network. The server's result counts for the client's certificate.
async fn handshake(
    connector: TlsConnector,
    name: ServerName<'static>,
    server: &NodeTls,
) -> (
    std::io::Result<client::TlsStream<DuplexStream>>,
    std::io::Result<server::TlsStream<DuplexStream>>,
) {
    let (near, far) = tokio::io::duplex(64 * 1024);
    let acceptor = server.acceptor();
    tokio::join!(connector.connect(name, near), acceptor.accept(far))
}

/// The node that the server sees, or its error.
async fn seen(client: &NodeTls, server: &NodeTls) -> Result<Option<NodeName>, String> {
    let name = NodeTls::server_name(&server.node());
    let (near, far) = handshake(client.connector(), name, server).await;
    near.map_err(|error| error.to_string())?;
    let far = far.map_err(|error| error.to_string())?;
    Ok(NodeTls::peer_of(far.get_ref().1))
}

#[tokio::test]
async fn nodes_of_one_fleet_know_each_other_by_name() {
    let dir = TestDir::new();
    let authority = dir.authority("a");
    for (at, name) in ["n2", "N2", "n_2", "n2-"].iter().enumerate() {
        let one = credentials(&authority, &dir.of("a"), "n1");
        let two = credentials(&authority, &dir.of(&format!("b{at}")), name);
        assert_eq!(seen(&two, &one).await, Ok(Some(named(name))));
        assert_eq!(seen(&one, &two).await, Ok(Some(named("n1"))));
    }
}

#[tokio::test]
async fn a_node_of_another_fleet_is_refused_on_both_sides() {
    let dir = TestDir::new();
    let one = credentials(&dir.authority("a"), &dir.of("a"), "n1");
    let other = credentials(&dir.authority("b"), &dir.of("b"), "n1");
    assert!(seen(&other, &one).await.is_err());
    assert!(seen(&one, &other).await.is_err());
    // The client of the other fleet that accepts any server is still refused.
    let name = NodeTls::server_name(&named("n1"));
    let stranger = TlsConnector::from(std::sync::Arc::new(trusting_client(&other, &one)));
    let (_, far) = handshake(stranger, name, &one).await;
    let error = far.unwrap_err().to_string();
    assert!(error.contains("invalid peer certificate"), "{error}");
}

/// A client with the certificate of `own` that trusts the fleet of `server`.
fn trusting_client(own: &NodeTls, server: &NodeTls) -> rustls::ClientConfig {
    let mut config = (**own.connector().config()).clone();
    let trusting = server.connector();
    config.dangerous().set_certificate_verifier(std::sync::Arc::new(AnyServer(
        trusting.config().crypto_provider().clone(),
    )));
    config
}

#[derive(Debug)]
struct AnyServer(std::sync::Arc<rustls::crypto::CryptoProvider>);

impl rustls::client::danger::ServerCertVerifier for AnyServer {
    fn verify_server_cert(
        &self,
        _: &rustls::pki_types::CertificateDer<'_>,
        _: &[rustls::pki_types::CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: rustls::pki_types::UnixTime,
    ) -> Result<rustls::client::danger::ServerCertVerified, rustls::Error> {
        Ok(rustls::client::danger::ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &rustls::pki_types::CertificateDer<'_>,
        _: &rustls::DigitallySignedStruct,
    ) -> Result<rustls::client::danger::HandshakeSignatureValid, rustls::Error> {
        Ok(rustls::client::danger::HandshakeSignatureValid::assertion())
    }

    fn verify_tls13_signature(
        &self,
        _: &[u8],
        _: &rustls::pki_types::CertificateDer<'_>,
        _: &rustls::DigitallySignedStruct,
    ) -> Result<rustls::client::danger::HandshakeSignatureValid, rustls::Error> {
        Ok(rustls::client::danger::HandshakeSignatureValid::assertion())
    }

    fn supported_verify_schemes(&self) -> Vec<rustls::SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}

#[tokio::test]
async fn a_server_knows_how_long_the_certificate_of_a_node_stays_valid() {
    let dir = TestDir::new();
    let authority = dir.authority("a");
    let one = credentials(&authority, &dir.of("a"), "n1");
    let two = credentials(&authority, &dir.of("b"), "n2");
    let (near, far) = handshake(two.connector(), NodeTls::server_name(&named("n1")), &one).await;
    near.unwrap();
    let far = far.unwrap();
    for (before_ms, expected_ms) in [(0, 0), (1_000, 1_000), (NODE_VALID_MS, NODE_VALID_MS)] {
        let now_ms = two.expires_at() - before_ms;
        let left = NodeTls::peer_valid_for(far.get_ref().1, now_ms);
        assert_eq!(left, Some(std::time::Duration::from_millis(expected_ms)));
    }
    let after = NodeTls::peer_valid_for(far.get_ref().1, two.expires_at() + 1);
    assert_eq!(after, Some(std::time::Duration::ZERO));
}

#[tokio::test]
async fn a_server_under_another_name_is_refused() {
    let dir = TestDir::new();
    let authority = dir.authority("a");
    let one = credentials(&authority, &dir.of("a"), "n1");
    let two = credentials(&authority, &dir.of("b"), "n2");
    let (near, _) = handshake(one.connector(), NodeTls::server_name(&named("n3")), &two).await;
    assert!(near.unwrap_err().to_string().contains("not valid for name"));
}

#[tokio::test]
async fn a_machine_that_joins_has_no_name_and_trusts_only_the_authority_of_its_token() {
    let dir = TestDir::new();
    let authority = dir.authority("a");
    let one = credentials(&authority, &dir.of("a"), "n1");
    let name = NodeTls::server_name(&named("n1"));
    let fingerprint = authority.fingerprint();
    let (near, far) = handshake(join_connector(fingerprint), name.clone(), &one).await;
    near.unwrap();
    assert_eq!(NodeTls::peer_of(far.unwrap().get_ref().1), None);

    let other = dir.authority("b");
    let (near, _) = handshake(join_connector(other.fingerprint()), name.clone(), &one).await;
    assert!(near.unwrap_err().to_string().contains("UnknownIssuer"));
    // Another member of the fleet is not the node of the token.
    let two = credentials(&authority, &dir.of("c"), "n2");
    let (near, _) = handshake(join_connector(fingerprint), name, &two).await;
    assert!(near.unwrap_err().to_string().contains("not valid for name"));
}

#[tokio::test]
async fn a_certificate_is_due_in_its_last_third_and_useless_once_it_has_expired() {
    let dir = TestDir::new();
    let authority = dir.authority("a");
    let one = credentials(&authority, &dir.of("a"), "n1");
    let made = one.expires_at() - NODE_VALID_MS;
    assert!(made.abs_diff(now_ms()) < 60_000);
    assert!(!one.is_due(made + NODE_VALID_MS / 2));
    assert!(one.is_due(made + NODE_VALID_MS * 3 / 4));
    assert!(one.is_due(made + NODE_VALID_MS * 2));

    let path = dir.of("b");
    let two = credentials(&authority, &path, "n2");
    let request = two.renewal_request().unwrap();
    let past = OffsetDateTime::now_utc() - time::Duration::days(31);
    let expired = authority.sign_at(&request.csr, &named("n2"), past).unwrap();
    fs::write(path.join("node.pem"), expired).unwrap();
    two.reload().unwrap();
    assert!(two.is_due(now_ms()));
    let name = NodeTls::server_name(&named("n1"));
    let (_, far) = handshake(two.connector(), name, &one).await;
    assert!(far.unwrap_err().to_string().contains("expired"));
    assert!(seen(&one, &two).await.unwrap_err().contains("expired"));
}

#[tokio::test]
async fn a_certificate_of_another_node_or_key_is_not_installed() {
    let dir = TestDir::new();
    let authority = dir.authority("a");
    let one = credentials(&authority, &dir.of("a"), "n1");
    let two = credentials(&authority, &dir.of("b"), "n2");
    let answer = |csr: &str, node| windlass_protocol::enrolment::RenewAnswer {
        version: 1,
        certificate: authority.sign(csr, &named(node)).unwrap(),
    };
    let (own, others) = (one.renewal_request().unwrap(), two.renewal_request().unwrap());
    assert!(one.install(&answer(&own.csr, "n2")).is_err());
    assert!(one.install(&answer(&others.csr, "n1")).is_err());
    let before = fs::read_to_string(dir.of("a").join("node.pem")).unwrap();
    one.install(&answer(&own.csr, "n1")).unwrap();
    assert_ne!(fs::read_to_string(dir.of("a").join("node.pem")).unwrap(), before);
    assert_eq!(seen(&one, &two).await, Ok(Some(named("n1"))));
}

#[test]
fn files_that_others_can_read_are_not_used() {
    let dir = TestDir::new();
    let path = dir.of("a");
    let authority = dir.authority("a");
    credentials(&authority, &path, "n1");
    for entry in fs::read_dir(&path).unwrap() {
        let mode = entry.unwrap().metadata().unwrap().mode();
        assert_eq!(mode & 0o777, 0o600);
    }
    assert_eq!(fs::metadata(&path).unwrap().mode() & 0o777, 0o700);
    let key = path.join("node.key");
    fs::set_permissions(&key, Permissions::from_mode(0o640)).unwrap();
    let error = NodeTls::load(&path).unwrap_err();
    assert!(matches!(error, CredentialsError::OpenToOthers { mode: 0o640, .. }), "{error}");
    fs::set_permissions(&key, Permissions::from_mode(0o600)).unwrap();
    fs::set_permissions(path.join("authority.key"), Permissions::from_mode(0o604)).unwrap();
    let error = super::super::FleetAuthority::open(&path).unwrap_err();
    assert!(matches!(error, CredentialsError::OpenToOthers { mode: 0o604, .. }), "{error}");
    fs::set_permissions(&path, Permissions::from_mode(0o750)).unwrap();
    let error = NodeTls::load(&path).unwrap_err();
    assert!(matches!(error, CredentialsError::OpenToOthers { mode: 0o750, .. }), "{error}");
}

#[test]
fn credentials_that_are_missing_or_do_not_fit_are_refused() {
    let dir = TestDir::new();
    assert!(matches!(NodeTls::load(&dir.of("x")), Err(CredentialsError::Absent { .. })));
    let authority = dir.authority("a");
    credentials(&authority, &dir.of("a"), "n1");
    credentials(&authority, &dir.of("b"), "n1");
    let other = dir.authority("c");
    for (from, file) in [("b", "node.key"), ("c", "fleet-ca.pem")] {
        let kept = fs::read(dir.of("a").join(file)).unwrap();
        fs::write(dir.of("a").join(file), fs::read(dir.of(from).join(file)).unwrap()).unwrap();
        let error = NodeTls::load(&dir.of("a")).unwrap_err();
        assert!(matches!(error, CredentialsError::Certificate(_)), "{file}: {error}");
        fs::write(dir.of("a").join(file), kept).unwrap();
    }
    fs::write(dir.of("a").join("authority.pem"), other.certificate()).unwrap();
    assert!(super::super::FleetAuthority::open(&dir.of("a")).is_err());
}

#[test]
fn no_key_is_shown() {
    let dir = TestDir::new();
    let authority = dir.authority("a");
    let tls = credentials(&authority, &dir.of("a"), "n1");
    let files = authority.issue_own(&named("n1")).unwrap();
    let shown = format!("{tls:?} {authority:?} {files:?}");
    assert!(shown.contains("n1"), "{shown}");
    for file in ["node.key", "authority.key"] {
        let key = fs::read_to_string(dir.of("a").join(file)).unwrap();
        assert!(key.starts_with("-----BEGIN PRIVATE KEY-----"));
        for line in key.lines().filter(|line| !line.starts_with('-')) {
            assert!(!shown.contains(line), "{shown}");
        }
    }
    assert!(!shown.contains("PRIVATE") && !shown.contains("48, 129"), "{shown}");
}
