//! The TCP door with TLS, at a real node: who is served, what a client costs that does not finish its handshake, and
//! certificates that are renewed.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::fs;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::version::{TLS12, TLS13};
use rustls::{ClientConfig, RootCertStore, SupportedProtocolVersion};
use tempfile::TempDir;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use windlass_client::Token;
use windlass_testkit::{PATIENCE, TestCertificates, TestNode, within};

const PROGRAM: &str = env!("CARGO_BIN_EXE_windlass");

/// The name in the door's certificates.
const NAME: &str = "door.test";

/// The node's time limit of a handshake and the first request together.
const HEAD_WAIT: Duration = Duration::from_secs(10);

/// The begin of a handshake: the head of a record whose content does not follow.
const HALF_A_HANDSHAKE: [u8; 6] = [0x16, 3, 1, 2, 0, 1];

/// A node whose TCP door has a certificate.
struct EncryptedNode {
    node: TestNode,
    address: String,
    token: String,
    files: TestCertificates,
    // The last field: the node uses the files in it.
    _directory: TempDir,
}

impl EncryptedNode {
    async fn start() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let files = certificates(directory.path());
        let node = TestNode::builder(PROGRAM)
            .arg("--listen")
            .arg("127.0.0.1:0")
            .arg("--tls-certificate")
            .arg(&files.certificate)
            .arg("--tls-key")
            .arg(&files.key);
        let node = node.start().await.unwrap();
        let status = node.client().await.unwrap().node_status().await.unwrap();
        assert!(status.listen_tls);
        let address = status.listen.unwrap();
        let token = Token::read(&node.dirs().token()).unwrap().as_str().to_owned();
        Self { node, address, token, files, _directory: directory }
    }

    async fn connect(&self, by: &TlsConnector) -> io::Result<TlsStream<TcpStream>> {
        let stream = TcpStream::connect(&self.address).await?;
        within(PATIENCE, by.connect(ServerName::try_from(NAME).unwrap(), stream)).await
    }

    /// The whole reply to a request on a new connection.
    async fn get(&self, by: &TlsConnector, path: &str, token: &str) -> String {
        let mut stream = self.connect(by).await.unwrap();
        stream.write_all(self.request(path, token).as_bytes()).await.unwrap();
        let mut answer = String::new();
        within(PATIENCE, stream.read_to_string(&mut answer)).await.unwrap();
        answer
    }

    fn request(&self, path: &str, token: &str) -> String {
        format!(
            "GET {path} HTTP/1.1\r\nhost: {}\r\nauthorization: Bearer {token}\r\nconnection: close\r\n\r\n",
            self.address
        )
    }

    async fn is_served(&self, by: &TlsConnector) {
        let answer = self.get(by, "/v1/health", &self.token).await;
        assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
    }
}

/// New files of a certificate, whose key only this user can read.
fn certificates(directory: &Path) -> TestCertificates {
    let files = TestCertificates::make(directory, &[NAME]).unwrap();
    fs::set_permissions(&files.key, fs::Permissions::from_mode(0o600)).unwrap();
    files
}

