//! Contract line 68: no size of any input ends a node or a keeper. An input within a stated limit works. A
//! larger one is refused by name, and every other session continues.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use windlass_client::protocol::api::{CreateSession, SessionState};
use windlass_client::protocol::confinement::Isolation;
use windlass_client::protocol::event::{EndReason, EventKind};
use windlass_client::protocol::limits::{
    ENVIRONMENT_BYTES_MAX, FRAME_BYTES_MAX, HEADER_BYTES_MAX, VARIABLE_BYTES_MAX,
    WORKER_HEADER_BYTES_MAX,
};
use windlass_client::protocol::policy::PolicyRequest;
use windlass_client::protocol::{ErrorCode, Outcome, Seq, SessionId};
use windlass_client::{Client, ClientError};
use windlass_testkit::{
    PATIENCE, TestNode, odd_worker, outside_of_tmp, run, run_ok, wait_for_event, within,
};

const PROGRAM: &str = env!("CARGO_BIN_EXE_windlass");

/// A node, a client of it, and a session of another client.
struct World {
    node: TestNode,
    client: Client,
    bystander: SessionId,
    pid: u32,
}

impl World {
    async fn with_home(home: &Path, start: &str) -> Self {
        let builder = TestNode::builder(PROGRAM).env("HOME", home).env("WINDLASS_START", start);
        let node = builder.start().await.unwrap();
        if start == "pool" {
            node.await_environments().await.unwrap();
        }
        Self::of(node).await
    }

    async fn new() -> Self {
        Self::of(TestNode::start(PROGRAM).await.unwrap()).await
    }

    async fn of(node: TestNode) -> Self {
        let client = node.client().await.unwrap();
        let bystander = node.session(&client).await.unwrap().id;
        run_ok(&client, &bystander, "x = 5").await;
        let pid = node.pid();
        Self { node, client, bystander, pid }
    }

    /// The node is still the same process, and the other session still has its state.
    async fn unharmed(&self, what: &str) {
        assert_eq!(run_ok(&self.client, &self.bystander, "print(x)").await, "5\n", "{what}");
        assert_eq!(self.client.node_status().await.unwrap().pid, self.pid, "{what}");
        let keeper = self.client.session(&self.bystander).await.unwrap().keeper_pid.unwrap();
        assert!(Path::new(&format!("/proc/{keeper}")).exists(), "{what}");
    }

    async fn create(&self, create: &CreateSession) -> Result<SessionId, ClientError> {
        let made = within(PATIENCE, self.client.create_session(create)).await;
        made.map(|made| made.session.id)
    }

    /// The error code and message of a refused session.
    async fn refused(&self, create: &CreateSession) -> (Option<ErrorCode>, String) {
        let error = self.create(create).await.unwrap_err();
        (error.api_code(), error.to_string())
    }
}

fn home_of(entries: usize) -> tempfile::TempDir {
    let home = outside_of_tmp(env!("CARGO_TARGET_TMPDIR"));
    for number in 0..entries {
        let name = format!("an-entry-with-a-name-of-an-ordinary-length-{number:05}.txt");
        std::fs::write(home.path().join(name), "").unwrap();
    }
    home
}

fn with_env(values: impl IntoIterator<Item = (String, String)>) -> CreateSession {
    CreateSession { env: values.into_iter().collect::<BTreeMap<_, _>>(), ..TestNode::create() }
}

#[tokio::test]
async fn contract_68_a_home_of_any_size_keeps_no_node_from_starting() {
    for entries in [329, 5000] {
        let home = home_of(entries);
        for start in ["exec", "pool"] {
            let what = format!("{entries} entries, {start}");
            let world = World::with_home(home.path(), start).await;
            let session = world.create(&TestNode::create()).await.unwrap();
            let code = "import os; print(len(os.listdir(os.path.expanduser('~'))) > 0)";
            assert_eq!(run_ok(&world.client, &session, code).await, "True\n", "{what}");
            world.unharmed(&what).await;
        }
    }
}

