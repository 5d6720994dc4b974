//! Contract line 76: a turn that fails because of the policy says which control, what was tried and which option
//! allows it. An error that the policy does not cause says nothing of the kind.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::process::Command;

use serde_json::json;
use windlass_client::Client;
use windlass_client::protocol::api::{CreateSession, Turn};
use windlass_client::protocol::confinement::{Control, Isolation};
use windlass_client::protocol::environments::ZygoteState;
use windlass_client::protocol::event::StartedBy;
use windlass_client::protocol::policy::PolicyRequest;
use windlass_client::protocol::refusal::PolicyRefusal;
use windlass_client::protocol::{EventKind, Outcome, SessionId};
use windlass_testkit::bombs::{self, session_under, small_limits};
use windlass_testkit::{TestNode, all_events, outside_of_tmp, python, run, run_ok, skip};

const PROGRAM: &str = env!("CARGO_BIN_EXE_windlass");

const CONFINED: [Isolation; 2] = [Isolation::Full, Isolation::Landlock];

/// A node with a client.
struct Place {
    node: TestNode,
    client: Client,
}

impl Place {
    async fn new() -> Self {
        let node = TestNode::start(PROGRAM).await.unwrap();
        let client = node.client().await.unwrap();
        Self { node, client }
    }

    /// A session with this policy request.
    async fn session(&self, policy: serde_json::Value) -> SessionId {
        self.session_of("python", policy).await
    }

    async fn session_of(&self, worker: &str, policy: serde_json::Value) -> SessionId {
        let policy: PolicyRequest = serde_json::from_value(policy).unwrap();
        let create = CreateSession {
            worker: (worker != "python").then(|| worker.to_owned()),
            interpreter: TestNode::create().interpreter.filter(|_| worker == "python"),
            policy: Some(policy),
            ..CreateSession::default()
        };
        self.client.create_session(&create).await.unwrap().session.id
    }

    async fn run(&self, session: &SessionId, code: &str) -> Turn {
        run(&self.client, session, code).await
    }
}

/// The refusal of a failed turn, which names this control and an option that begins like this.
#[track_caller]
fn refused(turn: &Turn, control: Control, option: &str) -> PolicyRefusal {
    let refusal = turn.refusal.clone().unwrap_or_else(|| panic!("nothing is explained: {turn:?}"));
    assert_eq!(refusal.control, control, "{refusal:?}");
    let found = refusal.option.as_deref().unwrap_or_default();
    assert!(found.starts_with(option), "{refusal:?}");
    assert!(refusal.message.contains(found), "{refusal:?}");
    refusal
}

#[tokio::test]
async fn contract_76_a_missing_network_is_named_with_the_host_that_was_tried() {
    let place = Place::new().await;
    let id = place.session(json!({"isolation": "full"})).await;
    let asked = "import urllib.request; urllib.request.urlopen('http://index.test/')";
    let failed = place.run(&id, asked).await;
    let refusal = refused(&failed, Control::Network, "--allow-host index.test");
    assert_eq!(refusal.tried, "connect to index.test");
    let connect = "import socket; socket.create_connection(('192.0.2.1', 80))";
    refused(&place.run(&id, connect).await, Control::Network, "--allow-host ");
    let events = all_events(&place.client, &id).await;
    let recorded = events.iter().find_map(|item| match &item.event.kind {
        EventKind::TurnEnded { refusal, .. } => refusal.as_deref().cloned(),
        _ => None,
    });
    assert_eq!(recorded, Some(refusal), "the journal has it too");

    // This level has no lists of hosts.
    let id = place.session(json!({"isolation": "landlock"})).await;
    refused(&place.run(&id, asked).await, Control::Network, "--policy open");
    // The open network of this machine may not reach it either, and that is no refusal.
    let id = place.session(json!({"isolation": "full", "network": "open"})).await;
    assert_eq!(place.run(&id, asked).await.refusal, None);
}

