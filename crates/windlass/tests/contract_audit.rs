//! Contract line 112: the audit log shows every change and access; a removed, changed or reordered line is found. Clients
//! act on one real node over HTTP, and `windlass audit --verify` checks copies of its log.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::collections::BTreeSet;
use std::fs;
use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use windlass_audit::{AuditFilter, AuditRecord, find, verify};
use windlass_client::protocol::TokenName;
use windlass_client::{NamedTokens, NewToken, Token, TokenScope};
use windlass_testkit::raw_http::{RawHttp, request};
use windlass_testkit::{PATIENCE, TestNode, eventually};

const PROGRAM: &str = env!("CARGO_BIN_EXE_windlass");

/// Texts that clients send, and that the log must not have.
const CODE: &str = "read answer; echo unrecorded-code-$answer";
const INPUT: &str = "unrecorded-input";
const FILE: &str = "unrecorded-content";
const SECRET: &str = "unrecorded-secret-value";

/// A client of the TCP door.
struct DoorClient {
    address: String,
    token: String,
}

impl DoorClient {
    /// Sends a request on a new connection. Returns the status, and the body if it is JSON.
    fn ask(&self, method: &str, path: &str, body: &str) -> (u16, Value) {
        let mut stream = TcpStream::connect(&self.address).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        let (host, token, length) = (&self.address, &self.token, body.len());
        let head = format!(
            "{method} {path} HTTP/1.1\r\nhost: {host}\r\nauthorization: Bearer {token}\r\nuser-agent: tester/1\r\n\
             connection: close\r\ncontent-length: {length}\r\n\r\n{body}"
        );
        stream.write_all(head.as_bytes()).unwrap();
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).unwrap();
        let answer = String::from_utf8_lossy(&answer).into_owned();
        let status = answer.split(' ').nth(1).and_then(|status| status.parse().ok());
        let (_, body) = answer.split_once("\r\n\r\n").unwrap_or_default();
        (status.unwrap(), serde_json::from_str(body).unwrap_or_default())
    }

    /// A request that must succeed.
    fn done(&self, method: &str, path: &str, body: &str) -> Value {
        let (status, answer) = self.ask(method, path, body);
        assert!((200..300).contains(&status), "{method} {path}: {status} {answer}");
        answer
    }
}

/// A node with a TCP door, and a client with the node's own token.
async fn start() -> (TestNode, DoorClient) {
    let node = TestNode::builder(PROGRAM).arg("--listen").arg("127.0.0.1:0");
    let node = node.start().await.unwrap();
    let client = door_client(&node).await;
    (node, client)
}

async fn door_client(node: &TestNode) -> DoorClient {
    let status = node.client().await.unwrap().node_status().await.unwrap();
    let token = Token::read(&node.dirs().token()).unwrap().as_str().to_owned();
    DoorClient { address: status.listen.unwrap(), token }
}

fn log_dir(node: &TestNode) -> PathBuf {
    node.dirs().state.join(windlass_audit::DIRECTORY)
}

fn records(dir: &Path) -> Vec<AuditRecord> {
    find(dir, &AuditFilter { limit: usize::MAX, ..AuditFilter::default() }).unwrap().records
}

/// The records, once one of them is of this act.
async fn records_with(dir: &Path, did: &str) -> Vec<AuditRecord> {
    eventually(PATIENCE, async || {
        let all = records(dir);
        if all.iter().any(|record| record.did == did) { Ok(all) } else { Err(all) }
    })
    .await
}

/// The first record of an act.
fn first<'r>(all: &'r [AuditRecord], did: &str) -> &'r AuditRecord {
    let found = all.iter().find(|record| record.did == did);
    found.unwrap_or_else(|| panic!("there is no record of {did}: {all:?}"))
}