#[tokio::test]
async fn contract_68_a_home_of_any_size_at_level_landlock() {
    // As many entries as level landlock names one by one: each is a rule of the plan.
    for entries in [4000, 5000] {
        let home = home_of(entries);
        let world = World::with_home(home.path(), "exec").await;
        let policy =
            PolicyRequest { isolation: Some(Isolation::Landlock), ..PolicyRequest::default() };
        let create = CreateSession { policy: Some(policy), ..TestNode::create() };
        let session = match world.create(&create).await {
            Err(error) if error.api_code() == Some(ErrorCode::NotEnforceable) => return,
            made => made.unwrap(),
        };
        assert_eq!(run_ok(&world.client, &session, "print(1)").await, "1\n");
        world.unharmed("landlock").await;
    }
}

/// Directories with paths of almost `bytes` bytes each.
fn deep(below: &Path, count: usize, bytes: usize) -> Vec<String> {
    let mut base = below.to_owned();
    while base.as_os_str().len() + 250 < bytes {
        base.push("d".repeat(200));
    }
    let made = |number| base.join(format!("{number:04}"));
    let paths: Vec<PathBuf> = (0..count).map(made).collect();
    for path in &paths {
        std::fs::create_dir_all(path).unwrap();
    }
    paths.iter().map(|path| path.to_str().unwrap().to_owned()).collect()
}

#[tokio::test]
async fn contract_68_a_plan_of_a_mebibyte_works() {
    let (place, home) = (outside_of_tmp(env!("CARGO_TARGET_TMPDIR")), home_of(400));
    let world = World::with_home(home.path(), "exec").await;
    // Each of the first entries is a mount and a rule of the plan, each of the others a mount.
    let writable = deep(&place.path().join("writable"), 250, 2200);
    let hidden = deep(&place.path().join("hidden"), 250, 2200);
    let all: usize = writable.iter().chain(&hidden).map(String::len).sum();
    assert!(all > 1_000_000, "{all} bytes of paths");
    let (first, last) = (writable[0].clone(), hidden[249].clone());
    let policy = PolicyRequest { writable, hidden, ..PolicyRequest::default() };
    let create = CreateSession { policy: Some(policy), ..TestNode::create() };
    let session = world.create(&create).await.unwrap();
    std::fs::write(Path::new(&first).join("seen"), "").unwrap();
    std::fs::write(Path::new(&last).join("secret"), "").unwrap();
    let code =
        format!("import os; print(os.listdir({first:?}), os.path.exists({last:?} + '/secret'))");
    assert_eq!(run_ok(&world.client, &session, &code).await, "['seen'] False\n");
    world.unharmed("a plan of a mebibyte").await;
    // A restart uses the same plan.
    within(PATIENCE, world.client.reset_session(&session)).await.unwrap();
    assert_eq!(run_ok(&world.client, &session, &code).await, "['seen'] False\n");
}

#[tokio::test]
async fn contract_68_a_policy_that_cannot_be_written_down_is_refused() {
    let world = World::new().await;
    let policy = PolicyRequest {
        hidden: vec![format!("/{}", "h".repeat(9_000_000))],
        ..PolicyRequest::default()
    };
    let (code, message) =
        world.refused(&CreateSession { policy: Some(policy), ..TestNode::create() }).await;
    assert_eq!(code, Some(ErrorCode::BadRequest), "{message}");
    assert!(message.contains("hidden") && message.contains("4096"), "{message}");
    world.unharmed("a path of nine million bytes").await;
}

