//! Secrets in requests: TLS that the proxy ends, and unencrypted HTTP.

use std::sync::{Arc, Mutex};

use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::client::TlsStream;
use tokio_rustls::{TlsAcceptor, TlsConnector};
use windlass_protocol::policy::{SecretName, SecretRule, SecretRuleSet};

use super::world::{Client, Host, Manner, UNHURRIED, World, within};
use crate::secrets::{Authority, SecretSource, SecretValue, SessionSecrets};

const VALUE: &str = "topsecret-value";
const PLACEHOLDER: &str = "windlass-secret-K-placeholder";

#[derive(Debug)]
struct OneSecret(Arc<SecretValue>);

impl SecretSource for OneSecret {
    fn value(&self, name: &SecretName) -> Option<Arc<SecretValue>> {
        (name.as_str() == "K").then(|| self.0.clone())
    }
}

/// A public authority, the node's authority that trusts it, and a host that speaks TLS.
struct TlsWorld {
    world: World,
    host: Host,
    trusts_node: Arc<ClientConfig>,
}

/// An authority, and its certificate.
fn authority(roots: Vec<CertificateDer<'static>>) -> (Authority, CertificateDer<'static>) {
    let mut certificate = None;
    let key = Authority::new_key().unwrap();
    let made = Authority::with_roots(&key, &mut certificate, roots).unwrap();
    (made, CertificateDer::from_pem_slice(certificate.unwrap().as_bytes()).unwrap())
}

fn of(rules: Vec<SecretRule>) -> SecretRuleSet {
    SecretRuleSet { rules, past: Vec::new() }
}

fn trusting(certificate: CertificateDer<'static>) -> Arc<ClientConfig> {
    let mut roots = RootCertStore::empty();
    roots.add(certificate).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ClientConfig::builder_with_provider(provider);
    let config = builder.with_safe_default_protocol_versions().unwrap();
    Arc::new(config.with_root_certificates(roots).with_no_client_auth())
}

impl TlsWorld {
    /// A host at `api.test` that answers each request with `answer`, in which `{head}` stands for the request's head.
    /// `{}` in a rule stands for the host's port.
    async fn new(rules: &[&str], certified_as: &str, answer: &'static str) -> Self {
        let (public, public_certificate) = authority(Vec::new());
        let config = public.server_for(certified_as).unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let heard = Arc::new(Mutex::new(Vec::new()));
        let (host_heard, connections) = (heard.clone(), Arc::new(Mutex::new(0)));
        tokio::spawn(async move {
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                let (acceptor, heard) = (TlsAcceptor::from(config.clone()), host_heard.clone());
                tokio::spawn(async move {
                    let Ok(mut stream) = acceptor.accept(stream).await else { return };
                    let mut head = Vec::new();
                    let mut buffer = [0; 4096];
                    while let Ok(read @ 1..) = stream.read(&mut buffer).await {
                        heard.lock().unwrap().extend_from_slice(&buffer[..read]);
                        head.extend_from_slice(&buffer[..read]);
                        if head.ends_with(b"\r\n\r\n") {
                            let body = answer.replace("{head}", &String::from_utf8_lossy(&head));
                            head.clear();
                            let (top, body) = body.split_once("\n\n").unwrap();
                            let top = top.replace('\n', "\r\n");
                            let length = body.len();
                            let all = format!("{top}\r\ncontent-length: {length}\r\n\r\n{body}");
                            stream.write_all(all.as_bytes()).await.unwrap();
                        }
                    }
                });
            }
        });
        let host = Host { address, heard, connections };
        let (node, node_certificate) = authority(vec![public_certificate]);
        let port = address.port().to_string();
        let secret_rules =
            rules.iter().map(|rule| SecretRule::parse(&rule.replace("{}", &port)).unwrap());
        let value = Arc::new(SecretValue::new(VALUE.to_owned()).unwrap());
        let secrets = SessionSecrets::new(
            of(secret_rules.collect()),
            Arc::new(OneSecret(value)),
            Some(Arc::new(node)),
        );
        let hosts = ["api.test:{}=127.0.0.1", "evil.test:{}=127.0.0.1"];
        let world =
            World::with_secrets(&hosts, &host, UNHURRIED, &["127.0.0.1"], Some(secrets)).await;
        Self { world, host, trusts_node: trusting(node_certificate) }
    }

    /// TLS through a tunnel to `host`, in which the client asks for `name`.
    async fn tls(&self, host: &str, name: &str) -> std::io::Result<TlsStream<TcpStream>> {
        let Client(stream) = self.world.tunnel(&format!("{host}:{}", self.host.port())).await;
        let name = ServerName::try_from(name.to_owned()).unwrap();
        within(TlsConnector::from(self.trusts_node.clone()).connect(name, stream)).await
    }

    /// The response to a request in TLS.
    async fn request(&self, request: &str) -> String {
        let mut stream = self.tls("api.test", "api.test").await.unwrap();
        ask(&mut stream, request).await
    }
}

