//! Contract lines 37, 53 and 57, edge cases of single requests: any range can be paged through, a body may
//! arrive late, every refusal has a code, and a missing resource is named.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Instant;

use rustix::process::{Pid, Resource, Rlimit, getrlimit, prlimit};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;
use windlass_client::Client;
use windlass_client::protocol::api::{
    CloseQuery, EventsQuery, ForkSession, OutputQuery, TurnQuery,
};
use windlass_client::protocol::policy::Limits;
use windlass_client::protocol::{Outcome, SessionId};
use windlass_testkit::raw_http::{RawHttp, request};
use windlass_testkit::{Gate, PATIENCE, TestNode, processes, run, run_ok, skip, turn, within};

const PROGRAM: &str = env!("CARGO_BIN_EXE_windlass");

/// Limit for the number of pages; the output has fewer.
const PAGES_MAX: usize = 4;

async fn scene() -> (TestNode, Client, SessionId) {
    let node = TestNode::start(PROGRAM).await.unwrap();
    let client = node.client().await.unwrap();
    let session = node.session(&client).await.unwrap().id;
    (node, client, session)
}

#[tokio::test]
async fn contract_37_any_range_of_an_output_can_be_paged_to_its_end() {
    let (_node, client, session) = scene().await;
    run_ok(&client, &session, "print('before')").await;
    let second = run(&client, &session, "print('x' * 1_500_000)").await;
    for to in [None, Some(u64::MAX), Some(u64::MAX - 1), Some(1 << 63)] {
        for turn in [None, Some(second.id.to_string())] {
            let (mut from, mut pages, mut bytes) = (0, 0, 0);
            loop {
                let query = OutputQuery { turn: turn.clone(), from: Some(from), to, tail: None };
                let page = within(PATIENCE, client.output(&session, &query)).await.unwrap();
                bytes += page.bytes.len() as u64;
                pages += 1;
                if page.next >= page.total {
                    assert_eq!(bytes, page.total, "to {to:?} of turn {turn:?}");
                    break;
                }
                assert!(pages < PAGES_MAX, "to {to:?} of turn {turn:?} does not end: {page:?}");
                from = page.next;
            }
        }
    }
    let past = OutputQuery { turn: None, from: Some(u64::MAX), to: Some(u64::MAX), tail: None };
    let page = within(PATIENCE, client.output(&session, &past)).await.unwrap();
    assert!(page.bytes.is_empty() && page.next == page.total, "{page:?}");
    let query = EventsQuery { after: u64::MAX, ..EventsQuery::default() };
    let page = within(PATIENCE, client.events_page(&session, query)).await.unwrap();
    assert!(page.events.is_empty());
}

#[tokio::test]
async fn contract_57_a_late_body_does_not_break_the_connection() {
    let (node, client, session) = scene().await;
    let gate = Gate::new("late").unwrap();
    let body = br#"{"why": "not asked for"}"#;
    let at = |rest: &str| format!("/v1/sessions/{session}{rest}");
    let mut http = RawHttp::connect(&node.dirs().socket()).await.unwrap();
    for round in 0..20 {
        let running = client.submit_turn(&session, &turn(gate.python())).await.unwrap();
        let held = within(PATIENCE, gate.reached()).await.unwrap();
        let whole = request("POST", &at("/interrupt"), body);
        http.write(&whole[..whole.len() - body.len()]).await.unwrap();
        // The handler acts before the body has arrived.
        let query = TurnQuery { wait_ms: 20_000, ..TurnQuery::default() };
        let ended = within(PATIENCE, client.turn(&session, &running.id, query)).await.unwrap();
        assert_eq!(ended.outcome, Some(Outcome::Interrupted), "round {round}");
        http.write(body).await.unwrap();
        let (status, answer) = within(PATIENCE, http.answer()).await.unwrap();
        assert_eq!(status, 200, "round {round}: {answer}");
        drop(held);
    }
    for (method, path, expected) in [
        ("GET", "/v1/health".to_owned(), 200),
        ("GET", at(""), 200),
        ("POST", at("/reset"), 200),
        ("POST", "/v1/nothing".to_owned(), 404),
        ("PATCH", at(""), 405),
        ("POST", at("/turns/%ff/interrupt"), 400),
        ("DELETE", at("/files/none"), 404),
        ("DELETE", at(""), 200),
    ] {
        let whole = request(method, &path, body);
        http.write(&whole[..whole.len() - body.len()]).await.unwrap();
        // The node has read the head by the time it has answered another client.
        for _ in 0..3 {
            client.health().await.unwrap();
        }
        http.write(body).await.unwrap();
        let (status, answer) = within(PATIENCE, http.answer()).await.unwrap();
        assert_eq!(status, expected, "{method} {path}: {answer}");
    }
    let session = client.session(&session).await.unwrap();
    assert!(session.ended.is_some(), "{session:?}");
}

