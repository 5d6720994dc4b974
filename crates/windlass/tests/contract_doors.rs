//! Contract lines 57 and 58, the doors of the node: they withstand misbehaving clients, and accept only
//! authorized ones.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::fs;
use std::io::{self, Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Resource, Rlimit, getrlimit, prlimit, setrlimit};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use windlass_client::protocol::{ErrorCode, SessionId};
use windlass_client::{Client, ClientError, RemoteNode, Token};
use windlass_testkit::raw_http::{RawHttp, request};
use windlass_testkit::{PATIENCE, TestNode, processes, python, run_ok, within};

const PROGRAM: &str = env!("CARGO_BIN_EXE_windlass");

/// How long a turn of another client may take while the doors are attacked.
const SERVED_WITHIN: Duration = Duration::from_secs(5);

/// Number of requests with random bytes.
const RANDOM_REQUESTS: u64 = 500;

/// Number of clients that send one byte at a time.
const SLOW_CLIENTS: usize = 200;

/// The node's timeout for a request head, plus a margin.
const HEAD_WAIT: Duration = Duration::from_secs(10);

/// Number of connections, at once or, if the descriptor limit is lower, one after the other.
const CONNECTIONS: usize = 10_000;

/// Memory that an idle connection may cost the node.
const IDLE_BYTES_MAX: u64 = 4 * 1024;

/// Memory that malformed and oversize requests may cost the node while they last.
const RSS_SLACK_BYTES: u64 = 96 * 1024 * 1024;

/// Files that a new node opens once: the index of the journal, a log. A leak would add hundreds of
/// descriptors.
const OPENED_ONCE_MAX: usize = 4;

/// A node, and a client that must be served whatever other clients do.
struct Scene {
    node: TestNode,
    client: Client,
    session: SessionId,
    /// Duration of the slowest turn.
    slowest: Duration,
}

impl Scene {
    async fn new() -> Self {
        let node = TestNode::start(PROGRAM).await.unwrap();
        let client = node.client().await.unwrap();
        let session = node.session(&client).await.unwrap().id;
        run_ok(&client, &session, "n = 0").await;
        Self { node, client, session, slowest: Duration::ZERO }
    }

    /// Runs a turn of the other client, which must keep its state and end in time.
    async fn is_served(&mut self) {
        let began = Instant::now();
        let said = run_ok(&self.client, &self.session, "n += 1; print('ok')").await;
        assert_eq!(said, "ok\n");
        self.slowest = self.slowest.max(began.elapsed());
        assert!(began.elapsed() < SERVED_WITHIN, "a turn took {:?}", began.elapsed());
    }

    fn connect(&self) -> UnixStream {
        let stream = UnixStream::connect(self.node.dirs().socket()).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.set_write_timeout(Some(PATIENCE)).unwrap();
        stream
    }

    fn descriptors(&self) -> usize {
        processes::descriptors(self.node.pid()).unwrap()
    }

    /// Serves the other client until the node has no more descriptors than before.
    async fn until_descriptors_are(&mut self, before: usize) {
        let until = Instant::now() + PATIENCE;
        while self.descriptors() > before + OPENED_ONCE_MAX {
            assert!(Instant::now() < until, "{} descriptors, not {before}", self.descriptors());
            self.is_served().await;
        }
    }
}

#[tokio::test]
async fn contract_57_malformed_requests_are_refused_and_others_are_served() {
    let mut scene = Scene::new().await;
    let before = scene.descriptors();
    for (number, bytes) in malformed().iter().enumerate() {
        let answer = converse(&scene, bytes);
        let fine = answer.is_empty() || answer.starts_with("HTTP/1.1 4");
        assert!(fine, "{:?} was answered with {answer:?}", String::from_utf8_lossy(bytes));
        if number.is_multiple_of(50) {
            scene.is_served().await;
        }
    }
    scene.is_served().await;
    scene.until_descriptors_are(before).await;
    eprintln!("the slowest turn took {:?}", scene.slowest);
}