#[tokio::test]
async fn contract_76_a_host_that_is_not_listed_is_named_in_each_turn_that_tries_it() {
    let place = Place::new().await;
    let id = place.session(json!({"network": {"hosts": ["index.test"]}})).await;
    let ask = "import urllib.request; urllib.request.urlopen('http://other.test/')";
    // The first refusal of a kind is an event; later ones are not.
    for _ in 0..2 {
        let failed = place.run(&id, ask).await;
        assert_eq!(failed.outcome, Some(Outcome::Error));
        let refusal = refused(&failed, Control::Network, "--allow-host other.test");
        assert!(refusal.message.contains("list of hosts"), "{refusal:?}");
    }
    // A turn that ends well in spite of the refusal says it too. The next turn does not.
    let caught = format!("try:\n    {ask}\nexcept OSError:\n    pass");
    let well = place.run(&id, &caught).await;
    assert_eq!(well.outcome, Some(Outcome::Ok));
    refused(&well, Control::Network, "--allow-host other.test");
    assert_eq!(place.run(&id, "1 + 1").await.refusal, None);
    assert_eq!(place.run(&id, "1 / 0").await.refusal, None);
}

#[tokio::test]
async fn contract_76_a_path_that_the_policy_closes_is_named() {
    let place = Place::new().await;
    let outside = outside_of_tmp(env!("CARGO_TARGET_TMPDIR"));
    let secret = outside.path().join("keys");
    std::fs::create_dir(&secret).unwrap();
    std::fs::write(secret.join("key"), "secret").unwrap();
    for level in CONFINED {
        let id = place.session(json!({"isolation": level, "hidden": [secret]})).await;
        let target = outside.path().join("new");
        let failed = place.run(&id, &format!("open({target:?}, 'w')")).await;
        let writable = format!("--writable {}", outside.path().display());
        let refusal = refused(&failed, Control::Write, &writable);
        assert_eq!(refusal.tried, format!("write {}", target.display()), "{level}");

        let failed = place.run(&id, &format!("open({:?}).read()", secret.join("key"))).await;
        refused(&failed, Control::Hidden, &format!("--show {}", secret.display()));
    }
    let id = place.session(json!({"isolation": "full", "preset": "read-only"})).await;
    refused(&place.run(&id, "open('x', 'w')").await, Control::Write, "--policy workspace");
    // The option that is named does allow it.
    let id = place.session(json!({"isolation": "full", "writable": [outside.path()]})).await;
    run_ok(&place.client, &id, &format!("open({:?}, 'w').close()", outside.path().join("new")))
        .await;
}

#[tokio::test]
async fn contract_76_programs_of_the_shell_are_understood() {
    let place = Place::new().await;
    let outside = outside_of_tmp(env!("CARGO_TARGET_TMPDIR"));
    let id = place.session_of("shell", json!({"isolation": "full"})).await;
    let target = outside.path().join("new");
    let writable = format!("--writable {}", outside.path().display());
    for code in [
        format!("echo x > {}", target.display()),
        format!("touch {}", target.display()),
        format!("mkdir {}", target.display()),
    ] {
        refused(&place.run(&id, &code).await, Control::Write, &writable);
    }
    let missing = place.run(&id, "cat nothing-here").await;
    assert_eq!((missing.outcome, missing.refusal), (Some(Outcome::Error), None));
    let curl = place.run(&id, "command -v curl && curl -sS http://index.test/").await;
    match curl.output.text.is_empty() {
        true => skip("there is no curl on this machine"),
        false => drop(refused(&curl, Control::Network, "--allow-host index.test")),
    }
}

#[tokio::test]
async fn contract_76_a_limit_is_named_with_its_option() {
    let place = Place::new().await;
    for (bomb, control, option) in [
        (bombs::MEMORY, Control::Memory, "--memory 256M"),
        (bombs::FORK, Control::ProcessCount, "--processes 48"),
        (bombs::DISK, Control::Disk, "--policy-file"),
    ] {
        let create = session_under(small_limits());
        let id = place.client.create_session(&create).await.unwrap().session.id;
        refused(&place.run(&id, bomb).await, control, option);
    }
    let create = session_under(small_limits());
    let id = place.client.create_session(&create).await.unwrap().session.id;
    let children =
        "import subprocess\nall = [subprocess.Popen(['sleep', '100']) for _ in range(60)]";
    refused(&place.run(&id, children).await, Control::ProcessCount, "--processes 48");
}

#[tokio::test]
async fn contract_76_an_error_that_the_policy_does_not_cause_is_not_blamed_on_it() {
    let place = Place::new().await;
    for level in CONFINED {
        let id = place.session(json!({"isolation": level})).await;
        for (code, name) in [
            ("1 / 0", "ZeroDivisionError"),
            ("open('nothing-here')", "FileNotFoundError"),
            (
                "import sys; print('Network is unreachable', file=sys.stderr); 1 / 0",
                "ZeroDivisionError",
            ),
            (
                "import os; open('f', 'w').close(); os.chmod('f', 0); open('f', 'w')",
                "PermissionError",
            ),
        ] {
            let failed = place.run(&id, code).await;
            assert_eq!(failed.error.as_ref().map(|error| error.name.as_str()), Some(name));
            assert_eq!(failed.refusal, None, "{level} {code}");
        }
    }
    let id = place.session(json!({"isolation": "none"})).await;
    let failed = place.run(&id, "raise OSError(30, 'Read-only file system', '/srv/x')").await;
    assert_eq!((failed.outcome, failed.refusal), (Some(Outcome::Error), None));
}

