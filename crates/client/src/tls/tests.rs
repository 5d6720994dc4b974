//! Clients and a node's TLS door, in one process: which certificates are accepted, and what each failure says.

use std::io;
use std::sync::Arc;

use bytes::Bytes;
use futures_util::{SinkExt, StreamExt};
use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair};
use rustls::ServerConfig;
use rustls::pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer};
use tempfile::TempDir;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsAcceptor;
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::tungstenite::protocol::Role;
use windlass_protocol::frame;
use windlass_protocol::host::{Declaration, ToHost};

use super::*;
use crate::address::RemoteNode;
use crate::client::Client;
use crate::dirs::Dirs;
use crate::error::ClientError;
use crate::token::Token;
use crate::tools::{ToolHost, ToolScope};

/// The files of one test, and the directories of its client.
struct TestFiles {
    base: TempDir,
}

impl TestFiles {
    fn new() -> Self {
        Self { base: tempfile::Builder::new().prefix("wl-").tempdir_in("/tmp").unwrap() }
    }

    fn write(&self, name: &str, content: &str) -> PathBuf {
        let path = self.base.path().join(name);
        std::fs::write(&path, content).unwrap();
        path
    }

    /// A client of the node at this URL that trusts the authorities in `ca`, or those of this machine.
    async fn connect(&self, url: &str, ca: Option<&Path>) -> Result<Client, ClientError> {
        let dirs = Dirs::at(self.base.path().join("r"), self.base.path().join("s")).unwrap();
        let mut remote = RemoteNode::new(url, &Token::parse(&"ab".repeat(32)).unwrap()).unwrap();
        if let Some(ca) = ca {
            remote = remote.with_ca(ca.to_owned());
        }
        Client::connect_remote(remote, dirs).await
    }

    /// The failure of the first request.
    async fn refused(&self, url: &str, ca: Option<&Path>) -> ClientError {
        match self.connect(url, ca).await {
            Ok(client) => client.health().await.unwrap_err(),
            Err(error) => error,
        }
    }
}

struct TestAuthority {
    issuer: Issuer<'static, KeyPair>,
    pem: String,
}

impl TestAuthority {
    fn new(name: &str) -> Self {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, name);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let pem = params.self_signed(&key).unwrap().pem();
        Self { issuer: Issuer::new(params, key), pem }
    }

    /// A node's certificate for these names and addresses.
    fn node(&self, names: &[&str]) -> Arc<ServerConfig> {
        self.node_with(names, |_| {})
    }

    fn node_with(
        &self,
        names: &[&str],
        change: impl FnOnce(&mut CertificateParams),
    ) -> Arc<ServerConfig> {
        let key = KeyPair::generate().unwrap();
        let mut params = leaf(names);
        change(&mut params);
        server_config(params.signed_by(&key, &self.issuer).unwrap().der(), &key)
    }
}

fn leaf(names: &[&str]) -> CertificateParams {
    let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
    let mut params = CertificateParams::new(names).unwrap();
    params.distinguished_name.push(DnType::CommonName, "a node");
    params
}

fn server_config(certificate: &CertificateDer<'static>, key: &KeyPair) -> Arc<ServerConfig> {
    let key = PrivateKeyDer::from(PrivatePkcs8KeyDer::from(key.serialize_der()));
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![certificate.clone()], key)
        .unwrap();
    Arc::new(config)
}

/// A stub of a node's TCP door, with or without TLS. Returns its port.
async fn listen(config: Option<Arc<ServerConfig>>) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    tokio::spawn(async move {
        loop {
            let (stream, _) = listener.accept().await.unwrap();
            let config = config.clone();
            // A client that refuses the certificate ends the connection, and reports the error itself.
            tokio::spawn(async move { converse(stream, config).await.unwrap_or(()) });
        }
    });
    port
}

async fn converse(mut stream: TcpStream, config: Option<Arc<ServerConfig>>) -> io::Result<()> {
    match config {
        Some(config) => answer_all(TlsAcceptor::from(config).accept(stream).await?).await,
        None => {
            let read = stream.read(&mut [0; 4096]).await?;
            assert!(read > 0);
            stream.write_all(b"HTTP/1.1 400 Bad Request\r\ncontent-length: 0\r\n\r\n").await
        }
    }
}