/// Does one of each thing that a client can do to a session.
fn use_session(client: &DoorClient) {
    client.done("POST", "/v1/sessions", &json!({"id": "a", "worker": "shell"}).to_string());
    let turn = json!({"id": "t1", "code": CODE, "wait_ms": 30_000}).to_string();
    let turn = client.done("POST", "/v1/sessions/a/turns", &turn);
    assert!(turn["stdin_wait"].is_object(), "{turn}");
    let input = json!({"text": format!("{INPUT}\n")}).to_string();
    client.done("POST", "/v1/sessions/a/turns/t1/input", &input);
    client.done("GET", "/v1/sessions/a/turns/t1?wait_ms=30000", "");
    let turn = json!({"id": "t2", "code": "sleep 600"}).to_string();
    client.done("POST", "/v1/sessions/a/turns", &turn);
    client.done("POST", "/v1/sessions/a/turns/t2/interrupt", "");
    client.done("GET", "/v1/sessions/a/turns/t2?wait_ms=30000", "");
    client.done("PUT", "/v1/sessions/a/files/dir/x.txt", FILE);
    client.done("GET", "/v1/sessions/a/files/dir/x.txt", "");
    client.done("DELETE", "/v1/sessions/a/files/dir/x.txt", "");
    client.done("POST", "/v1/sessions/a/reset", "");
    // Not every kind of worker can fork: the attempt is recorded in any case.
    client.ask("POST", "/v1/sessions/a/fork", "");
    client.done("DELETE", "/v1/sessions/a", "");
}

/// Does what a client can do to the node.
fn use_node(client: &DoorClient) {
    client.done("PUT", "/v1/secrets/KEY", SECRET);
    client.done("DELETE", "/v1/secrets/KEY", "");
    client.done("POST", "/v1/console/logins", "");
    client.done("POST", "/v1/node/prune", &json!({"dry_run": true}).to_string());
    client.done("POST", "/v1/node/doctor", "");
    assert_eq!(client.ask("DELETE", "/v1/environments/none", "").0, 404);
}

/// Tries what is not allowed, with a token that only reads and with one that is unknown.
fn be_refused(node: &TestNode, client: &DoorClient) {
    let name = TokenName::parse("viewer").unwrap();
    let (scope, tenant, created_at_ms) = (TokenScope::Read, None, 0);
    let new = NewToken { name, scope, tenant, created_at_ms, expires_at_ms: None };
    let token = NamedTokens::create(&node.dirs().named_tokens(), new).unwrap();
    let with = |token: &str| DoorClient { address: client.address.clone(), token: token.into() };
    assert_eq!(with(token.as_str()).ask("POST", "/v1/sessions", "{}").0, 403);
    assert_eq!(with(&"0".repeat(64)).ask("GET", "/v1/sessions", "").0, 401);
}

#[tokio::test]
async fn contract_112_every_change_and_access_is_in_the_log() {
    let (node, client) = start().await;
    use_session(&client);
    use_node(&client);
    be_refused(&node, &client);
    client.done("POST", "/v1/node/stop", &json!({"sessions": "end"}).to_string());
    let dir = log_dir(&node);
    let all = records_with(&dir, "node.end").await;
    let acts: BTreeSet<&str> = all.iter().map(|record| record.did.as_str()).collect();
    for did in [
        "console.offer",
        "environment.remove",
        "file.put",
        "file.read",
        "file.remove",
        "node.doctor",
        "node.end",
        "node.prune",
        "node.start",
        "node.stop",
        "request.refuse",
        "secret.remove",
        "secret.set",
        "session.close",
        "session.create",
        "session.end",
        "session.fork",
        "session.reset",
        "token.create",
        "turn.input",
        "turn.interrupt",
        "turn.submit",
    ] {
        assert!(acts.contains(did), "no record of {did}: {acts:?}");
    }
    check_details(&all);
    for file in fs::read_dir(&dir).unwrap() {
        let text = fs::read_to_string(file.unwrap().path()).unwrap();
        for unrecorded in [CODE, INPUT, FILE, SECRET, &client.token] {
            assert!(!text.contains(unrecorded), "the log has {unrecorded:?}");
        }
    }
    verify(&dir, None).unwrap();
}