#[tokio::test]
async fn contract_57_every_refusal_has_a_code_and_a_remedy() {
    let (node, _client, session) = scene().await;
    let mut http = RawHttp::connect(&node.dirs().socket()).await.unwrap();
    let at = |rest: &str| format!("/v1/sessions/{session}{rest}");
    for (method, path) in [
        ("GET", "/v1/sessions/%ff".to_owned()),
        ("GET", "/v1/sessions/%ff/events".to_owned()),
        ("GET", "/v1/sessions/%ff/tools".to_owned()),
        ("GET", "/v1/sessions/%ff/egress".to_owned()),
        ("POST", "/v1/sessions/%ff/turns".to_owned()),
        ("POST", "/v1/sessions/%c3%28/fork".to_owned()),
        ("GET", at("/turns/%ff")),
        ("POST", at("/turns/%ff/interrupt")),
        ("POST", at("/turns/%ff/input")),
        ("GET", at("/files/%ff")),
        ("PUT", at("/files/%ff")),
        ("DELETE", at("/files/a/%ff")),
        ("GET", at("/displays/one")),
        ("GET", at("/displays/18446744073709551616")),
        ("GET", at("/output?from=-1")),
        ("GET", at("/events?after=x")),
        ("GET", at("/output/search")),
        ("GET", "/v1/environments?wait_ms=x".to_owned()),
        ("GET", "/v1/sessions?all=x".to_owned()),
        ("GET", "/v1/tools/host?session=x".to_owned()),
    ] {
        http.write(&request(method, &path, b"")).await.unwrap();
        let (status, answer) = within(PATIENCE, http.answer()).await.unwrap();
        assert!((400..500).contains(&status), "{method} {path}: {status} {answer}");
        for field in ["code", "message", "remedy"] {
            let text = answer[field].as_str().unwrap_or_default();
            assert!(!text.is_empty(), "{method} {path} has no {field}: {answer}");
        }
    }
}

