//! A proxy with the rules of a test, and a host with scripted behaviour.

use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;
use windlass_protocol::policy::{HostRule, HostRules};

use crate::Decision;
use crate::ledger::Ledger;
use crate::proxy;
use crate::reach::{Resolver, SessionEgress};
use crate::secrets::SessionSecrets;
use crate::timeouts::ProxyTimeouts;

/// A test that waits this long has failed.
pub const PATIENCE: Duration = Duration::from_secs(20);

/// Time limits that only the tests of time limits reach.
pub const UNHURRIED: ProxyTimeouts =
    ProxyTimeouts { head: PATIENCE, hello: PATIENCE, idle: PATIENCE };

/// A proxy for one session.
pub struct World {
    pub proxy: SocketAddr,
    pub ledger: Arc<Ledger>,
    pub egress: Arc<SessionEgress>,
    pub events: mpsc::Receiver<Decision>,
}

impl World {
    /// A proxy with these rules; `{}` in a rule stands for the port of `host`.
    pub async fn new(rules: &[&str], host: &Host) -> Self {
        Self::with(rules, host, UNHURRIED, &["127.0.0.1"]).await
    }

    pub async fn with(
        rules: &[&str],
        host: &Host,
        timeouts: ProxyTimeouts,
        answers: &[&str],
    ) -> Self {
        Self::with_secrets(rules, host, timeouts, answers, None).await
    }

    pub async fn with_secrets(
        rules: &[&str],
        host: &Host,
        timeouts: ProxyTimeouts,
        answers: &[&str],
        secrets: Option<SessionSecrets>,
    ) -> Self {
        let port = host.address.port().to_string();
        let rules = rules.iter().map(|rule| HostRule::parse(&rule.replace("{}", &port)).unwrap());
        let (inbox, events) = mpsc::channel(1024);
        let ledger = Ledger::new(HostRules(rules.collect()), Box::new(inbox), || 0);
        let ledger = Arc::new(match secrets {
            Some(secrets) => ledger.with_secrets(Arc::new(secrets)),
            None => ledger,
        });
        let answers: Vec<IpAddr> = answers.iter().map(|answer| answer.parse().unwrap()).collect();
        let resolver = Arc::new(Resolver::Script(Mutex::new(vec![answers])));
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let proxy = listener.local_addr().unwrap();
        let egress = Arc::new(SessionEgress { ledger: ledger.clone(), resolver, timeouts });
        let serving = egress.clone();
        tokio::spawn(async move {
            loop {
                let (client, _) = listener.accept().await.unwrap();
                tokio::spawn(proxy::serve(client, serving.clone()));
            }
        });
        Self { proxy, ledger, egress, events }
    }

    pub async fn connect(&self) -> Client {
        Client(TcpStream::connect(self.proxy).await.unwrap())
    }

    /// A tunnel that CONNECT has opened.
    pub async fn tunnel(&self, place: &str) -> Client {
        let mut client = self.connect().await;
        client.say(format!("CONNECT {place} HTTP/1.1\r\nHost: {place}\r\n\r\n").as_bytes()).await;
        let head = client.head().await;
        assert!(head.starts_with("HTTP/1.1 200 "), "{head}");
        client
    }

    /// The refusals that were counted: host and reason.
    pub fn refusals(&self) -> Vec<(String, String)> {
        let refused = self.ledger.log().decisions.into_iter().filter(|decision| !decision.allowed);
        refused.map(|decision| (decision.host, decision.reason)).collect()
    }
}

/// A client's end of a connection.
pub struct Client(pub TcpStream);

impl Client {
    pub async fn say(&mut self, bytes: &[u8]) {
        self.0.write_all(bytes).await.unwrap();
    }

    pub async fn hear(&mut self, count: usize) -> Vec<u8> {
        let mut bytes = vec![0; count];
        within(self.0.read_exact(&mut bytes)).await.unwrap();
        bytes
    }

    /// A response's status line and headers.
    pub async fn head(&mut self) -> String {
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            head.extend(self.hear(1).await);
        }
        String::from_utf8(head).unwrap()
    }

    /// A response whose head states the length of its body.
    pub async fn answer(&mut self) -> String {
        let head = self.head().await;
        let length = head.lines().find_map(|line| {
            let (name, value) = line.split_once(':')?;
            name.eq_ignore_ascii_case("content-length").then(|| value.trim().parse().unwrap())
        });
        let body = self.hear(length.unwrap_or(0)).await;
        head + &String::from_utf8(body).unwrap()
    }

    /// Up to `count` bytes; fewer when the proxy closes the connection before.
    pub async fn rest_or(&mut self, count: u64) -> Vec<u8> {
        let mut bytes = Vec::new();
        // A reset counts as a close too.
        let _ = within((&mut self.0).take(count).read_to_end(&mut bytes)).await;
        bytes
    }

    /// All bytes until the proxy closes or resets the connection.
    pub async fn rest(&mut self) -> Vec<u8> {
        let mut bytes = Vec::new();
        // A reset counts as a close too.
        let _ = within(self.0.read_to_end(&mut bytes)).await;
        bytes
    }
}

/// A scripted host, with the bytes that it received.
pub struct Host {
    pub address: SocketAddr,
    pub heard: Arc<Mutex<Vec<u8>>>,
    pub connections: Arc<Mutex<usize>>,
}

/// What a host does with a connection.
#[derive(Debug, Clone, Copy)]
pub enum Manner {
    Echo,
    /// Sends a text first, then echoes.
    SpeakFirst(&'static str),
    /// Answers each HTTP head with this.
    Answer(&'static str),
}

impl Host {
    pub async fn new(manner: Manner) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let heard = Arc::new(Mutex::new(Vec::new()));
        let connections = Arc::new(Mutex::new(0));
        let host = Self { address, heard: heard.clone(), connections: connections.clone() };
        tokio::spawn(async move {
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                *connections.lock().unwrap() += 1;
                tokio::spawn(behave(stream, manner, heard.clone()));
            }
        });
        host
    }

    pub fn port(&self) -> u16 {
        self.address.port()
    }

    pub fn heard(&self) -> String {
        String::from_utf8_lossy(&self.heard.lock().unwrap()).into_owned()
    }

    pub fn connections(&self) -> usize {
        *self.connections.lock().unwrap()
    }
}

async fn behave(mut stream: TcpStream, manner: Manner, heard: Arc<Mutex<Vec<u8>>>) {
    if let Manner::SpeakFirst(words) = manner {
        stream.write_all(words.as_bytes()).await.unwrap();
    }
    let mut head = Vec::new();
    let mut buffer = [0; 4096];
    while let Ok(read @ 1..) = stream.read(&mut buffer).await {
        heard.lock().unwrap().extend_from_slice(&buffer[..read]);
        let answer = match manner {
            Manner::Echo | Manner::SpeakFirst(_) => &buffer[..read],
            Manner::Answer(answer) => {
                head.extend_from_slice(&buffer[..read]);
                if !head.ends_with(b"\r\n\r\n") {
                    continue;
                }
                head.clear();
                answer.as_bytes()
            }
        };
        if stream.write_all(answer).await.is_err() {
            return;
        }
    }
}

/// The future's result; panics when it takes too long.
pub async fn within<F: Future>(future: F) -> F::Output {
    tokio::time::timeout(PATIENCE, future).await.expect("it comes in time")
}
