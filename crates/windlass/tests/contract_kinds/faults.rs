//! Workers that start badly, break the protocol or wait for a host that does not answer.

use std::time::{Duration, Instant};

use serde_json::json;
use windlass_client::WhichSessions;
use windlass_client::protocol::api::{EventItem, OutputQuery, SessionState, TurnInput, TurnState};
use windlass_client::protocol::confinement::Isolation;
use windlass_client::protocol::event::PrewarmSource;
use windlass_client::protocol::policy::{Limits, PolicyRequest};
use windlass_client::protocol::{ErrorCode, EventKind, Outcome, Seq};
use windlass_testkit::{
    PATIENCE, TestNode, TestToolHost, eventually, odd_worker, outside_of_tmp, python, run, run_ok,
    turn, wait_for_event, within,
};

use super::language::{self, Language};

/// How long a snapshot may take on a busy machine.
const SNAPSHOT_MAX: Duration = Duration::from_secs(120);

/// Faults of a registered worker, and whether it breaks before its first turn.
const FAULTS: [(&str, &str); 7] = [
    ("garbage", "sock.sendall(b'hello, this is no frame'); time.sleep(600)"),
    (
        "other-version",
        "send(frame('worker_ready', protocol=9, worker='odd', capabilities=[])); time.sleep(600)",
    ),
    ("not-ready-first", "send(idle(1)); time.sleep(600)"),
    (
        "huge-frame",
        "ready()\nfor turn, code in turns():\n    sock.sendall(struct.pack('>II', 1 << 30, 10) + b'x' * 10)",
    ),
    ("no-json", "ready()\nfor turn, code in turns():\n    send(raw(b'{\"kind\": '))"),
    (
        "wrong-type",
        "ready()\nfor turn, code in turns():\n    send(raw(b'{\"kind\": \"idle\", \"turn\": \"one\"}'))",
    ),
    ("ends", "ready()\nfor turn, code in turns():\n    os._exit(3)"),
];

#[tokio::test]
async fn contract_85_a_registered_worker_that_breaks_the_protocol_ends_only_its_session() {
    let place = outside_of_tmp(env!("CARGO_TARGET_TMPDIR"));
    let mut config = String::new();
    for (name, script) in FAULTS {
        let script = odd_worker(place.path(), name, script).unwrap().interpreter.unwrap();
        let command = json!([python(), script]);
        config.push_str(&format!("[workers.{name}]\ncommand = {command}\nready_s = 20\n"));
    }
    let builder = TestNode::builder(env!("CARGO_BIN_EXE_windlass"));
    let node = builder.config(config).start().await.unwrap();
    let client = node.client().await.unwrap();
    let neighbour = node.session(&client).await.unwrap().id;
    run_ok(&client, &neighbour, "x = 41").await;
    for (name, _) in FAULTS {
        let mut create = TestNode::create();
        create.interpreter = None;
        create.worker = Some(name.to_owned());
        let session = client.create_session(&create).await.unwrap().session.id;
        let ran = within(PATIENCE, client.run_turn(&session, turn("anything"))).await;
        match ran {
            Ok(ran) => {
                assert_eq!(ran.outcome, Some(Outcome::Lost), "{name}: {ran:?}");
                let code = ran.error.as_ref().and_then(|error| error.code);
                let named = [
                    ErrorCode::ProtocolError,
                    ErrorCode::WorkerDied,
                    ErrorCode::WorkerFailed,
                    ErrorCode::StateLost,
                ];
                assert!(code.is_some_and(|code| named.contains(&code)), "{name}: {ran:?}");
            }
            // The worker failed before the node accepted the turn.
            Err(error) => {
                assert_eq!(error.api_code(), Some(ErrorCode::SessionEnded), "{name}: {error}")
            }
        }
        assert_eq!(run_ok(&client, &neighbour, "print(x + 1)").await, "42\n", "{name}");
    }
}

async fn startup_file(language: &Language, name: &str, text: &str, variable: Option<&str>) {
    let Some(builder) = language.node() else { return };
    let node = builder.start().await.unwrap();
    let client = node.client().await.unwrap();
    let mut create = language.create();
    let place = outside_of_tmp(env!("CARGO_TARGET_TMPDIR"));
    let workspace = place.path().to_str().unwrap().to_owned();
    std::fs::write(place.path().join(name), text).unwrap();
    create.workspace = Some(workspace.clone());
    if let Some(variable) = variable {
        create.env.insert(variable.to_owned(), format!("{workspace}/{name}"));
    }
    let session = client.create_session(&create).await.unwrap().session.id;
    let first = run(&client, &session, language.set).await;
    assert_eq!(first.outcome, Some(Outcome::Ok), "{first:?}");
    let all = client.output(&session, &OutputQuery::default()).await.unwrap();
    let all = String::from_utf8_lossy(&all.bytes).into_owned();
    assert!(all.contains("from the start"), "{all:?}");
    assert_eq!(run_ok(&client, &session, language.get).await, "42\n");
}