/// A client that trusts only this authority.
fn trusting(authority: &Path, versions: &[&'static SupportedProtocolVersion]) -> TlsConnector {
    let authority = CertificateDer::from_pem_slice(&fs::read(authority).unwrap()).unwrap();
    let mut roots = RootCertStore::empty();
    roots.add(authority).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(versions)
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    Arc::new(config).into()
}

/// How long the node takes to close a connection at which the client sends nothing more.
async fn time_until_closed(mut stream: impl AsyncRead + Unpin, began: Instant) -> Duration {
    let mut rest = Vec::new();
    // The node may end the connection with or without a last message.
    let _ = within(HEAD_WAIT + PATIENCE, stream.read_to_end(&mut rest)).await;
    assert!(!rest.starts_with(b"HTTP/"), "an answer without a request");
    began.elapsed()
}

/// Why a node does not start with these files as its certificate and its key.
async fn refusal(files: &[&Path], config: &str) -> String {
    let mut node = TestNode::builder(PROGRAM).arg("--listen").arg("127.0.0.1:0").config(config);
    for (option, file) in ["--tls-certificate", "--tls-key"].into_iter().zip(files) {
        node = node.arg(option).arg(*file);
    }
    format!("{:#}", node.start().await.unwrap_err())
}

#[tokio::test]
async fn clients_with_the_token_are_served_over_both_versions_of_tls() {
    let door = EncryptedNode::start().await;
    for version in [&TLS12, &TLS13] {
        let by = trusting(&door.files.authority, &[version]);
        door.is_served(&by).await;
        let long = door.get(&by, "/v1/openapi.json", &door.token).await;
        let (head, body) = long.split_once("\r\n\r\n").unwrap();
        assert!(head.starts_with("HTTP/1.1 200 ") && body.len() > 64 * 1024, "{head}");
        serde_json::from_str::<serde_json::Value>(body).unwrap();
        for token in ["", &"0".repeat(door.token.len()), &door.token[1..]] {
            let answer = door.get(&by, "/v1/health", token).await;
            assert!(answer.starts_with("HTTP/1.1 401 "), "{answer}");
        }
    }
    let other = tempfile::tempdir().unwrap();
    let by = trusting(&certificates(other.path()).authority, &[&TLS13]);
    assert!(door.connect(&by).await.is_err());
}

#[tokio::test]
async fn an_unencrypted_request_is_refused_and_its_token_is_not_used() {
    let door = EncryptedNode::start().await;
    let mut stream = TcpStream::connect(&door.address).await.unwrap();
    stream.write_all(door.request("/v1/health", &door.token).as_bytes()).await.unwrap();
    let mut answer = String::new();
    within(PATIENCE, stream.read_to_string(&mut answer)).await.unwrap();
    assert!(answer.starts_with("HTTP/1.1 400 "), "{answer}");
    assert!(answer.contains("https://"), "{answer}");
    door.is_served(&trusting(&door.files.authority, &[&TLS13])).await;
}

#[tokio::test]
async fn half_a_handshake_and_a_missing_request_hold_up_nobody_and_end_in_time() {
    let door = EncryptedNode::start().await;
    let by = trusting(&door.files.authority, &[&TLS13]);
    let began = Instant::now();
    let mut half = TcpStream::connect(&door.address).await.unwrap();
    half.write_all(&HALF_A_HANDSHAKE).await.unwrap();
    let silent = door.connect(&by).await.unwrap();
    let half = tokio::spawn(time_until_closed(half, began));
    let silent = tokio::spawn(time_until_closed(silent, began));
    for _ in 0..20 {
        door.is_served(&by).await;
    }
    assert!(!half.is_finished() && !silent.is_finished(), "closed after {:?}", began.elapsed());
    for closed in [half.await.unwrap(), silent.await.unwrap()] {
        assert!(closed >= HEAD_WAIT, "closed after {closed:?}");
    }
    door.is_served(&by).await;
}

#[tokio::test]
async fn a_renewed_certificate_is_used_without_a_restart_and_a_broken_one_is_not() {
    let door = EncryptedNode::start().await;
    let before = trusting(&door.files.authority, &[&TLS13]);
    let pid = door.node.pid();
    door.is_served(&before).await;

    let directory = tempfile::tempdir().unwrap();
    let renewed = certificates(directory.path());
    let after = trusting(&renewed.authority, &[&TLS13]);
    // One file after the other, as programs do that renew certificates.
    fs::copy(&renewed.certificate, &door.files.certificate).unwrap();
    fs::copy(&renewed.key, &door.files.key).unwrap();
    let until = Instant::now() + PATIENCE;
    while door.connect(&after).await.is_err() {
        assert!(Instant::now() < until, "the new certificate is not used");
    }
    door.is_served(&after).await;
    assert!(door.connect(&before).await.is_err());

    fs::write(&door.files.certificate, "broken").unwrap();
    let log = door.node.dirs().state.join("node.log");
    let warned = || fs::read_to_string(&log).unwrap().contains("keeps the certificate that it has");
    while !warned() {
        assert!(Instant::now() < until + PATIENCE, "the node does not warn");
        door.is_served(&after).await;
    }
    door.is_served(&after).await;
    assert_eq!(door.node.pid(), pid);
}

#[tokio::test]
async fn a_node_does_not_start_with_a_door_that_it_cannot_encrypt() {
    let directory = tempfile::tempdir().unwrap();
    let files = certificates(directory.path());
    let refused = refusal(&[&files.certificate], "").await;
    assert!(refused.contains("--tls-key"), "{refused}");
    let refused = refusal(&[&files.authority, &files.key], "").await;
    assert!(refused.contains("cannot be used with the key"), "{refused}");
    let config = format!("[node]\ntls_certificate = {:?}\n", files.certificate);
    let refused = refusal(&[], &config).await;
    assert!(refused.contains("`tls_key` is not"), "{refused}");
    fs::set_permissions(&files.key, fs::Permissions::from_mode(0o644)).unwrap();
    let refused = refusal(&[&files.certificate, &files.key], "").await;
    assert!(refused.contains("can be read by others"), "{refused}");
}