#[tokio::test]
async fn contract_57_oversize_requests_are_refused_in_bounded_memory() {
    const HUGE: usize = 300 * 1024 * 1024;
    let mut scene = Scene::new().await;
    let before = (scene.descriptors(), processes::rss_bytes(scene.node.pid()).unwrap());
    let path = format!("/v1/sessions/{}/turns", scene.session);
    let head = |length: usize| {
        format!(
            "POST {path} HTTP/1.1\r\nhost: node\r\ncontent-length: {length}\r\n\r\n{{\"code\": \""
        )
    };
    let chunked =
        format!("POST {path} HTTP/1.1\r\nhost: node\r\ntransfer-encoding: chunked\r\n\r\n");
    for (name, start, piece) in [
        ("head", "GET /v1/health HTTP/1.1\r\nhost: node\r\nx: ".to_owned(), vec![b'x'; 65_536]),
        ("target", "GET /v1/".to_owned(), vec![b'x'; 65_536]),
        ("heads", "GET /v1/health HTTP/1.1\r\n".to_owned(), b"x: y\r\n".repeat(1000)),
        ("body", head(HUGE), vec![b'x'; 65_536]),
        ("endless body", head(usize::MAX / 4), vec![b'x'; 65_536]),
        ("chunks", chunked, [b"10000\r\n".to_vec(), vec![b'x'; 65_536], b"\r\n".to_vec()].concat()),
    ] {
        let stream = scene.connect();
        let sending = tokio::task::spawn_blocking(move || pour(stream, &start, &piece, HUGE));
        while !sending.is_finished() {
            scene.is_served().await;
        }
        let answer = sending.await.unwrap();
        // A client that is cut off while it sends may not receive a reply.
        assert!(answer.is_empty() || answer.starts_with("HTTP/1.1 4"), "{name}: {answer:?}");
    }
    let peak = processes::peak_rss_bytes(scene.node.pid()).unwrap();
    let grown = peak.saturating_sub(before.1);
    eprintln!("grew by {grown} bytes; the slowest turn took {:?}", scene.slowest);
    assert!(grown < RSS_SLACK_BYTES, "the node grew by {grown} bytes");
    scene.until_descriptors_are(before.0).await;
}

#[tokio::test]
async fn contract_57_slow_clients_are_cut_off_and_others_are_served() {
    let mut scene = Scene::new().await;
    let before = scene.descriptors();
    let path = format!("/v1/sessions/{}/turns", scene.session);
    let began = Instant::now();
    let mut slow = Vec::new();
    for number in 0..SLOW_CLIENTS {
        let mut stream = tokio::net::UnixStream::connect(scene.node.dirs().socket()).await.unwrap();
        if number % 2 == 1 {
            // The second request on the connection is the slow one.
            stream.write_all(&request("GET", "/v1/health", b"")).await.unwrap();
            let mut answer = [0; 12];
            within(PATIENCE, stream.read_exact(&mut answer)).await.unwrap();
            assert_eq!(&answer, b"HTTP/1.1 200");
        }
        slow.push(stream);
    }
    // Bodies have a longer timeout. Other clients must be served meanwhile.
    let mut bodies = Vec::new();
    for _ in 0..SLOW_CLIENTS / 4 {
        let mut http = RawHttp::connect(&scene.node.dirs().socket()).await.unwrap();
        let whole = request("POST", &path, &[b' '; 1000]);
        http.write(&whole[..whole.len() - 900]).await.unwrap();
        bodies.push(http);
    }
    let head = b"GET /v1/health HTTP/1.1\r\nhost: node\r\nx: ".iter().chain([b'x'].iter().cycle());
    for byte in head {
        if slow.is_empty() {
            break;
        }
        let mut left = Vec::new();
        for mut stream in slow {
            if stream.write_all(&[*byte]).await.is_ok() {
                left.push(stream);
            }
        }
        slow = left;
        scene.is_served().await;
        assert!(began.elapsed() < HEAD_WAIT + PATIENCE, "{} are still served", slow.len());
    }
    assert!(began.elapsed() >= HEAD_WAIT, "cut off after {:?}", began.elapsed());
    drop(bodies);
    scene.until_descriptors_are(before).await;
    eprintln!("cut off after {:?}; the slowest turn took {:?}", began.elapsed(), scene.slowest);
}

