//! What a secret costs a request: the same TLS host by two names, one with a secret rule and one without. Code in a
//! session takes the times, in turn for both names.
//!
//! - `secret_first`: a new connection and its first request. The baseline is end-to-end TLS through the proxy.
//! - `secret_kept`: a request on a kept connection, with the same baseline.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use windlass_protocol::Outcome;
use windlass_protocol::api::CreateSession;
use windlass_protocol::policy::{HostRule, HostRules, Network, PolicyRequest, SecretRule};
use windlass_testkit::{TestCertificates, TestNode};

use super::figure::{Figure, millis};
use super::node::{BenchNode, block_on, create, program};
use super::{BenchPlan, python};

const FIRST_ROUNDS: usize = 200;
const KEPT_ROUNDS: usize = 1000;

/// Rounds whose figures fit into one reply.
const PART: usize = 100;

/// A host that answers each request in one write. Prints its port.
const HOST: &str = r#"
import asyncio, ssl, sys

async def serve(reader, writer):
    try:
        while True:
            await reader.readuntil(b"\r\n\r\n")
            writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok")
            await writer.drain()
    except (asyncio.IncompleteReadError, ConnectionError):
        writer.close()

async def main():
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(sys.argv[1], sys.argv[2])
    server = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=context)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()

asyncio.run(main())
"#;

/// Code that measures both names in turn, and returns the nanoseconds of each round.
const INSIDE: &str = r#"
import http.client, json, ssl, time
context = ssl.create_default_context()
def connect(name):
    connection = http.client.HTTPSConnection("127.0.0.1", 3128, context=context)
    connection.set_tunnel(name, PORT)
    return connection
def ask(connection):
    connection.request("GET", "/")
    assert connection.getresponse().read() == b"ok"
NAMES = ("secret.test", "plain.test")
def first(rounds):
    taken = [[], []]
    for _ in range(rounds):
        for name, times in zip(NAMES, taken):
            started = time.perf_counter_ns()
            connection = connect(name)
            ask(connection)
            times.append(time.perf_counter_ns() - started)
            connection.close()
    return taken
def kept(rounds):
    taken, connections = [[], []], [connect(name) for name in NAMES]
    for connection in connections:
        ask(connection)
    for _ in range(rounds):
        for connection, times in zip(connections, taken):
            started = time.perf_counter_ns()
            ask(connection)
            times.append(time.perf_counter_ns() - started)
    return taken
"#;

pub fn measure(plan: &BenchPlan) -> Result<Vec<Figure>> {
    block_on(async {
        let dir = tempfile::tempdir()?;
        let certificates = TestCertificates::make(dir.path(), &["secret.test", "plain.test"])?;
        let host = TlsHost::start(&certificates.certificate, &certificates.key)?;
        let builder = TestNode::builder(program()?).env("SSL_CERT_FILE", &certificates.authority);
        let bench = BenchNode::started(builder).await?;
        let name = "BENCH_KEY".to_owned().try_into()?;
        bench.client.set_secret(&name, "a value for the bench".to_owned()).await?;
        let port = host.port;
        let rule = SecretRule::parse(&format!("BENCH_KEY=https://secret.test:{port}/"))?;
        let hosts =
            [format!("secret.test:{port}=127.0.0.1"), format!("plain.test:{port}=127.0.0.1")];
        let hosts = hosts.iter().map(|host| HostRule::parse(host)).collect::<Result<_, _>>()?;
        let policy = PolicyRequest {
            network: Some(Network::Hosts(HostRules(hosts))),
            secrets: vec![rule],
            ..PolicyRequest::default()
        };
        let wanted = CreateSession { policy: Some(policy), ..create() };
        let session = bench.client.create_session(&wanted).await?.session.id;
        let ran = bench.run(&session, &format!("PORT = {port}\n{INSIDE}")).await?;
        ensure!(ran.outcome == Some(Outcome::Ok), "the code failed: {}", ran.output.text);
        let mut figures = Vec::new();
        for (figure, act, rounds) in [
            ("secret_first", "first", plan.rounds(FIRST_ROUNDS)),
            ("secret_kept", "kept", plan.rounds(KEPT_ROUNDS)),
        ] {
            let (mut secret, mut plain) = (Vec::new(), Vec::new());
            // In parts: one reply holds so many figures only.
            for _ in 0..rounds.div_ceil(PART) {
                let code = format!("print(json.dumps({act}({PART})))");
                let ran = bench.run(&session, &code).await?;
                ensure!(ran.outcome == Some(Outcome::Ok), "the code failed: {}", ran.output.text);
                let [with, without]: [Vec<u64>; 2] = serde_json::from_str(ran.output.text.trim())?;
                secret.extend(with.into_iter().map(Duration::from_nanos));
                plain.extend(without.into_iter().map(Duration::from_nanos));
            }
            figures.push(Figure::of_times(figure, &secret).beside(&millis(&plain)));
        }
        Ok(figures)
    })
}

/// The host's process. Dropping it ends the process.
struct TlsHost {
    process: Child,
    port: u16,
}

impl TlsHost {
    fn start(certificate: &Path, key: &Path) -> Result<Self> {
        let mut process = python::command()
            .args(["-c", HOST])
            .args([certificate, key])
            .stdout(Stdio::piped())
            .spawn()
            .context("cannot run the host")?;
        let mut line = String::new();
        let stdout = process.stdout.take().context("the host has no output")?;
        let mut host = Self { process, port: 0 };
        BufReader::new(stdout).read_line(&mut line)?;
        host.port = line.trim().parse().with_context(|| format!("no port: {line:?}"))?;
        Ok(host)
    }
}

impl Drop for TlsHost {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