#[tokio::test]
async fn contract_81_a_startup_file_of_the_shell_prints_asks_and_fails() {
    let text = "echo from the start; read answer; false; no-such-command\n";
    startup_file(&language::SHELL, "start.sh", text, Some("WINDLASS_STARTUP")).await;
}

#[tokio::test]
async fn contract_81_a_profile_of_r_prints_asks_and_fails() {
    let text = "cat('from the start\\n'); readline('name? '); stop('no')\n";
    startup_file(&language::R, ".Rprofile", text, None).await;
}

#[tokio::test]
async fn contract_81_a_startup_file_of_node_prints_and_fails() {
    let text = "console.log('from the start'); throw new Error('no')\n";
    startup_file(&language::JAVASCRIPT, "start.js", text, Some("WINDLASS_STARTUP")).await;
}

#[tokio::test]
async fn contract_84_a_program_that_waits_for_input_makes_the_turn_say_so() {
    let Some((_node, client, session)) = language::SHELL.start().await else { return };
    for program in ["cat", "head -n 1", "python3 -c 'print(input())'", "sh -c 'read x; echo $x'"] {
        let asking = run(&client, &session, &format!("echo asked; {program}; echo after")).await;
        assert_eq!(asking.state, TurnState::AwaitingInput, "{program}: {asking:?}");
        let input = TurnInput { text: Some("ada\n".to_owned()), eof: true, ..TurnInput::default() };
        let answered = client.answer_turn(&session, &asking.id, &input);
        let answered = within(PATIENCE, answered).await.unwrap();
        assert_eq!(answered.output.text, "asked\nada\nafter\n", "{program}: {answered:?}");
    }
}

#[tokio::test]
async fn contract_86_a_file_call_without_an_answer_is_a_named_error_and_the_session_lives() {
    let Some(builder) = language::PYODIDE.node() else { return };
    let node = builder.start().await.unwrap();
    let client = node.client().await.unwrap();
    let mut create = language::PYODIDE.create();
    create.env.insert("WINDLASS_FILES".to_owned(), "host".to_owned());
    create.env.insert("WINDLASS_FILES_DEADLINE_MS".to_owned(), "3000".to_owned());
    let session = client.create_session(&create).await.unwrap().session.id;
    let names = ["files.stat", "files.list", "files.read", "files.write"];
    let host = TestToolHost::offer(&client, &session, &names, |call| async move {
        let path = call.arguments["path"].as_str().unwrap_or_default().to_owned();
        match call.name.as_str() {
            _ if path.contains("never") => {
                call.cancelled().await;
                Err(call.error("TimeoutError", "cancelled"))
            }
            "files.stat" if path.ends_with(".txt") => {
                Ok(json!({"kind": "file", "size": 3, "mtime_ms": 0}))
            }
            "files.stat" => Ok(json!({"kind": "directory", "size": 0, "mtime_ms": 0})),
            "files.read" if call.arguments["offset"] == 0 => Ok(json!({"data": "YWRh"})),
            "files.read" => Ok(json!({"data": ""})),
            _ => Ok(json!({"entries": []})),
        }
    });
    let _host = host.await.unwrap();
    // The start of Pyodide, which takes seconds on a busy machine, is not measured.
    run_ok(&client, &session, "None").await;
    let asked = Instant::now();
    let failed = run(&client, &session, "open('/workspace/never.txt').read()").await;
    assert_eq!(failed.outcome, Some(Outcome::Error), "{failed:?}");
    let error = failed.error.clone().unwrap();
    assert_eq!(error.name, "TimeoutError", "{failed:?}");
    assert!(failed.output.text.contains("3 s"), "{failed:?}");
    assert!(asked.elapsed() < Duration::from_secs(10), "{:?}", asked.elapsed());
    assert_eq!(run_ok(&client, &session, "print(open('/workspace/a.txt').read())").await, "ada\n");
    let look = client.session(&session).await.unwrap();
    assert_eq!(look.state, SessionState::Idle);
}

#[tokio::test]
async fn the_heap_of_pyodide_follows_the_memory_limit() {
    let Some(builder) = language::PYODIDE.node() else { return };
    let node = builder.start().await.unwrap();
    let client = node.client().await.unwrap();
    let mut wanted = language::PYODIDE.create();
    let limits = Limits { memory_bytes: Some(1500 << 20), ..Limits::default() };
    wanted.policy = Some(PolicyRequest { limits, ..PolicyRequest::default() });
    let session = client.create_session(&wanted).await.unwrap().session.id;
    run_ok(&client, &session, "x = 41").await;
    let ended = run(&client, &session, "y = bytearray(1400 << 20)").await;
    assert_eq!(ended.error.unwrap().name, "MemoryError");
    assert_eq!(run_ok(&client, &session, "print(x + 1)").await, "42\n");
}