#[tokio::test]
async fn contract_57_ten_thousand_connections_stand_idle_and_others_are_served() {
    let mut scene = Scene::new().await;
    let before = (scene.descriptors(), processes::rss_bytes(scene.node.pid()).unwrap());
    let batch = (raise_limit() - 500).min(CONNECTIONS);
    let mut opened = 0;
    while opened < CONNECTIONS {
        let count = batch.min(CONNECTIONS - opened);
        let socket = scene.node.dirs().socket();
        let opening = tokio::task::spawn_blocking(move || connect_many(&socket, count));
        while !opening.is_finished() {
            scene.is_served().await;
        }
        let mut held = opening.await.unwrap();
        opened += count;
        scene.is_served().await;
        // The newest connection is served, and so is a new client.
        let last = held.last_mut().unwrap();
        last.write_all(&request("GET", "/v1/health", b"")).unwrap();
        let mut answer = [0; 12];
        last.read_exact(&mut answer).unwrap();
        assert_eq!(&answer, b"HTTP/1.1 200");
        within(SERVED_WITHIN, async { scene.node.client().await.unwrap().node_status().await })
            .await
            .unwrap();
        let grown = processes::rss_bytes(scene.node.pid()).unwrap().saturating_sub(before.1);
        let each = grown / count as u64;
        eprintln!("{count} at once, {each} bytes each; slowest turn {:?}", scene.slowest);
        assert!(each < IDLE_BYTES_MAX, "an idle connection costs {each} bytes");
        drop(held);
        scene.until_descriptors_are(before.0).await;
    }
}

#[tokio::test]
async fn contract_57_a_node_without_descriptors_closes_idle_connections_and_does_not_spin() {
    const ROOM: u64 = 24;
    let mut scene = Scene::new().await;
    let pid = Pid::from_raw(scene.node.pid().cast_signed());
    let limit = prlimit(pid, Resource::Nofile, getrlimit(Resource::Nofile)).unwrap();
    let open = scene.descriptors() as u64;
    let low = Rlimit { current: Some(open + ROOM), maximum: limit.maximum };
    prlimit(pid, Resource::Nofile, low).unwrap();

    // The node closes idle connections: the last of many clients is served.
    let idle: Vec<_> = (0..4 * ROOM).map(|_| scene.connect()).collect();
    let mut last = scene.connect();
    last.write_all(&request("GET", "/v1/health", b"")).unwrap();
    let mut answer = [0; 12];
    last.read_exact(&mut answer).unwrap();
    assert_eq!(&answer, b"HTTP/1.1 200");
    drop((idle, last));
    scene.until_descriptors_are(usize::try_from(open).unwrap()).await;

    // The node does not close connections with a request in flight: a new client waits, and the node does not
    // spin.
    let follow = format!(
        "GET /v1/sessions/{}/events HTTP/1.1\r\nhost: node\r\naccept: text/event-stream\r\n\r\n",
        scene.session
    );
    let mut following: Vec<_> = (0..ROOM)
        .map(|_| {
            let mut stream = scene.connect();
            stream.write_all(follow.as_bytes()).unwrap();
            stream
        })
        .collect();
    let mut first = scene.connect();
    first.write_all(&request("GET", "/v1/health", b"")).unwrap();
    let waiting: Vec<_> = (0..ROOM).map(|_| scene.connect()).collect();
    scene.is_served().await;
    let cpu = cpu_ticks(scene.node.pid());
    run_ok(&scene.client, &scene.session, "import time; time.sleep(2)").await;
    let spent = cpu_ticks(scene.node.pid()) - cpu;
    assert!(spent < 20, "the node spent {spent} ticks of 10 ms in two idle seconds");
    following.clear();
    first.read_exact(&mut answer).unwrap();
    assert_eq!(&answer, b"HTTP/1.1 200");
    drop(waiting);
    scene.is_served().await;
}