/// Answers each request, and upgrades a tool host.
async fn answer_all(mut stream: impl AsyncRead + AsyncWrite + Unpin) -> io::Result<()> {
    let mut head = Vec::new();
    loop {
        if stream.read_buf(&mut head).await? == 0 {
            return Ok(());
        }
        if !head.ends_with(b"\r\n\r\n") {
            continue;
        }
        if head.starts_with(b"GET /v1/tools/host") {
            let upgraded = b"HTTP/1.1 101 Switching Protocols\r\nwindlass-api: 1.0\r\n\
                             connection: upgrade\r\nupgrade: websocket\r\n\r\n";
            stream.write_all(upgraded).await?;
            stream.flush().await?;
            return accept_tools(stream).await;
        }
        head.clear();
        stream
            .write_all(b"HTTP/1.1 200 OK\r\nwindlass-api: 1.0\r\ncontent-length: 2\r\n\r\n{}")
            .await?;
        stream.flush().await?;
    }
}

/// Accepts each declaration of a tool host.
async fn accept_tools(stream: impl AsyncRead + AsyncWrite + Unpin) -> io::Result<()> {
    let mut socket = WebSocketStream::from_raw_socket(stream, Role::Server, None).await;
    while let Some(Ok(message)) = socket.next().await {
        if matches!(message, Message::Binary(_)) {
            let mut accepted = Vec::new();
            frame::encode(&mut accepted, &ToHost::ToolsAccepted { count: 3 }, b"").unwrap();
            let answer = Message::Binary(Bytes::from(accepted));
            socket.send(answer).await.map_err(io::Error::other)?;
        }
    }
    Ok(())
}

#[tokio::test]
async fn a_node_with_a_certificate_of_the_named_authority_is_used() {
    let files = TestFiles::new();
    let authority = TestAuthority::new("authority");
    let ca = files.write("ca.pem", &authority.pem);
    let port = listen(Some(authority.node(&["localhost", "127.0.0.1"]))).await;
    for host in ["localhost", "127.0.0.1"] {
        let client = files.connect(&format!("https://{host}:{port}"), Some(&ca)).await.unwrap();
        for _ in 0..3 {
            client.health().await.unwrap();
        }
    }
}

#[tokio::test]
async fn a_tool_host_attaches_in_tls() {
    let files = TestFiles::new();
    let authority = TestAuthority::new("authority");
    let ca = files.write("ca.pem", &authority.pem);
    let port = listen(Some(authority.node(&["127.0.0.1"]))).await;
    let client = files.connect(&format!("https://127.0.0.1:{port}"), Some(&ca)).await.unwrap();
    let mut host = ToolHost::attach(&client, &ToolScope::Shared).await.unwrap();
    for _ in 0..3 {
        assert_eq!(host.declare(&Declaration::default()).await.unwrap(), 3);
    }
}

#[tokio::test]
async fn a_self_signed_certificate_can_be_trusted_by_itself() {
    let files = TestFiles::new();
    let key = KeyPair::generate().unwrap();
    let certificate = leaf(&["127.0.0.1"]).self_signed(&key).unwrap();
    let ca = files.write("ca.pem", &certificate.pem());
    let port = listen(Some(server_config(certificate.der(), &key))).await;
    let client = files.connect(&format!("https://127.0.0.1:{port}"), Some(&ca)).await.unwrap();
    client.health().await.unwrap();
}

#[tokio::test]
async fn only_the_authorities_of_the_named_file_are_trusted() {
    let files = TestFiles::new();
    let (signer, other) = (TestAuthority::new("signer"), TestAuthority::new("other"));
    let ca = files.write("ca.pem", &other.pem);
    let both = files.write("both.pem", &format!("{}{}", other.pem, signer.pem));
    let url = format!("https://127.0.0.1:{}", listen(Some(signer.node(&["127.0.0.1"]))).await);
    let error = files.refused(&url, Some(&ca)).await;
    assert_eq!(error.code(), "bad_certificate");
    let told = error.to_string();
    assert!(told.contains(&format!("{} (WINDLASS_CA) names", ca.display())), "{told}");
    files.connect(&url, Some(&both)).await.unwrap().health().await.unwrap();
    // Without a file, the authorities of this machine count, which do not know the test's authority.
    let error = files.refused(&url, None).await;
    let ClientError::Tls(cause) = &error else { panic!("{error:?}") };
    let unknown = matches!(cause, TlsError::UnknownAuthority { ca_file: None, .. });
    // A small machine has no authorities at all.
    assert!(unknown || matches!(cause, TlsError::NoRoots { .. }), "{cause:?}");
    assert!(error.remedy().contains("set WINDLASS_CA to a PEM file"), "{}", error.remedy());
}