#[tokio::test]
async fn contract_68_an_environment_works_up_to_its_limits_and_is_refused_past_them() {
    let world = World::new().await;
    let print = "import os; print(sum(len(v) for k, v in os.environ.items() if k[:3] == 'BIG'))";
    let values = |count: usize, bytes: usize| {
        with_env((0..count).map(|number| (format!("BIG{number}"), "v".repeat(bytes))))
    };
    // One of 70 KB, the longest allowed one, and a mebibyte in total.
    let longest = VARIABLE_BYTES_MAX - "BIG0=".len() - 1;
    for (count, bytes) in [(1, 70_000), (1, longest), (1024, 1024), (10, 100_000)] {
        let session = world.create(&values(count, bytes)).await.unwrap();
        let printed = run_ok(&world.client, &session, print).await;
        assert_eq!(printed, format!("{}\n", count * bytes), "{count} of {bytes} bytes");
    }
    for (count, bytes, named) in [
        (1, longest + 1, format!("\"BIG0\" has {} bytes", VARIABLE_BYTES_MAX + 1)),
        (1, 200_000, format!("over the limit of {VARIABLE_BYTES_MAX}")),
        (20, 100_000, format!("over the limit of {ENVIRONMENT_BYTES_MAX}")),
        (200, 100_000, format!("over the limit of {ENVIRONMENT_BYTES_MAX}")),
    ] {
        let (code, message) = world.refused(&values(count, bytes)).await;
        assert_eq!(code, Some(ErrorCode::MessageTooLarge), "{count} of {bytes}: {message}");
        assert!(message.contains(&named), "{count} of {bytes}: {message}");
    }
    for (name, value) in [("A=B", "v"), ("", "v"), ("A", "v\0w")] {
        let (code, _) = world.refused(&with_env([(name.to_owned(), value.to_owned())])).await;
        assert_eq!(code, Some(ErrorCode::BadRequest), "{name:?}");
    }
    world.unharmed("environments").await;
}

#[tokio::test]
async fn contract_68_a_name_that_is_not_utf8_keeps_no_session_from_starting() {
    use std::os::unix::ffi::OsStrExt;
    let home = home_of(3);
    std::fs::write(home.path().join(std::ffi::OsStr::from_bytes(b"caf\xe9.txt")), "").unwrap();
    let work = home.path().join("project");
    let not_text = home.path().join(std::ffi::OsStr::from_bytes(b"w\xe9rk"));
    let link = home.path().join("link");
    std::fs::create_dir(&work).unwrap();
    std::fs::create_dir(&not_text).unwrap();
    std::os::unix::fs::symlink(&not_text, &link).unwrap();
    let world = World::with_home(home.path(), "exec").await;
    let in_directory = |path: &Path| CreateSession {
        workspace: Some(path.to_str().unwrap().to_owned()),
        ..TestNode::create()
    };
    // A workspace is recorded by its real path, as text.
    let (code, message) = world.refused(&in_directory(&link)).await;
    assert_eq!(code, Some(ErrorCode::BadRequest), "{message}");
    assert!(message.contains("not UTF-8"), "{message}");
    let session = world.create(&in_directory(&work)).await.unwrap();
    let code =
        "open('made', 'w').close(); import os; print(os.listdir(b'..').count(b'caf\\xe9.txt'))";
    assert_eq!(run_ok(&world.client, &session, code).await, "1\n");
    assert!(work.join("made").exists());
    world.unharmed("a name that is no text").await;
}

/// Sends what the turn tells it to. `long` builds a header of an exact length from one field.
const EXTREME: &str = r#"
def long(kind, field, size, body=b"", **fields):
    short = json.dumps({"kind": kind, **fields, field: ""}).encode()
    header = json.dumps({"kind": kind, **fields, field: "x" * (size - len(short))}).encode()
    assert len(header) == size
    return raw(header, body)

ready()
for turn, code in turns():
    send(out(turn, "before"), eval(code), idle(turn))
"#;