#[tokio::test]
async fn contract_58_another_user_can_neither_connect_nor_read() {
    let scene = Scene::new().await;
    let (base, dirs) = (scene.node.base().to_owned(), scene.node.dirs().clone());
    let token = Token::read_or_make(&dirs.token()).unwrap();
    for (path, most) in [
        (&dirs.runtime, 0o700),
        (&dirs.state, 0o700),
        (&dirs.socket(), 0o600),
        (&dirs.token(), 0o600),
    ] {
        let mode = fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!(mode, most, "{}", path.display());
    }
    if !rustix::process::geteuid().is_root() {
        eprintln!("only the modes were looked at: an ordinary user cannot become another one");
        return;
    }
    assert_eq!(as_another_user(&dirs.socket(), &dirs.token()), "PermissionError PermissionError");
    // Even if all file modes are wrong, the node checks the user who connects.
    for path in [&base, &dirs.runtime, &dirs.state, &dirs.socket()] {
        fs::set_permissions(path, fs::Permissions::from_mode(0o777)).unwrap();
    }
    assert_eq!(as_another_user(&dirs.socket(), &dirs.token()), "closed PermissionError");
    for path in [&base, &dirs.runtime, &dirs.state] {
        fs::set_permissions(path, fs::Permissions::from_mode(0o700)).unwrap();
    }
    assert_eq!(token, Token::read(&dirs.token()).unwrap());
}

#[tokio::test]
async fn contract_58_tcp_is_refused_without_the_token() {
    let node = TestNode::builder(PROGRAM).arg("--listen").arg("127.0.0.1:0").start().await.unwrap();
    let client = node.client().await.unwrap();
    let address = client.node_status().await.unwrap().listen.unwrap();
    let token = Token::read(&node.dirs().token()).unwrap().as_str().to_owned();
    let bearer = |said: &str| format!("authorization: Bearer {said}\r\n");
    let (prefix, other) = (&token[..token.len() - 1], "0".repeat(token.len()));
    for headers in [
        String::new(),
        bearer(""),
        bearer(prefix),
        bearer(&format!("{token}0")),
        bearer(&other),
        format!("authorization: {token}\r\n"),
        format!("cookie: token={token}\r\n"),
    ] {
        for (method, path) in [("GET", "/v1/health"), ("POST", "/v1/sessions"), ("GET", "/nothing")]
        {
            let answer = ask_tcp(&address, &address, method, path, &headers).await;
            assert!(answer.starts_with("HTTP/1.1 401 "), "{headers:?}: {answer}");
            assert!(answer.contains("\"unauthorized\""), "{answer}");
            assert!(!answer.contains(prefix), "{answer}");
        }
    }
    for (host, headers) in [
        ("elsewhere.test", bearer(&token)),
        (&*address, format!("{}origin: http://windlass\r\n", bearer(&token))),
        (&*address, format!("{}sec-fetch-site: cross-site\r\n", bearer(&token))),
    ] {
        let answer = ask_tcp(&address, host, "GET", "/v1/health", &headers).await;
        assert!(answer.starts_with("HTTP/1.1 403 "), "{headers:?}: {answer}");
        assert!(answer.contains("\"foreign_site\""), "{answer}");
    }
    assert_eq!(client.node_status().await.unwrap().sessions, 0);

    let answer = ask_tcp(&address, &address, "GET", "/v1/health", &bearer(&token)).await;
    assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
    let url = format!("http://{address}");
    let right = RemoteNode::new(&url, &Token::parse(&token).unwrap()).unwrap();
    let remote = Client::connect_remote(right, node.dirs().clone()).await.unwrap();
    let session = node.session(&remote).await.unwrap().id;
    assert_eq!(run_ok(&remote, &session, "print(6 * 7)").await, "42\n");
    // After a rotation, the node refuses the old token from the next request on, also on an open connection.
    let new = Token::rotate(&node.dirs().token()).unwrap();
    let refused = remote.node_status().await.unwrap_err();
    assert_eq!(refused.api_code(), Some(ErrorCode::Unauthorized), "{refused:?}");
    let right = RemoteNode::new(&url, &new).unwrap();
    let remote = Client::connect_remote(right, node.dirs().clone()).await.unwrap();
    assert_eq!(run_ok(&remote, &session, "print(6 * 7)").await, "42\n");
}