/// Sends a request and reads the response, whose head states the length of its body.
async fn ask(stream: &mut (impl AsyncReadExt + AsyncWriteExt + Unpin), request: &str) -> String {
    stream.write_all(request.replace('\n', "\r\n").as_bytes()).await.unwrap();
    let mut all = String::new();
    loop {
        let mut buffer = [0; 4096];
        let read = within(stream.read(&mut buffer)).await.unwrap_or(0);
        if read == 0 {
            return all;
        }
        all.push_str(&String::from_utf8_lossy(&buffer[..read]));
        let Some((head, body)) = all.split_once("\r\n\r\n") else { continue };
        let length = head.lines().find_map(|line| {
            line.to_ascii_lowercase().strip_prefix("content-length: ").map(str::to_owned)
        });
        if length.is_none_or(|length| body.len() >= length.parse().unwrap()) {
            return all;
        }
    }
}

const ECHO: &str = "HTTP/1.1 200 OK\ncontent-type: text/plain\n\n{head}";

#[tokio::test]
async fn a_value_goes_into_tls_and_is_masked_in_what_comes_back() {
    let world = TlsWorld::new(&["K=https://api.test:{}/v1"], "api.test", ECHO).await;
    let mut stream = world.tls("api.test", "api.test").await.unwrap();
    for _ in 0..2 {
        let request =
            format!("GET /v1/x HTTP/1.1\nhost: api.test\nauthorization: Bearer {PLACEHOLDER}\n\n");
        let response = ask(&mut stream, &request).await;
        assert!(response.starts_with("HTTP/1.1 200"), "{response}");
        assert!(response.contains("authorization: Bearer ***************"), "{response}");
        assert!(!response.contains(VALUE), "{response}");
    }
    let heard = world.host.heard();
    assert_eq!(heard.matches(&format!("authorization: Bearer {VALUE}")).count(), 2, "{heard}");
    assert!(!heard.contains(PLACEHOLDER), "{heard}");
}

#[tokio::test]
async fn a_placeholder_in_another_place_is_refused_counted_and_reported() {
    let world = TlsWorld::new(&["K=https://api.test:{}/v1"], "api.test", ECHO).await;
    for request in [
        format!("GET /v1 HTTP/1.1\nhost: api.test\nx-other: {PLACEHOLDER}\n\n"),
        format!("GET /v2 HTTP/1.1\nhost: api.test\nauthorization: Bearer {PLACEHOLDER}\n\n"),
    ] {
        let response = world.request(&request).await;
        assert!(response.starts_with("HTTP/1.1 403"), "{response}");
        assert!(response.contains("policy.secrets"), "{response}");
    }
    let body = format!("{{\"key\": \"{PLACEHOLDER}\"}}");
    let length = body.len();
    let request = format!("POST /v1 HTTP/1.1\nhost: api.test\ncontent-length: {length}\n\n{body}");
    let response = world.request(&request).await;
    assert!(response.starts_with("HTTP/1.1 502"), "{response}");
    let heard = world.host.heard();
    assert!(!heard.contains(PLACEHOLDER), "{heard}");
    let refusals = world.world.refusals();
    assert!(refusals[0].1.contains("placeholder"), "{refusals:?}");
}