#[tokio::test]
async fn contract_76_what_hostile_code_prints_is_shown_bounded_and_without_control_characters() {
    let place = Place::new().await;
    let id = place.session(json!({"isolation": "full"})).await;
    let code =
        "raise OSError(30, 'Read-only file system', '/srv/\\x1b[2J' + '\\u202e' + 'x' * 3000)";
    let failed = place.run(&id, code).await;
    let refusal = failed.refusal.unwrap();
    assert!(refusal.tried.len() <= 256 && refusal.message.len() <= 1024, "{refusal:?}");
    let is_hidden = |char: char| char.is_control() || char == '\u{202e}';
    assert!(!refusal.tried.contains(is_hidden) && !refusal.message.contains(is_hidden));
}

#[tokio::test]
async fn contract_76_pip_without_a_network_fails_at_once_and_says_why() {
    let place = Place::new().await;
    let id = place.session(json!({"isolation": "full"})).await;
    if run(&place.client, &id, "import pip").await.outcome != Some(Outcome::Ok) {
        return skip("the interpreter of the tests has no pip");
    }
    let code = "import subprocess, sys\n\
                subprocess.run([sys.executable, '-m', 'pip', 'download', '--no-deps', 'six'], check=True)";
    let failed = place.run(&id, code).await;
    assert_eq!(failed.outcome, Some(Outcome::Error));
    let refusal = refused(&failed, Control::Network, "--allow-packages");
    assert!(refusal.message.contains("`--with PACKAGES`"), "{refusal:?}");
    assert!(!failed.output.text.contains("Retrying"), "{}", failed.output.text);
    println!("it took {:?} ms", failed.usage.map(|usage| usage.wall_ms));
    // A client's own value stays.
    let create = CreateSession {
        env: [("PIP_RETRIES".to_owned(), "3".to_owned())].into(),
        ..TestNode::create()
    };
    let id = place.client.create_session(&create).await.unwrap().session.id;
    assert_eq!(run_ok(&place.client, &id, "import os; os.environ['PIP_RETRIES']").await, "'3'\n");
}

/// The variables of a session without a network keep it from no pooled worker.
#[tokio::test]
async fn contract_76_a_session_without_a_network_still_starts_from_the_pool() {
    let builder = TestNode::builder(PROGRAM).env("WINDLASS_START", "pool");
    let node = builder.start().await.unwrap();
    let client = node.client().await.unwrap();
    let list = node.await_environments().await.unwrap();
    if list.environments.first().is_none_or(|one| one.zygote.state != ZygoteState::Ready) {
        return skip("the interpreter on PATH has no zygote on this machine");
    }
    let session = client.create_session(&CreateSession::default()).await.unwrap().session.id;
    run_ok(&client, &session, "import os; os.environ['PIP_RETRIES']").await;
    let started_by = client.session(&session).await.unwrap().started_by;
    assert_eq!(started_by, Some(StartedBy::Pool));
}

#[tokio::test]
async fn contract_76_run_prints_the_sentence_once_after_the_traceback() {
    let place = Place::new().await;
    let work = tempfile::tempdir().unwrap();
    let code = work.path().join("code.py");
    std::fs::write(&code, "import socket; socket.create_connection(('192.0.2.1', 80))").unwrap();
    let ran = Command::new(PROGRAM)
        .args(["run", code.to_str().unwrap(), "--isolation=full", "--python"])
        .arg(python())
        .env("WINDLASS_RUNTIME_DIR", &place.node.dirs().runtime)
        .env("WINDLASS_STATE_DIR", &place.node.dirs().state)
        .current_dir(work.path())
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&ran.stderr);
    assert_eq!(said.matches("this session has no network").count(), 1, "{said}");
    let (traceback, note) = said.split_once("this session has no network").unwrap();
    assert!(traceback.contains("Network is unreachable"), "{said}");
    assert!(note.contains("--allow-host"), "{said}");
}