#[tokio::test]
async fn contract_57_a_wrong_method_is_told_with_the_right_ones_and_an_unknown_path_is_not_found() {
    let (node, _client, session) = scene().await;
    let turns = format!("/v1/sessions/{session}/turns");
    for (method, path, status, code, allow) in [
        ("DELETE", "/v1/health", 405, "method_not_allowed", Some("GET,HEAD")),
        ("PATCH", "/v1/sessions", 405, "method_not_allowed", Some("GET,HEAD,POST")),
        ("GET", &*turns, 405, "method_not_allowed", Some("POST")),
        ("GET", "/v1/node/stop", 405, "method_not_allowed", Some("POST")),
        ("GET", "/v1/nothing", 404, "not_found", None),
        ("GET", "/", 404, "not_found", None),
    ] {
        let mut stream = UnixStream::connect(node.dirs().socket()).await.unwrap();
        let request =
            format!("{method} {path} HTTP/1.1\r\nhost: node\r\nconnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut answer = String::new();
        within(PATIENCE, stream.read_to_string(&mut answer)).await.unwrap();
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        assert!(head.starts_with(&format!("HTTP/1.1 {status} ")), "{method} {path}: {answer}");
        let allowed = head.lines().find_map(|line| line.strip_prefix("allow: ")).map(|methods| {
            let mut methods: Vec<&str> = methods.split(',').map(str::trim).collect();
            methods.sort_unstable();
            methods.join(",")
        });
        assert_eq!(allowed.as_deref(), allow, "{method} {path}: {head}");
        let body: serde_json::Value = serde_json::from_str(body).unwrap();
        assert_eq!(body["code"], code, "{method} {path}");
        assert!(body["remedy"].as_str().is_some_and(|text| !text.is_empty()), "{body}");
    }
}

#[tokio::test]
async fn contract_53_the_largest_limits_that_can_be_asked_for_are_taken() {
    let node = TestNode::start(PROGRAM).await.unwrap();
    let client = node.client().await.unwrap();
    let mut create = TestNode::create();
    let mut policy = create.policy.take().unwrap();
    policy.limits = Limits {
        processes: Some(u32::MAX),
        cpu_percent: Some(u32::MAX),
        memory_bytes: Some(u64::MAX),
        ..Limits::default()
    };
    create.policy = Some(policy);
    let session = client.create_session(&create).await.unwrap().session.id;
    assert_eq!(run_ok(&client, &session, "print(6 * 7)").await, "42\n");
}

/// Number of descriptors that every process has from its start.
const STANDARD_STREAMS: u64 = 3;

#[tokio::test]
async fn contract_57_a_session_without_free_descriptors_is_refused_as_overloaded() {
    let (node, client, session) = scene().await;
    let pid = Pid::from_raw(node.pid().cast_signed());
    let limit = prlimit(pid, Resource::Nofile, getrlimit(Resource::Nofile)).unwrap();
    prlimit(pid, Resource::Nofile, limit).unwrap();
    let body = serde_json::to_vec(&TestNode::create()).unwrap();
    let mut http = RawHttp::connect(&node.dirs().socket()).await.unwrap();
    // Makes sure that the node has accepted the connection.
    http.write(&request("GET", "/v1/health", b"")).await.unwrap();
    within(PATIENCE, http.answer()).await.unwrap();
    let (mut refused, mut made) = (0, 0);
    for room in 0..24 {
        let open = processes::descriptors(node.pid()).unwrap() as u64;
        let low = Rlimit { current: Some(open + room), maximum: limit.maximum };
        prlimit(pid, Resource::Nofile, low).unwrap();
        http.write(&request("POST", "/v1/sessions", &body)).await.unwrap();
        let (status, answer) = within(PATIENCE, http.answer()).await.unwrap();
        match status {
            201 => made += 1,
            429 => {
                assert_eq!(answer["code"], "overloaded", "{answer}");
                assert_eq!(answer["retryable"], true, "{answer}");
                let message = answer["message"].as_str().unwrap();
                assert!(message.contains("descriptors"), "{answer}");
                refused += 1;
            }
            _ => panic!("with {room} descriptors: {status} {answer}"),
        }
    }
    // Files too: a file that cannot be opened is refused, or is written once there are free descriptors. The
    // node has all numbers below the low limit open, and closes none of them.
    for (current, expected) in [(Some(STANDARD_STREAMS), 429), (limit.current, 200)] {
        let low = Rlimit { current, maximum: limit.maximum };
        prlimit(pid, Resource::Nofile, low).unwrap();
        let path = format!("/v1/sessions/{session}/files/x");
        http.write(&request("PUT", &path, b"1")).await.unwrap();
        let (status, answer) = within(PATIENCE, http.answer()).await.unwrap();
        assert_eq!(status, expected, "{answer}");
    }
    prlimit(pid, Resource::Nofile, limit).unwrap();
    eprintln!("{refused} refused, {made} made");
    assert!(refused > 0, "none was refused");
    let other = node.session(&client).await.unwrap().id;
    for session in [&session, &other] {
        assert_eq!(run_ok(&client, session, "print(6 * 7)").await, "42\n");
    }
}

#[tokio::test]
async fn contract_53_no_cgroup_of_a_family_stays_when_its_node_was_killed() {
    let (mut node, client, first) = scene().await;
    run_ok(&client, &first, "x = 1").await;
    let wanted = ForkSession::default();
    let twin = within(PATIENCE, client.fork_session(&first, &wanted)).await.unwrap().session.id;
    run_ok(&client, &twin, "x += 1").await;
    let groups = cgroups_of(&[&first, &twin]);
    if groups.is_empty() {
        return skip("no cgroups can be made here");
    }
    let close = CloseQuery { grace_ms: Some(0) };
    within(PATIENCE, client.close_session(&first, close)).await.unwrap();
    node.kill9();
    node.restart().await.unwrap();
    let client = node.client().await.unwrap();
    assert_eq!(run_ok(&client, &twin, "print(x)").await, "2\n");
    within(PATIENCE, client.close_session(&twin, close)).await.unwrap();
    let until = Instant::now() + PATIENCE;
    while let Some(left) = groups.iter().find(|dir| dir.exists()) {
        // The node learns when the last process has exited; meanwhile it serves.
        client.health().await.unwrap();
        assert!(Instant::now() < until, "{} is left", left.display());
    }
}

/// The cgroups named after these sessions, in every hierarchy.
fn cgroups_of(sessions: &[&SessionId]) -> Vec<PathBuf> {
    fn walk(dir: &Path, depth: usize, wanted: &dyn Fn(&str) -> bool, found: &mut Vec<PathBuf>) {
        for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
            let is_dir = entry.file_type().is_ok_and(|kind| kind.is_dir());
            if is_dir && entry.file_name().to_str().is_some_and(wanted) {
                found.push(entry.path());
            } else if is_dir && depth > 0 {
                walk(&entry.path(), depth - 1, wanted, found);
            }
        }
    }
    let wanted = |name: &str| {
        name.starts_with("windlass-")
            && sessions.iter().any(|session| name.ends_with(&format!("-{session}")))
    };
    let mut found = Vec::new();
    walk(Path::new("/sys/fs/cgroup"), 8, &wanted, &mut found);
    found
}