/// Checks who did what, and what is told of it.
fn check_details(all: &[AuditRecord]) {
    let created = first(all, "session.create");
    assert_eq!(created.session.as_deref(), Some("a"));
    assert_eq!((&created.who["door"], &created.who["token"]), (&json!("tcp"), &json!("node")));
    assert_eq!(created.who["client"], "tester/1");
    assert!(created.who["address"].as_str().unwrap().starts_with("127.0.0.1:"));
    assert_eq!(created.what["kind"], "shell");
    let submitted = first(all, "turn.submit");
    assert_eq!((&submitted.what["turn"], &submitted.what["id"]), (&json!(1), &json!("t1")));
    assert_eq!(submitted.what["code_bytes"], CODE.len());
    assert_eq!(submitted.what["code_sha256"].as_str().unwrap().len(), 64);
    assert_eq!(first(all, "turn.input").what["bytes"], INPUT.len() + 1);
    let put = first(all, "file.put");
    assert_eq!((&put.what["path"], &put.what["bytes"]), (&json!("dir/x.txt"), &json!(FILE.len())));
    assert_eq!(first(all, "secret.set").what["name"], "KEY");
    assert_eq!(first(all, "environment.remove").what["refused"], "not_found");
    assert_eq!(first(all, "session.end").what["reason"], "closed");
    assert_eq!(first(all, "session.end").who["door"], "node");
    let refused = all.iter().find(|one| one.what.get("refused") == Some(&json!("forbidden")));
    assert_eq!(refused.unwrap().who["token"], "viewer");
    let unknown = first(all, "request.refuse");
    assert_eq!(
        (&unknown.what["refused"], unknown.who.get("token")),
        (&json!("unauthorized"), None)
    );
}

/// Runs `windlass audit` for a state directory. Returns the exit code and what it printed.
fn audit(node: &TestNode, state: &Path, args: &[&str]) -> (Option<i32>, String) {
    let args: Vec<&str> = ["audit"].iter().chain(args).copied().collect();
    let output = node.command(&args).env("WINDLASS_STATE_DIR", state).output().unwrap();
    let printed = [output.stdout, output.stderr].concat();
    (output.status.code(), String::from_utf8_lossy(&printed).into_owned())
}

/// A state directory whose log has these lines.
fn state_with(lines: &[String]) -> tempfile::TempDir {
    let state = tempfile::tempdir().unwrap();
    let dir = state.path().join(windlass_audit::DIRECTORY);
    fs::create_dir(&dir).unwrap();
    fs::write(dir.join("audit-1.jsonl"), lines.concat()).unwrap();
    state
}

#[tokio::test]
async fn contract_112_a_removed_changed_or_reordered_line_is_found() {
    let (mut node, client) = start().await;
    use_node(&client);
    records_with(&log_dir(&node), "environment.remove").await;
    node.kill9();
    let text = fs::read_to_string(log_dir(&node).join("audit-1.jsonl")).unwrap();
    let whole: Vec<String> = text.split_inclusive('\n').map(str::to_owned).collect();
    assert!(whole.len() > 5, "{text}");
    let (code, head) = audit(&node, &node.dirs().state, &["--head"]);
    let head = head.trim();
    assert_eq!(code, Some(0), "{head}");

    let changed = |change: &dyn Fn(&mut Vec<String>)| {
        let mut lines = whole.clone();
        change(&mut lines);
        state_with(&lines)
    };
    let with_anchor = ["--verify", "--anchor", head];
    let unchanged = changed(&|_| {});
    for args in [&["--verify"][..], &with_anchor] {
        let (code, printed) = audit(&node, unchanged.path(), args);
        assert_eq!(code, Some(0), "{printed}");
    }
    let last = whole.len() - 1;
    let act = |lines: &mut Vec<String>| lines[2] = lines[2].replacen("secret", "sekret", 1);
    for (name, state, place) in [
        ("changed", changed(&act), "line 3: the line was changed"),
        ("removed", changed(&|lines| drop(lines.remove(1))), "line 2: record 2 is missing"),
        ("first removed", changed(&|lines| drop(lines.remove(0))), "line 1: by its name"),
        ("reordered", changed(&|lines| lines.swap(1, 2)), "line 2: record 2 is missing"),
        ("repeated", changed(&|lines| lines.insert(1, lines[0].clone())), "line 2: record 2"),
        ("torn", changed(&|lines| lines[last].truncate(20)), "the last line is incomplete"),
    ] {
        let (code, printed) = audit(&node, state.path(), &["--verify"]);
        assert_eq!(code, Some(1), "{name}: {printed}");
        assert!(printed.contains(place), "{name}: {printed}");
    }
    // A chain does not show that its end is missing. The anchor does.
    let cut = changed(&|lines| lines.truncate(3));
    assert_eq!(audit(&node, cut.path(), &["--verify"]).0, Some(0));
    let (code, printed) = audit(&node, cut.path(), &with_anchor);
    assert_eq!(code, Some(1), "{printed}");
    assert!(printed.contains("the end was cut off"), "{printed}");
}