#[tokio::test]
async fn contract_58_a_door_to_other_machines_must_be_meant() {
    let listen = |more: &[&str]| {
        let mut builder = TestNode::builder(PROGRAM).arg("--listen").arg("0.0.0.0:0");
        for arg in more {
            builder = builder.arg(arg);
        }
        builder.start()
    };
    let refused = listen(&[]).await.unwrap_err().to_string();
    assert!(refused.contains("--listen-anywhere"), "{refused}");
    let node = listen(&["--listen-anywhere"]).await.unwrap();
    let status = node.client().await.unwrap().node_status().await.unwrap();
    assert!(status.listen.unwrap().starts_with("0.0.0.0:"));
}

#[tokio::test]
async fn contract_58_the_token_is_in_no_log_process_list_or_error() {
    let place = TestNode::builder(PROGRAM).env("WINDLASS_LOG", "trace").prepare().unwrap();
    let secret = windlass(&place, &["token"], &[]);
    let token = String::from_utf8(secret.stdout).unwrap().trim().to_owned();
    assert_eq!(token.len(), 64);
    // The process that starts the node may have the token in its environment. The node must not.
    let started = windlass(
        &place,
        &["up", "--listen", "127.0.0.1:0"],
        &[("WINDLASS_TOKEN", &token), ("WINDLASS_LOG", "trace")],
    );
    let client = place.client().await.unwrap();
    let status = client.node_status().await.unwrap();
    let address = status.listen.clone().unwrap();
    let url = format!("http://{address}");
    let code = place.base().join("code.py");
    fs::write(&code, "import os; print(6 * 7, [v for v in os.environ if 'TOKEN' in v])").unwrap();
    let run =
        ["run", "--python", python().to_str().unwrap(), code.to_str().unwrap()].map(str::to_owned);
    let run: Vec<&str> = run.iter().map(String::as_str).collect();
    let by_tcp = |token: &str, args: &[&str]| {
        windlass(&place, args, &[("WINDLASS_URL", &url), ("WINDLASS_TOKEN", token)])
    };
    let ran = by_tcp(&token, &run);
    assert_eq!(String::from_utf8_lossy(&ran.stdout), "42 []\n", "{ran:?}");
    let session = place.session(&client).await.unwrap().id;
    run_ok(&client, &session, "import subprocess; p = subprocess.Popen(['sleep', '1000'])").await;

    let wrong = format!("{}{}", &token[..63], if token.ends_with('0') { '1' } else { '0' });
    let mut said = vec![started, ran];
    said.extend([&*wrong, &token[..60], &format!("{token}0")].map(|text| by_tcp(text, &["ps"])));
    said.push(by_tcp(&token, &["status"]));
    let userinfo = format!("http://{token}@{address}");
    said.push(windlass(
        &place,
        &["ps"],
        &[("WINDLASS_URL", &userinfo), ("WINDLASS_TOKEN", &token)],
    ));
    let refused: Vec<bool> = said.iter().map(|output| output.status.success()).collect();
    assert_eq!(refused, [true, true, false, false, false, true, false]);
    // Not even a part of the token: all but its last letters would be enough for an attacker.
    let most = &token[..60];
    for output in &said {
        let text = format!("{output:?}");
        assert!(!text.contains(most), "{text}");
    }
    for file in ["node.log", "keepers.log"] {
        let log = fs::read_to_string(place.dirs().state.join(file)).unwrap_or_default();
        assert!(!log.contains(most), "{file}: {log}");
        assert!(file != "node.log" || log.contains("the node serves"), "{log}");
    }
    let belonging = processes::belonging(place.base());
    assert!(belonging.contains(&status.pid) && belonging.len() >= 4, "{belonging:?}");
    for pid in processes::all().iter().map(|process| process.pid) {
        assert!(!processes::mentions(pid, most.as_bytes()), "{:?}", processes::arguments(pid));
    }
    let error = RemoteNode::new(&userinfo, &Token::parse(&token).unwrap()).unwrap_err();
    assert!(matches!(error, ClientError::BadUrl) && !format!("{error:?}").contains(most));
}

