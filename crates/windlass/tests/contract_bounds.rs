//! Contract line 57, limits of the whole node: followers, searches, half-sent requests and waiting input each
//! cost little, and short requests of other clients are served meanwhile.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::fs;
use std::io::{Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::process::{Resource, getrlimit, setrlimit};
use windlass_client::protocol::api::{CloseQuery, SubmitTurn};
use windlass_client::protocol::{ErrorCode, SessionId};
use windlass_client::{Client, ClientError};
use windlass_testkit::raw_http::request;
use windlass_testkit::{
    Gate, PATIENCE, TestNode, named_turn, processes, run_ok, skip, turn, within,
};

const PROGRAM: &str = env!("CARGO_BIN_EXE_windlass");

/// How long a short request may take under this load.
const SERVED_WITHIN: Duration = Duration::from_secs(5);

/// Number of followers that wait for events, and how much the memory of the node may grow for them.
const FOLLOWERS: usize = 2000;
const FOLLOWERS_BYTES_MAX: u64 = 40 * 1024 * 1024;

/// Threads of the node that read journals for followers.
const READING_THREADS_MAX: usize = 4;

/// How long a thread without work stays alive.
const THREADS_GO_WITHIN: Duration = Duration::from_secs(40);

/// Limit for 95 of 100 short requests while 2,000 followers wait.
const CONTROL_P95_MAX: Duration = Duration::from_millis(50);

/// Number of followers that do not read, and the memory that they may cost the node while a session prints.
const DEAF_FOLLOWERS: usize = 500;
const DEAF_BYTES_MAX: u64 = 64 * 1024 * 1024;

/// Descriptor limit of a small node. Half of the descriptors are slots for connections.
const FEW_DESCRIPTORS: usize = 200;

/// How long a client may leave its reply unread when other clients need its slot.
const UNREAD_WAIT: Duration = Duration::from_secs(5);

struct Scene {
    node: TestNode,
    client: Client,
    session: SessionId,
}

impl Scene {
    async fn new() -> Self {
        Self::with(PROGRAM.as_ref()).await
    }

    async fn with(program: &Path) -> Self {
        let node = TestNode::start(program).await.unwrap();
        let client = node.client().await.unwrap();
        let session = node.session(&client).await.unwrap().id;
        run_ok(&client, &session, "n = 0").await;
        Self { node, client, session }
    }

    fn connect(&self) -> UnixStream {
        let stream = UnixStream::connect(self.node.dirs().socket()).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.set_write_timeout(Some(PATIENCE)).unwrap();
        stream
    }

    fn path(&self, rest: &str) -> String {
        format!("/v1/sessions/{}{rest}", self.session)
    }

    /// A client that follows the session from its first event. It has read the head of the reply.
    fn follower(&self) -> UnixStream {
        let mut stream = self.connect();
        self.ask_to_follow(&mut stream);
        let head = head(&mut stream);
        assert!(head.starts_with("HTTP/1.1 200"), "{head}");
        stream
    }

    fn ask_to_follow(&self, stream: &mut UnixStream) {
        let path = self.path("/events");
        let head =
            format!("GET {path} HTTP/1.1\r\nhost: node\r\naccept: text/event-stream\r\n\r\n");
        stream.write_all(head.as_bytes()).unwrap();
    }

    fn rss(&self) -> u64 {
        processes::rss_bytes(self.node.pid()).unwrap()
    }

    fn threads(&self) -> usize {
        fs::read_dir(format!("/proc/{}/task", self.node.pid())).unwrap().count()
    }

    async fn is_served(&self) {
        let turn = run_ok(&self.client, &self.session, "n += 1; print('ok')");
        assert_eq!(within(SERVED_WITHIN, turn).await, "ok\n");
    }
}

/// The head of a reply.
fn head(stream: &mut UnixStream) -> String {
    let (mut head, mut byte) = (Vec::new(), [0]);
    while !head.ends_with(b"\r\n\r\n") {
        stream.read_exact(&mut byte).unwrap();
        head.push(byte[0]);
    }
    String::from_utf8(head).unwrap()
}

/// The head and body of a reply with a content-length.
fn answer(stream: &mut UnixStream) -> (String, String) {
    let head = head(stream);
    let lower = head.to_lowercase();
    let length = lower.lines().find_map(|line| line.strip_prefix("content-length: ")).unwrap();
    let mut body = vec![0; length.trim().parse().unwrap()];
    stream.read_exact(&mut body).unwrap();
    (head, String::from_utf8(body).unwrap())
}

/// Reads a stream until it contains this text.
fn read_until(stream: &mut UnixStream, text: &[u8]) {
    let (mut held, mut piece) = (Vec::new(), vec![0; 1 << 16]);
    while !held.windows(text.len()).any(|part| part == text) {
        let read = stream.read(&mut piece).unwrap();
        assert!(read > 0, "the stream ended: {}", String::from_utf8_lossy(&held));
        held.drain(..held.len().saturating_sub(text.len()));
        held.extend_from_slice(&piece[..read]);
    }
}

/// Raises the descriptor limit of this process, and returns the limit.
fn raise_limit() -> usize {
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    setrlimit(Resource::Nofile, limit).unwrap();
    limit.current.map_or(usize::MAX, |current| usize::try_from(current).unwrap())
}

/// The program, started with a low descriptor limit.
fn small_program(base: &Path) -> std::path::PathBuf {
    let program = base.join("small");
    let script = format!("#!/bin/sh\nulimit -n {FEW_DESCRIPTORS}\nexec {PROGRAM} \"$@\"\n");
    fs::write(&program, script).unwrap();
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
    program
}

fn p95(mut times: Vec<Duration>) -> Duration {
    times.sort();
    times[times.len() * 95 / 100]
}

#[tokio::test]
async fn contract_57_two_thousand_followers_that_wait_cost_no_thread_and_little_memory() {
    let limit = raise_limit();
    if limit < 3 * FOLLOWERS {
        return skip(format_args!("{limit} descriptors are too few for {FOLLOWERS} followers"));
    }
    let scene = Scene::new().await;
    scene.is_served().await;
    let (rss, threads) = (scene.rss(), scene.threads());
    let mut followers = Vec::new();
    let mut most_threads = 0;
    for _ in 0..FOLLOWERS {
        followers.push(scene.follower());
        most_threads = most_threads.max(scene.threads());
    }
    assert!(most_threads <= threads + READING_THREADS_MAX, "{threads}, then {most_threads}");
    let mut times = Vec::new();
    for _ in 0..200 {
        let began = Instant::now();
        scene.client.session(&scene.session).await.unwrap();
        times.push(began.elapsed());
    }
    let p95 = p95(times);
    let until = Instant::now() + THREADS_GO_WITHIN;
    while scene.threads() > threads {
        assert!(Instant::now() < until, "{} threads, not {threads}", scene.threads());
        scene.client.health().await.unwrap();
    }
    let grown = scene.rss().saturating_sub(rss);
    eprintln!("{grown} bytes, at most {most_threads} threads after {threads}, p95 {p95:?}");
    assert!(grown <= FOLLOWERS_BYTES_MAX, "{FOLLOWERS} followers cost {grown} bytes");
    assert!(p95 < CONTROL_P95_MAX, "a control request took {p95:?}");
    // All followers are connected: each receives the events of the next turn.
    let began = Instant::now();
    run_ok(&scene.client, &scene.session, "print('for ' + 'everybody')").await;
    for follower in &mut followers {
        read_until(follower, b"for everybody");
    }
    eprintln!("all had the next turn after {:?}", began.elapsed());
    drop(followers);
    scene.is_served().await;
}

#[tokio::test]
async fn contract_57_followers_that_do_not_read_cost_a_piece_each_at_most() {
    if raise_limit() < 3 * DEAF_FOLLOWERS {
        return skip("there are too few descriptors");
    }
    let scene = Scene::new().await;
    scene.is_served().await;
    let (rss, threads) = (scene.rss(), scene.threads());
    let mut deaf: Vec<_> = (0..DEAF_FOLLOWERS).map(|_| scene.follower()).collect();
    // Lines of many lengths from both streams, so that events have all sizes.
    let code = "import os\nfor i in range(15_000): os.write(1 + i % 2, b'z' * (i % 2000) + b'\\n')\n\
                print('the ' + 'end')";
    run_ok(&scene.client, &scene.session, code).await;
    let most_threads = scene.threads();
    let grown = scene.rss().saturating_sub(rss);
    eprintln!("{grown} bytes, {most_threads} threads after {threads}");
    assert!(grown <= DEAF_BYTES_MAX, "{DEAF_FOLLOWERS} followers cost {grown} bytes");
    assert!(most_threads <= threads + READING_THREADS_MAX + 4, "{threads}, then {most_threads}");
    scene.is_served().await;
    // A follower that reads later still receives everything.
    read_until(&mut deaf[0], b"the end");
}

#[tokio::test]
async fn contract_57_half_sent_bodies_make_way_for_the_next_client() {
    let base = tempfile::tempdir().unwrap();
    let scene = Scene::with(&small_program(base.path())).await;
    let whole = request("POST", &scene.path("/turns"), &[b' '; 1000]);
    let half: Vec<_> = (0..2 * FEW_DESCRIPTORS)
        .map(|_| {
            let mut stream = scene.connect();
            // A write fails if the node has already closed this connection.
            let _ = stream.write_all(&whole[..whole.len() - 900]);
            stream
        })
        .collect();
    let began = Instant::now();
    within(SERVED_WITHIN, async { scene.node.client().await.unwrap().node_status().await })
        .await
        .unwrap();
    scene.is_served().await;
    eprintln!("served after {:?}", began.elapsed());
    drop(half);
}

#[tokio::test]
async fn contract_57_clients_that_do_not_read_their_answers_make_way() {
    // A connection that waits for its client to read uses a second descriptor. Use few enough connections
    // that descriptors do not run out before the slots do.
    const DEAF: usize = 40;
    let base = tempfile::tempdir().unwrap();
    let scene = Scene::with(&small_program(base.path())).await;
    run_ok(&scene.client, &scene.session, "print('x' * 1_000_000)").await;
    let gate = Gate::new("deaf").unwrap();
    let running = scene.client.submit_turn(&scene.session, &turn(gate.python())).await.unwrap();
    let held = within(PATIENCE, gate.reached()).await.unwrap();
    // Waiting replies take the other slots and keep them.
    let wait = request("GET", &scene.path(&format!("/turns/{}?wait_ms=60000", running.id)), b"");
    let output = request("GET", &scene.path("/output"), b"");
    let asking: Vec<_> = (0..FEW_DESCRIPTORS / 2)
        .map(|number| {
            let mut stream = scene.connect();
            stream.write_all(if number < DEAF { &output } else { &wait }).unwrap();
            stream
        })
        .collect();
    let began = Instant::now();
    within(UNREAD_WAIT + SERVED_WITHIN, async {
        let client = scene.node.client().await.unwrap();
        client.node_status().await.unwrap();
    })
    .await;
    eprintln!("served after {:?}", began.elapsed());
    assert!(began.elapsed() > UNREAD_WAIT / 2, "a client that reads slowly was cut off at once");
    drop((asking, held));
    scene.is_served().await;
}

#[tokio::test]
async fn contract_57_followers_leave_places_for_control_requests() {
    let base = tempfile::tempdir().unwrap();
    let scene = Scene::with(&small_program(base.path())).await;
    let gate = Gate::new("control").unwrap();
    let running = scene.client.submit_turn(&scene.session, &turn(gate.python())).await.unwrap();
    let held = within(PATIENCE, gate.reached()).await.unwrap();
    let (mut followers, mut refused) = (Vec::new(), 0);
    for _ in 0..FEW_DESCRIPTORS {
        let mut stream = scene.connect();
        scene.ask_to_follow(&mut stream);
        let head = head(&mut stream);
        if head.starts_with("HTTP/1.1 200") {
            followers.push(stream);
        } else {
            assert!(head.starts_with("HTTP/1.1 429"), "{head}");
            refused += 1;
        }
    }
    let places = FEW_DESCRIPTORS / 2;
    assert_eq!(followers.len(), places * 3 / 4, "{refused} were refused");
    // Waiting replies count among the connections that keep a slot, and no such slot is free: this request is
    // answered at once instead of waiting.
    let path = scene.path(&format!("/turns/{}?wait_ms=60000", running.id));
    let mut waiting = scene.connect();
    waiting.write_all(&request("GET", &path, b"")).unwrap();
    let (head, body) = answer(&mut waiting);
    assert!(head.starts_with("HTTP/1.1 200") && body.contains("\"running\""), "{head}{body}");
    let began = Instant::now();
    within(SERVED_WITHIN, async {
        let client = scene.node.client().await.unwrap();
        client.health().await.unwrap();
        client.interrupt(&scene.session).await.unwrap();
        client.close_session(&scene.session, CloseQuery { grace_ms: Some(0) }).await.unwrap();
    })
    .await;
    eprintln!("{} follow; served after {:?}", followers.len(), began.elapsed());
    drop(held);
}

#[tokio::test]
async fn contract_57_searches_wait_their_turn_and_too_many_are_refused() {
    const SEARCHES: usize = 120;
    let scene = Scene::new().await;
    run_ok(&scene.client, &scene.session, "for i in range(300): print('x' * 99_999)").await;
    let path = scene.path("/output/search?query=nowhere");
    let mut asking: Vec<_> = (0..SEARCHES).map(|_| scene.connect()).collect();
    for stream in &mut asking {
        stream.write_all(&request("GET", &path, b"")).unwrap();
    }
    let threads = scene.threads();
    let mut times = Vec::new();
    for _ in 0..20 {
        let began = Instant::now();
        scene.client.health().await.unwrap();
        times.push(began.elapsed());
    }
    let (mut found, mut refused) = (0, 0);
    for stream in &mut asking {
        let (head, body) = answer(stream);
        match &head[..12] {
            "HTTP/1.1 200" => found += 1,
            "HTTP/1.1 429" => {
                assert!(body.contains("\"overloaded\"") && body.contains("searches"), "{body}");
                assert!(body.contains("\"retryable\":true"), "{body}");
                refused += 1;
            }
            _ => panic!("{head}{body}"),
        }
    }
    eprintln!("{found} found, {refused} refused, {threads} threads; health p95 {:?}", p95(times));
    assert!(found >= 66 && refused > 0, "{found} found, {refused} refused");
    scene.is_served().await;
}

#[tokio::test]
async fn contract_57_waiting_code_of_all_sessions_together_is_bounded() {
    const CODE_BYTES: usize = 15_000_000;
    const RSS_BYTES_MAX: u64 = 420 * 1024 * 1024;
    let scene = Scene::new().await;
    let other = scene.node.session(&scene.client).await.unwrap().id;
    let gate = Gate::new("waiting").unwrap();
    let mut held = Vec::new();
    for session in [&scene.session, &other] {
        scene.client.submit_turn(session, &turn(gate.python())).await.unwrap();
        held.push(within(PATIENCE, gate.reached()).await.unwrap());
    }
    let rss = scene.rss();
    let code = format!("n = 1\n#{}", "c".repeat(CODE_BYTES));
    let (mut accepted, mut refused) = (0, 0);
    for number in 0..24 {
        let session = [&scene.session, &other][number % 2];
        let submit = named_turn(&format!("large{number}"), code.clone());
        match refusal(&scene.client, session, &submit).await {
            None => accepted += 1,
            Some(code) => {
                assert_eq!(code, ErrorCode::Overloaded);
                refused += 1;
            }
        }
    }
    let grown = scene.rss().saturating_sub(rss);
    eprintln!("{accepted} accepted, {refused} refused, {grown} bytes");
    assert!(accepted >= 16 && refused >= 4, "{accepted} accepted, {refused} refused");
    assert!(grown < RSS_BYTES_MAX, "the node grew by {grown} bytes");
    // Small turns are still accepted. Large turns are accepted again after the turns before them have run.
    assert_eq!(refusal(&scene.client, &other, &named_turn("small", "1")).await, None);
    drop(held);
    within(PATIENCE, scene.client.run_turn(&other, named_turn("last", "2"))).await.unwrap();
    within(PATIENCE, scene.client.run_turn(&scene.session, named_turn("last", "2"))).await.unwrap();
    assert_eq!(refusal(&scene.client, &other, &named_turn("again", code)).await, None);
}

/// Why a turn was refused, if it was. Sends the request once, because the client would retry.
async fn refusal(client: &Client, session: &SessionId, submit: &SubmitTurn) -> Option<ErrorCode> {
    let once = client.with_retry_for(Duration::ZERO);
    match within(PATIENCE, once.submit_turn(session, submit)).await {
        Ok(_) => None,
        Err(error @ ClientError::Api(_)) => error.api_code(),
        Err(error) => panic!("{error}"),
    }
}