#[tokio::test]
async fn contract_68_a_header_of_any_size_ends_no_keeper() {
    let world = World::new().await;
    let fields = [
        ("stdin_wait", "prompt", "secret=False"),
        ("display", "mime", "more=False"),
        ("display", "id", "mime='text/plain'"),
        ("tool_call", "unknown", "call=1, name='t'"),
        ("idle", "unknown", "outcome='ok'"),
        ("session_end", "reason", "more=False"),
        ("output", "stream", "background=False"),
        ("forked", "reason", "ok=False"),
        ("no_such_kind", "field", "other=1"),
    ];
    for (kind, field, others) in fields {
        let around = [HEADER_BYTES_MAX, HEADER_BYTES_MAX - 1, HEADER_BYTES_MAX + 1];
        for size in around.into_iter().take(if kind == "stdin_wait" { 3 } else { 1 }) {
            let what = format!("{kind}, {field}, {size} bytes");
            let create = odd_worker(world.node.base(), "extreme", EXTREME).unwrap();
            let session = world.create(&create).await.unwrap();
            let code = format!("long({kind:?}, {field:?}, {size}, turn=turn, {others})");
            let turn = run(&world.client, &session, &code).await;
            assert_eq!(turn.outcome, Some(Outcome::Lost), "{what}");
            assert_eq!(turn.error.unwrap().code, Some(ErrorCode::ProtocolError), "{what}");
            assert_eq!(turn.output.text, "before", "{what}");
            let over = wait_for_event(&world.client, &session, Seq(0), PATIENCE, |item| {
                matches!(item.event.kind, EventKind::SessionEnded { .. })
            });
            let ended = over.await.unwrap().event.kind;
            let EventKind::SessionEnded { reason, .. } = ended else { panic!("{ended:?}") };
            assert_eq!(reason, EndReason::ProtocolError, "{what}");
        }
    }
    world.unharmed("long headers").await;
}

#[tokio::test]
async fn contract_68_the_longest_header_and_frame_are_passed_on() {
    let world = World::new().await;
    let create = odd_worker(world.node.base(), "extreme", EXTREME).unwrap();
    let session = world.create(&create).await.unwrap();
    let longest = WORKER_HEADER_BYTES_MAX;
    let body = FRAME_BYTES_MAX - 4 - longest;
    for code in [
        format!("long('display', 'mime', {longest}, b'x' * {body}, turn=turn)"),
        format!("long('display', 'id', {longest}, b'x' * {body}, turn=turn, mime='a/b')"),
        format!("long('output', 'unknown', {longest}, b'x' * {body}, turn=turn, stream='stdout')"),
        format!("long('no_such_kind', 'field', {longest}, b'x' * {body}, turn=turn)"),
        // An unexpected message: an error text about it may repeat its long content.
        "frame('forked', turn=turn, ok=False, reason='x' * 60_000)".to_owned(),
    ] {
        let turn = run(&world.client, &session, &code).await;
        assert_eq!(turn.outcome, Some(Outcome::Ok), "{code}: {:?}", turn.error);
    }
    let state = world.client.session(&session).await.unwrap().state;
    assert_eq!(state, SessionState::Idle);
    world.unharmed("the longest header").await;
}

#[tokio::test]
async fn contract_68_a_first_message_of_any_size_ends_its_session_alone() {
    const FIRST: &str = r#"
def first(size):
    short = json.dumps(dict(kind="worker_ready", protocol=1, worker="")).encode()
    name = "x" * (size - len(short))
    send(raw(json.dumps(dict(kind="worker_ready", protocol=1, worker=name)).encode()))
"#;
    let world = World::new().await;
    for size in [WORKER_HEADER_BYTES_MAX + 1, HEADER_BYTES_MAX, HEADER_BYTES_MAX + 1] {
        let script = format!("{FIRST}\nfirst({size})\nfor turn, code in turns():\n    pass\n");
        let create = odd_worker(world.node.base(), "first", &script).unwrap();
        let session = world.create(&create).await.unwrap();
        let over = wait_for_event(&world.client, &session, Seq(0), PATIENCE, |item| {
            matches!(item.event.kind, EventKind::SessionEnded { .. })
        });
        let ended = over.await.unwrap().event.kind;
        let EventKind::SessionEnded { reason, .. } = ended else { panic!("{ended:?}") };
        assert_eq!(reason, EndReason::ProtocolError, "{size}");
    }
    world.unharmed("first words").await;
}