#[tokio::test]
async fn a_hello_for_another_host_gets_no_certificate() {
    let world = TlsWorld::new(&["K=https://api.test:{}/"], "api.test", ECHO).await;
    assert!(world.tls("api.test", "evil.test").await.is_err());
    assert!(world.tls("evil.test", "api.test").await.is_err());
    assert_eq!(world.host.heard(), "");
    assert!(world.world.refusals().iter().all(|(_, why)| why.contains("TLS hello")));
}

#[tokio::test]
async fn a_request_for_another_host_in_ended_tls_is_refused() {
    let world = TlsWorld::new(&["K=https://api.test:{}/"], "api.test", ECHO).await;
    let response = world.request("GET / HTTP/1.1\nhost: evil.test\n\n").await;
    assert!(response.starts_with("HTTP/1.1 403"), "{response}");
    assert_eq!(world.host.heard(), "");
}

#[tokio::test]
async fn a_host_with_a_wrong_certificate_never_gets_the_value() {
    let world = TlsWorld::new(&["K=https://api.test:{}/"], "other.test", ECHO).await;
    let response = world.request("GET / HTTP/1.1\nhost: api.test\n\n").await;
    assert!(response.starts_with("HTTP/1.1 502"), "{response}");
    assert!(response.contains("TLS"), "{response}");
    assert_eq!(world.host.heard(), "");
}

#[tokio::test]
async fn a_host_without_a_rule_stays_end_to_end() {
    let world = TlsWorld::new(&["K=https://api.test:{}/"], "evil.test", ECHO).await;
    // The client trusts only the node's authority, and the host's certificate is not from there.
    let error = world.tls("evil.test", "evil.test").await.unwrap_err();
    assert!(error.to_string().contains("invalid peer certificate"), "{error}");
}

#[tokio::test]
async fn a_compressed_response_is_not_passed_on() {
    for header in
        ["content-encoding: gzip", "transfer-encoding: gzip, chunked", "content-range: bytes 0-3/9"]
    {
        let answer: &'static str =
            Box::leak(format!("HTTP/1.1 200 OK\n{header}\n\n{{head}}").into_boxed_str());
        let world = TlsWorld::new(&["K=https://api.test:{}/"], "api.test", answer).await;
        let response =
            world.request("GET / HTTP/1.1\nhost: api.test\naccept-encoding: gzip\n\n").await;
        assert!(response.starts_with("HTTP/1.1 502"), "{header}: {response}");
        assert!(world.host.heard().contains("accept-encoding: identity"), "{header}");
    }
}

#[tokio::test]
async fn a_value_in_the_head_of_a_response_is_masked() {
    let answer = "HTTP/1.1 302 topsecret-value\nlocation: https://evil.test/?k=topsecret-value\n\
                  x-topsecret-value: 1\nset-cookie: a=topsecret-value\nset-cookie: b=1\n\nmoved";
    let world = TlsWorld::new(&["K=https://api.test:{}/"], "api.test", answer).await;
    let response = world.request("GET / HTTP/1.1\nhost: api.test\n\n").await;
    assert!(!response.contains(VALUE), "{response}");
    assert!(response.contains("location: https://evil.test/?k=***************"), "{response}");
    assert!(response.contains("set-cookie: a=***************"), "{response}");
    assert!(response.contains("set-cookie: b=1"), "{response}");
}