#[tokio::test]
async fn contract_88_a_kernel_that_dies_hangs_or_is_late_ends_no_turn_but_its_own() {
    let Some(builder) = language::JUPYTER.node() else { return };
    let Ok(interpreter) = std::env::var("WINDLASS_TEST_JUPYTER_PYTHON") else { return };
    let place = outside_of_tmp(env!("CARGO_TARGET_TMPDIR"));
    let spec = place.path().join("kernels/odd");
    std::fs::create_dir_all(&spec).unwrap();
    let script = include_str!("../../../workers/tests/fake_kernel.py");
    std::fs::write(spec.join("fake_kernel.py"), script).unwrap();
    let argv = [interpreter.as_str(), "{resource_dir}/fake_kernel.py", "{connection_file}"];
    let json = json!({"argv": argv, "display_name": "odd", "language": "odd"});
    std::fs::write(spec.join("kernel.json"), json.to_string()).unwrap();
    let node = builder.env("JUPYTER_PATH", place.path()).start().await.unwrap();
    let client = node.client().await.unwrap();
    let mut create = TestNode::create();
    create.interpreter = None;
    create.worker = Some("jupyter:odd".to_owned());
    create.interrupt_grace_ms = Some(500);
    let session = client.create_session(&create).await.unwrap().session.id;
    // The kernel dies: the turn ends at once, and a fresh kernel takes the next one.
    let died = run(&client, &session, "die 3").await;
    assert_eq!(died.outcome, Some(Outcome::Lost), "{died:?}");
    // Idle or the reply is missing: the turn ends all the same.
    for code in ["no-reply", "no-idle", "fine"] {
        let ended = run(&client, &session, code).await;
        assert_eq!(ended.state, TurnState::Ended, "{code}: {ended:?}");
    }
    // The kernel hangs and ignores interrupts: deadline and grace end the turn.
    let mut hanging = turn("deaf");
    hanging.deadline_ms = Some(500);
    let asked = Instant::now();
    let ended = within(PATIENCE, client.run_turn(&session, hanging)).await.unwrap();
    assert_eq!(ended.outcome, Some(Outcome::TimedOut), "{ended:?}");
    assert!(asked.elapsed() < Duration::from_secs(10), "{:?}", asked.elapsed());
    // Late messages of an earlier turn end no other turn.
    let late = run(&client, &session, "late").await;
    assert_eq!(late.state, TurnState::Ended, "{late:?}");
    let next = run(&client, &session, "fine").await;
    assert_eq!((next.state, next.outcome), (TurnState::Ended, Some(Outcome::Ok)), "{next:?}");
}

#[tokio::test]
async fn the_workspace_of_pyodide_may_hold_the_workers_program() {
    let Some(builder) = language::PYODIDE.node() else { return };
    let home = outside_of_tmp(env!("CARGO_TARGET_TMPDIR"));
    let node = builder.state_dir(home.path().join("state")).start().await.unwrap();
    let client = node.client().await.unwrap();
    let mut wanted = language::PYODIDE.create();
    wanted.workspace = Some(home.path().display().to_string());
    let session = client.create_session(&wanted).await.unwrap().session.id;
    let code = "import os; print(os.listdir('.')); open('made', 'w').write('x')";
    run_ok(&client, &session, code).await;
    assert_eq!(std::fs::read_to_string(home.path().join("made")).unwrap(), "x");
}

#[tokio::test]
async fn contract_87_a_snapshot_of_pyodide_is_made_in_a_sandbox_and_used() {
    let Some(builder) = language::PYODIDE.node() else { return };
    let node = builder.start().await.unwrap();
    let client = node.client().await.unwrap();
    let created = client.create_session(&language::PYODIDE.create()).await.unwrap();
    assert_eq!(run_ok(&client, &created.session.id, "print(6 * 7)").await, "42\n");
    // The session that makes the snapshot is confined like any other, and ends. The node makes it behind the turn.
    let maker = eventually(SNAPSHOT_MAX, async || {
        let all = client.sessions(WhichSessions::EndedToo).await.unwrap().sessions;
        let maker = all.into_iter().find(|one| one.id != created.session.id);
        maker.map(|one| one.id).ok_or("no session makes the snapshot")
    });
    let maker = maker.await;
    let is_over = |item: &EventItem| matches!(item.event.kind, EventKind::SessionEnded { .. });
    wait_for_event(&client, &maker, Seq(0), SNAPSHOT_MAX, is_over).await.unwrap();
    let maker = client.session(&maker).await.unwrap();
    let confinement = maker.confinement.unwrap();
    assert_ne!(confinement.isolation, Isolation::None, "{confinement:?}");
    let second = client.create_session(&language::PYODIDE.create()).await.unwrap().session.id;
    assert_eq!(run_ok(&client, &second, "print(6 * 7)").await, "42\n");
    let figures = client.session(&second).await.unwrap().start_figures.unwrap();
    assert_eq!(figures.prewarm.how, PrewarmSource::Cached, "{figures:?}");
}