#[tokio::test]
async fn contract_112_the_chain_goes_on_after_a_node_was_killed_while_it_wrote() {
    let (mut node, _) = start().await;
    let dir = log_dir(&node);
    for round in 1..=3 {
        let before = records(&dir).len();
        let socket = node.client().await.unwrap().node_status().await.unwrap().socket.unwrap();
        let mut flood = RawHttp::connect(Path::new(&socket)).await.unwrap();
        let requests = request("DELETE", "/v1/secrets/NONE", b"").repeat(5000);
        // The node takes requests as long as it can send answers. Nobody reads these.
        let flooding = tokio::spawn(async move { flood.write(&requests).await });
        eventually(PATIENCE, async || match records(&dir).len() {
            count if count >= before + 100 => Ok(()),
            count => Err(count),
        })
        .await;
        node.kill9();
        flooding.abort();
        node.restart().await.unwrap();
        let starts = |all: &[AuditRecord]| all.iter().filter(|one| one.did == "node.start").count();
        let all = eventually(PATIENCE, async || {
            let all = records(&dir);
            if starts(&all) > round { Ok(all) } else { Err(all.len()) }
        })
        .await;
        let numbers: Vec<u64> = all.iter().map(|record| record.seq).collect();
        assert_eq!(numbers, (1..=all.len() as u64).collect::<Vec<_>>());
        let (code, printed) = audit(&node, &node.dirs().state, &["--verify"]);
        assert_eq!(code, Some(0), "{printed}");
    }
}

#[tokio::test]
async fn contract_112_a_client_of_the_socket_is_told_by_its_user_and_process() {
    let (node, client) = start().await;
    let socket = node.client().await.unwrap();
    let session = node.session(&socket).await.unwrap();
    let all = records_with(&log_dir(&node), "session.create").await;
    let created = first(&all, "session.create");
    assert_eq!(created.session.as_deref(), Some(session.id.as_str()));
    assert_eq!(created.who["door"], "socket");
    assert_eq!(created.who["pid"], std::process::id());
    let uid = rustix::process::geteuid().as_raw();
    assert_eq!(created.who["uid"], uid);
    assert!(created.what["policy"].is_object(), "{created:?}");
    let (code, printed) = audit(&node, &node.dirs().state, &["--did", "session", "--json"]);
    assert_eq!(code, Some(0), "{printed}");
    let shown: AuditRecord = serde_json::from_str(printed.lines().next().unwrap()).unwrap();
    assert_eq!(&shown, created);
    // The command reads files of this machine only.
    let url = format!("http://{}", client.address);
    let refused = node.command(&["audit"]).env("WINDLASS_URL", url).output().unwrap();
    assert_eq!(refused.status.code(), Some(1));
}