/// Malformed requests.
fn malformed() -> Vec<Vec<u8>> {
    let mut requests: Vec<Vec<u8>> = [
        "\r\n\r\n",
        "GET\r\n\r\n",
        "GET /v1/health\r\n\r\n",
        "GET /v1/health HTTP/9.9\r\n\r\n",
        "GET /v1/health HTTP/1.1\r\nhost\r\n\r\n",
        "GET /v1/health HTTP/1.1\r\n: x\r\n\r\n",
        "GET /v1/health HTTP/1.1\r\nhost: \0\r\n\r\n",
        "GET /v1/%zz/%00 HTTP/1.1\r\nhost: x\r\n\r\n",
        "G\0T /v1/health HTTP/1.1\r\nhost: x\r\n\r\n",
        "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        "CONNECT other:443 HTTP/1.1\r\n\r\n",
        "OPTIONS * HTTP/1.1\r\n\r\n",
        "GET http://windlass/v1/sessions/../../etc HTTP/1.1\r\nhost: x\r\n\r\n",
        "POST /v1/sessions HTTP/1.1\r\nhost: x\r\ncontent-length: -1\r\n\r\n",
        "POST /v1/sessions HTTP/1.1\r\nhost: x\r\ncontent-length: 99999999999999999999\r\n\r\n",
        "POST /v1/sessions HTTP/1.1\r\nhost: x\r\ncontent-length: 4\r\ncontent-length: 5\r\n\r\n{}  ",
        "POST /v1/sessions HTTP/1.1\r\nhost: x\r\ncontent-length: 2\r\n\r\n{]",
        "POST /v1/sessions HTTP/1.1\r\nhost: x\r\ncontent-length: 50\r\n\r\n{}",
        "POST /v1/sessions HTTP/1.1\r\nhost: x\r\ncontent-length: 4\r\n\r\nnull",
        "POST /v1/sessions HTTP/1.1\r\nhost: x\r\ncontent-length: 12\r\n\r\n{\"id\": 1e99}",
        "POST /v1/sessions HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n",
        "POST /v1/sessions HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\nffffffffffffffffff\r\n",
        "POST /v1/sessions HTTP/1.1\r\nhost: x\r\ntransfer-encoding: gzip, x\r\n\r\n",
    ]
    .iter()
    .map(|text| text.as_bytes().to_vec())
    .collect();
    let nested = "[".repeat(100_000);
    requests.push(request("POST", "/v1/sessions", nested.as_bytes()));
    let mut random = Random(57);
    for _ in 0..RANDOM_REQUESTS {
        // A request without a body asks for a session as usual, and is no malformed one.
        let length = 1 + random.below(600);
        let mut bytes: Vec<u8> = (0..length).map(|_| random.below(256) as u8).collect();
        // Half of them begin like a request, so that the random bytes reach later parsing stages.
        if random.below(2) == 0 {
            let whole = request("POST", "/v1/sessions", &bytes);
            let place = random.below(whole.len() as u64) as usize;
            let garbled = whole.iter().enumerate();
            bytes = garbled.map(|(at, byte)| if at == place { !byte } else { *byte }).collect();
        }
        requests.push(bytes);
    }
    requests
}

/// Random numbers that are the same in every run (splitmix64).
struct Random(u64);

impl Random {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ (mixed >> 31)) % limit
    }
}

/// Sends `bytes`, and returns what the node replies until it closes.
fn converse(scene: &Scene, bytes: &[u8]) -> String {
    let mut stream = scene.connect();
    // The node may close the connection before it has read everything.
    let _ = stream.write_all(bytes).and_then(|()| stream.shutdown(std::net::Shutdown::Write));
    rest(stream)
}