#[tokio::test]
async fn a_certificate_that_does_not_fit_is_refused_with_its_reason() {
    let files = TestFiles::new();
    let authority = TestAuthority::new("authority");
    let ca = files.write("ca.pem", &authority.pem);
    let expired = authority.node_with(&["127.0.0.1"], |params| {
        params.not_after = rcgen::date_time_ymd(2020, 1, 1);
    });
    let early = authority.node_with(&["127.0.0.1"], |params| {
        params.not_before = rcgen::date_time_ymd(2200, 1, 1);
    });
    for (config, said, remedy) in [
        (expired, "has expired", "renew the certificate"),
        (early, "is not valid yet", "compare the clocks"),
        (
            authority.node(&["node.example"]),
            "is for another name: node.example",
            "subject alternative name",
        ),
    ] {
        let url = format!("https://127.0.0.1:{}", listen(Some(config)).await);
        let error = files.refused(&url, Some(&ca)).await;
        assert_eq!(error.code(), "bad_certificate");
        assert!(error.to_string().contains(said), "{error}");
        assert!(error.remedy().contains(remedy), "{}", error.remedy());
    }
}

#[tokio::test]
async fn an_authority_that_is_its_own_node_is_told_how_to_make_a_certificate() {
    let files = TestFiles::new();
    let key = KeyPair::generate().unwrap();
    let mut params = leaf(&["127.0.0.1"]);
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let certificate = params.self_signed(&key).unwrap();
    let ca = files.write("ca.pem", &certificate.pem());
    let port = listen(Some(server_config(certificate.der(), &key))).await;
    let error = files.refused(&format!("https://127.0.0.1:{port}"), Some(&ca)).await;
    assert!(matches!(error, ClientError::Tls(TlsError::AuthorityAsNode { .. })), "{error:?}");
    assert!(error.remedy().contains("CA:FALSE"), "{}", error.remedy());
}

#[tokio::test]
async fn the_wrong_scheme_is_told_with_the_right_url() {
    let files = TestFiles::new();
    let authority = TestAuthority::new("authority");
    let ca = files.write("ca.pem", &authority.pem);
    let secure = listen(Some(authority.node(&["127.0.0.1"]))).await;
    let plain = listen(None).await;
    for (url, right) in [
        (format!("http://127.0.0.1:{secure}"), format!("https://127.0.0.1:{secure}")),
        (format!("https://127.0.0.1:{plain}"), format!("http://127.0.0.1:{plain}")),
    ] {
        let error = files.refused(&url, Some(&ca)).await;
        assert_eq!(error.code(), "wrong_scheme", "{error:?}");
        assert!(
            error.remedy().contains(&format!("set WINDLASS_URL to {right}")),
            "{}",
            error.remedy()
        );
    }
}

#[tokio::test]
async fn a_file_of_authorities_is_read_whole_or_refused() {
    let files = TestFiles::new();
    let authority = TestAuthority::new("authority");
    let url = format!("https://127.0.0.1:{}", listen(Some(authority.node(&["127.0.0.1"]))).await);
    let broken = authority.pem.replace("-----END", "----END");
    let not_der = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n";
    for (name, content, said) in [
        ("empty.pem", "", "has no certificate"),
        ("text.pem", "secret text\n", "has no certificate"),
        ("broken.pem", &*broken, "is not PEM"),
        ("mixed.pem", &*format!("{}{not_der}", authority.pem), "cannot be used"),
    ] {
        let path = files.write(name, content);
        let error = files.refused(&url, Some(&path)).await;
        assert_eq!(error.code(), "bad_ca", "{name}: {error:?}");
        assert!(error.to_string().contains(said), "{name}: {error}");
        assert!(!format!("{error:?}").contains("secret text"), "{error:?}");
    }
    let missing = files.base.path().join("missing.pem");
    let error = files.refused(&url, Some(&missing)).await;
    assert!(error.code() == "bad_ca" && error.to_string().contains("missing.pem"), "{error}");
}