#[tokio::test]
async fn smuggled_requests_carry_no_value() {
    let world = TlsWorld::new(&["K=https://api.test:{}/v1"], "api.test", ECHO).await;
    let inner = "GET /v2 HTTP/1.1\r\nhost: api.test\r\nx: y\r\n\r\n";
    for framing in [
        format!("content-length: {}\ntransfer-encoding: chunked", inner.len()),
        "transfer-encoding: chunked\ncontent-length: 4".to_owned(),
        "transfer-encoding: xchunked".to_owned(),
        "content-length: 4\ncontent-length: 5".to_owned(),
    ] {
        let mut stream = world.tls("api.test", "api.test").await.unwrap();
        let request = format!("POST /v1 HTTP/1.1\nhost: api.test\n{framing}\n\n0\n\n{inner}");
        ask(&mut stream, &request).await;
        // The host sees `/v2` only as a request of its own, or not at all.
        let heard = world.host.heard();
        for (at, _) in heard.match_indices("GET /v2") {
            let line = heard[at..].lines().next().unwrap();
            assert_eq!(line, "GET /v2 HTTP/1.1", "{heard}");
            let head = heard[at..].split("\r\n\r\n").next().unwrap();
            assert!(!head.contains(VALUE), "{framing}: {heard}");
        }
    }
}

#[tokio::test]
async fn unencrypted_requests_follow_rules_for_http() {
    let answer = "HTTP/1.1 200 OK\r\ncontent-length: 15\r\n\r\ntopsecret-value";
    let host = Host::new(Manner::Answer(answer)).await;
    let port = host.port();
    let (node, _) = authority(Vec::new());
    let rule = SecretRule::parse(&format!("K=http://api.test:{port}/")).unwrap();
    let value = Arc::new(SecretValue::new(VALUE.to_owned()).unwrap());
    let secrets =
        SessionSecrets::new(of(vec![rule]), Arc::new(OneSecret(value)), Some(Arc::new(node)));
    let hosts = ["api.test:{}=127.0.0.1", "evil.test:{}=127.0.0.1"];
    let world = World::with_secrets(&hosts, &host, UNHURRIED, &["127.0.0.1"], Some(secrets)).await;
    let head = |host: &str, header: &str| {
        format!("GET http://{host}:{port}/ HTTP/1.1\r\nhost: {host}\r\n{header}\r\n")
    };
    let mut client = world.connect().await;
    client.say(head("api.test", "").as_bytes()).await;
    let response = client.answer().await;
    assert!(response.ends_with("***************"), "{response}");
    assert!(host.heard().contains(&format!("authorization: Bearer {VALUE}")), "{}", host.heard());
    // Another host gets neither the value nor the placeholder.
    let mut client = world.connect().await;
    let header = format!("authorization: Bearer {PLACEHOLDER}\r\n");
    client.say(head("evil.test", &header).as_bytes()).await;
    let response = client.answer().await;
    assert!(response.starts_with("HTTP/1.1 403"), "{response}");
    // Nor by a tunnel to it, in which a request names the host of the rule.
    let mut client = world.tunnel(&format!("evil.test:{port}")).await;
    client.say(format!("GET / HTTP/1.1\r\nhost: api.test:{port}\r\n\r\n").as_bytes()).await;
    let response = client.answer().await;
    assert!(response.starts_with("HTTP/1.1 403"), "{response}");
    assert_eq!(host.heard().matches(VALUE).count(), 1, "{}", host.heard());
}

#[tokio::test]
async fn rules_change_on_a_live_session() {
    let world = TlsWorld::new(&["K=https://api.test:{}/"], "api.test", ECHO).await;
    let mut stream = world.tls("api.test", "api.test").await.unwrap();
    let request = "GET /v1 HTTP/1.1\nhost: api.test\n\n";
    ask(&mut stream, request).await;
    let rule = format!("K=https://api.test:{}/v2", world.host.port());
    let rules = vec![SecretRule::parse(&rule).unwrap()];
    let secrets = world.world.ledger.secrets().unwrap();
    secrets.change_rules(rules, |_| Ok::<_, ()>(())).unwrap();
    ask(&mut stream, request).await;
    assert_eq!(world.host.heard().matches(VALUE).count(), 1, "the second request had no value");
}