/// Sends `start`, then `piece` until the node closes or `most` bytes were sent. Returns the reply.
fn pour(mut stream: UnixStream, start: &str, piece: &[u8], most: usize) -> String {
    let mut sent = stream.write_all(start.as_bytes()).map(|()| start.len());
    while let Ok(bytes) = sent
        && bytes < most
    {
        sent = stream.write_all(piece).map(|()| bytes + piece.len());
    }
    assert!(sent.is_err(), "the node took {most} bytes");
    rest(stream)
}

/// Reads the rest. Only the time until the node closes matters.
fn rest(mut stream: UnixStream) -> String {
    let mut answer = Vec::new();
    if let Err(error) = stream.read_to_end(&mut answer) {
        assert_ne!(error.kind(), io::ErrorKind::WouldBlock, "the node does not close");
    }
    String::from_utf8_lossy(&answer).into_owned()
}

fn connect_many(socket: &Path, count: usize) -> Vec<UnixStream> {
    let mut held: Vec<_> = (0..count).map(|_| UnixStream::connect(socket).unwrap()).collect();
    held.last_mut().unwrap().set_read_timeout(Some(PATIENCE)).unwrap();
    held
}

/// The descriptor limit of this process.
fn raise_limit() -> usize {
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    setrlimit(Resource::Nofile, limit).unwrap();
    limit.current.map_or(usize::MAX, |current| usize::try_from(current).unwrap())
}

/// User and system time of a process, in ticks of 10 ms.
fn cpu_ticks(pid: u32) -> u64 {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    let fields: Vec<_> = stat[stat.rfind(')').unwrap()..].split(' ').collect();
    [12, 13].map(|place| fields[place].parse::<u64>().unwrap()).iter().sum()
}

/// What happens to an unrelated user who connects, and then reads the token.
fn as_another_user(socket: &Path, token: &Path) -> String {
    let code = "\
import socket, sys
def attempt(act):
    try:
        return act()
    except OSError as error:
        return type(error).__name__
def connect():
    s = socket.socket(socket.AF_UNIX)
    s.settimeout(30)
    s.connect(sys.argv[1])
    s.sendall(b'GET /v1/health HTTP/1.1\\r\\nhost: x\\r\\n\\r\\n')
    return s.recv(100).decode() or 'closed'
print(attempt(connect).replace('ConnectionResetError', 'closed').replace('BrokenPipeError', 'closed'),
      attempt(lambda: open(sys.argv[2]).read()))
";
    let tried = Command::new("/usr/bin/python3")
        .args(["-c", code])
        .args([socket, token])
        .env_clear()
        .current_dir("/")
        .uid(54_321)
        .gid(54_321)
        .stdin(Stdio::null())
        .output()
        .unwrap();
    assert!(tried.status.success(), "{tried:?}");
    String::from_utf8(tried.stdout).unwrap().trim().to_owned()
}

/// Sends a request over TCP and returns the whole reply.
async fn ask_tcp(address: &str, host: &str, method: &str, path: &str, headers: &str) -> String {
    let mut stream = tokio::net::TcpStream::connect(address).await.unwrap();
    let text =
        format!("{method} {path} HTTP/1.1\r\nhost: {host}\r\nconnection: close\r\n{headers}\r\n");
    stream.write_all(text.as_bytes()).await.unwrap();
    let mut answer = String::new();
    within(PATIENCE, stream.read_to_string(&mut answer)).await.unwrap();
    answer
}

fn windlass(place: &TestNode, args: &[&str], env: &[(&str, &str)]) -> Output {
    Command::new(place.program())
        .args(args)
        .env("WINDLASS_RUNTIME_DIR", &place.dirs().runtime)
        .env("WINDLASS_STATE_DIR", &place.dirs().state)
        .env("PATH", "/usr/local/bin:/usr/bin:/bin")
        .envs(env.iter().copied())
        .current_dir(place.base())
        .stdin(Stdio::null())
        .output()
        .unwrap()
}