#[tokio::test]
async fn a_host_that_knew_the_value_is_searched_after_the_rules_are_gone() {
    let answer = "HTTP/1.1 200 OK\n\ntopsecret-value";
    let world = TlsWorld::new(&["K=https://api.test:{}/"], "api.test", answer).await;
    let request = "GET / HTTP/1.1\nhost: api.test\n\n";
    world.request(request).await;
    let secrets = world.world.ledger.secrets().unwrap();
    secrets.change_rules(Vec::new(), |_| Ok::<_, ()>(())).unwrap();
    let response = world.request(request).await;
    assert!(response.ends_with("***************"), "{response}");
    assert_eq!(world.host.heard().matches(VALUE).count(), 1);
}

#[tokio::test]
async fn a_host_of_a_rule_is_reached_by_http_1_and_tls_only() {
    let host = Host::new(Manner::Answer("topsecret-value")).await;
    let port = host.port();
    let rule = SecretRule::parse(&format!("K=http://api.test:{port}/")).unwrap();
    let value = Arc::new(SecretValue::new(VALUE.to_owned()).unwrap());
    let secrets = SessionSecrets::new(of(vec![rule]), Arc::new(OneSecret(value)), None);
    let hosts = ["api.test:{}=127.0.0.1"];
    let world = World::with_secrets(&hosts, &host, UNHURRIED, &["127.0.0.1"], Some(secrets)).await;
    for bytes in [
        &b"GET /last\r\n\r\n"[..],
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b"\x80\x2e\x01\x03\x01 an SSL 2 hello",
        b"anything\r\n\r\n",
    ] {
        let mut client = world.tunnel(&format!("api.test:{port}")).await;
        client.say(bytes).await;
        assert_eq!(client.rest().await, b"", "{bytes:?}");
    }
    // Half a line, then the end.
    let mut client = world.tunnel(&format!("api.test:{port}")).await;
    client.say(b"GET /last HTTP/1.1").await;
    client.0.shutdown().await.unwrap();
    assert_eq!(client.rest().await, b"");
    assert_eq!(host.heard(), "");
    // A WebSocket cannot be searched frame by frame.
    let mut client = world.tunnel(&format!("api.test:{port}")).await;
    let head =
        "GET / HTTP/1.1\r\nhost: api.test\r\nconnection: upgrade\r\nupgrade: websocket\r\n\r\n";
    client.say(head.as_bytes()).await;
    assert!(client.answer().await.starts_with("HTTP/1.1 426"));
}

#[tokio::test]
async fn without_an_authority_tls_to_a_host_of_a_rule_is_refused() {
    let host = Host::new(Manner::Echo).await;
    let port = host.port();
    let rule = SecretRule::parse(&format!("K=https://api.test:{port}/")).unwrap();
    let value = Arc::new(SecretValue::new(VALUE.to_owned()).unwrap());
    let secrets = SessionSecrets::new(of(vec![rule]), Arc::new(OneSecret(value)), None);
    let hosts = ["api.test:{}=127.0.0.1"];
    let world = World::with_secrets(&hosts, &host, UNHURRIED, &["127.0.0.1"], Some(secrets)).await;
    let Client(stream) = world.tunnel(&format!("api.test:{port}")).await;
    let (_, certificate) = authority(Vec::new());
    let name = ServerName::try_from("api.test").unwrap();
    let connected = within(TlsConnector::from(trusting(certificate)).connect(name, stream)).await;
    assert!(connected.is_err());
    assert_eq!(host.heard(), "");
    assert!(world.refusals()[0].1.contains("authority"), "{:?}", world.refusals());
}

#[tokio::test]
async fn an_open_tunnel_ends_when_a_rule_names_its_host() {
    let world = TlsWorld::new(&["K=https://api.test:{}/"], "evil.test", ECHO).await;
    let mut tunnel = world.world.tunnel(&format!("evil.test:{}", world.host.port())).await;
    // The bytes are neither TLS nor HTTP, so the proxy copies them unread.
    tunnel.say(b"\x00\x01 some other protocol").await;
    let rule = SecretRule::parse(&format!("K=https://evil.test:{}/", world.host.port())).unwrap();
    let secrets = world.world.ledger.secrets().unwrap();
    secrets.change_rules(vec![rule], |_| Ok::<_, ()>(())).unwrap();
    tunnel.rest().await;
}
