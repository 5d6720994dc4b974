//! The code of an agent: it runs in children of the agent's session, by the MCP server that the agent gets.

use std::time::Duration;

use serde_json::{Value, json};
use windlass_client::protocol::api::{
    CloseQuery, CopyScope, CreateSession, ForkSession, Session, SessionState, TurnState,
};
use windlass_client::protocol::policy::{PolicyRequest, Preset};
use windlass_client::protocol::{ErrorCode, EventKind, Outcome, SessionId};
use windlass_client::{Client, ClientError};
use windlass_testkit::{
    PATIENCE, TestNode, TestToolHost, all_events, named_turn, processes, turn_ended, within,
};

use crate::scene::{AgentScene, SessionSettings, completed};

async fn agent(scene: &AgentScene) -> SessionId {
    scene.session(SessionSettings::default()).await
}

/// The agent's answer to a prompt.
async fn said(scene: &AgentScene, session: &SessionId, prompt: &str) -> String {
    let ended = scene.run(session, prompt).await;
    assert_eq!(ended.outcome, Some(Outcome::Ok), "{prompt}: {ended:?}");
    without_note(&completed(&scene.events(session).await).1)
}

/// An answer without the note about a new session.
fn without_note(answer: &str) -> String {
    let lines: Vec<&str> =
        answer.lines().filter(|line| !line.starts_with("[new session")).collect();
    lines.join("\n").trim_end().to_owned()
}

/// The text of a tool's result.
async fn called(scene: &AgentScene, session: &SessionId, tool: &str, arguments: Value) -> String {
    let request = json!({"method": "tools/call", "params": {"name": tool, "arguments": arguments}});
    let response = said(scene, session, &format!("mcp {request}")).await;
    let response: Value = serde_json::from_str(&response).unwrap();
    match response["result"]["content"][0]["text"].as_str() {
        Some(text) => without_note(text),
        None => response.to_string(),
    }
}

#[tokio::test]
async fn contract_95_an_agents_code_runs_in_children_that_end_with_it() {
    let scene = AgentScene::new().await;
    let session = agent(&scene).await;
    let mark = format!("child-{}", std::process::id());
    assert_eq!(said(&scene, &session, "run x = 41").await, "");
    assert_eq!(said(&scene, &session, "run x + 1").await, "42");
    let leaves =
        format!("import subprocess; p = subprocess.Popen(['sleep', '600'], env={{'M': '{mark}'}})");
    said(&scene, &session, &format!("run {leaves}")).await;
    let shell = json!({"language": "shell", "code": "echo from the shell > made-by-child"});
    called(&scene, &session, "run", shell).await;
    assert!(scene.workspace.path().join("made-by-child").exists());

    let children = scene.children(&session).await;
    assert_eq!(children.len(), 2, "{children:?}");
    let parent = scene.client.session(&session).await.unwrap();
    for child in &children {
        assert_eq!(child.workspace, parent.workspace);
        assert_eq!(child.policy, parent.policy);
        assert_eq!(child.owner, parent.owner);
        let level = |session: &Session| session.confinement.as_ref().map(|found| found.isolation);
        assert_eq!(level(child), level(&parent));
    }
    // The agent's request is in its journal.
    let calls = all_events(&scene.client, &session).await.into_iter();
    let calls = calls.filter(|item| {
        matches!(&item.event.kind, EventKind::ToolCall { name, .. } if name == "windlass.mcp")
    });
    assert!(calls.count() >= 5);

    scene.client.close_session(&session, CloseQuery::default()).await.unwrap();
    assert!(scene.children(&session).await.is_empty());
    for child in &children {
        assert_eq!(scene.client.session(&child.id).await.unwrap().state, SessionState::Ended);
    }
    let left = processes::all();
    let left = left.iter().filter(|found| processes::mentions(found.pid, mark.as_bytes()));
    assert_eq!(left.count(), 0);
}

#[tokio::test]
async fn contract_95_an_interrupt_of_an_agent_reaches_the_code_that_it_runs() {
    let scene = AgentScene::new().await;
    let session = agent(&scene).await;
    said(&scene, &session, "run x = 1").await;
    for (turn, prompt) in [
        ("interrupted", "run open('busy', 'w').close()\\nimport time; time.sleep(600)"),
        ("cancelled", "cancel busy open('busy', 'w').close()\\nimport time; time.sleep(600)"),
    ] {
        let _ = std::fs::remove_file(scene.workspace.path().join("busy"));
        let id = scene.submit(&session, turn, prompt).await;
        scene.until(|scene| scene.workspace.path().join("busy").exists()).await;
        if turn == "interrupted" {
            scene.client.interrupt_turn(&session, &id).await.unwrap();
        }
        let ended = turn_ended(&scene.client, &session, &id, PATIENCE).await.unwrap();
        let is_interrupted = ended.outcome == Some(Outcome::Interrupted);
        assert_eq!(is_interrupted, turn == "interrupted", "{ended:?}");
        let idle = async {
            while scene.children(&session).await[0].state != SessionState::Idle {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        within(PATIENCE, idle).await;
        // The variables are kept.
        assert_eq!(said(&scene, &session, "run x + 1").await, "2");
    }
}

#[tokio::test]
async fn contract_95_code_whose_request_is_cancelled_at_once_does_not_run_on() {
    let scene = AgentScene::new().await;
    let session = agent(&scene).await;
    said(&scene, &session, "run x = 1").await;
    let code = "import time; time.sleep(5); open('ran', 'a').write('x')";
    for _ in 0..3 {
        said(&scene, &session, &format!("abandon 30 {code}")).await;
        // No request stays open, and this one waits for what still runs.
        assert_eq!(said(&scene, &session, "run x + 1").await, "2");
    }
    assert!(!scene.workspace.path().join("ran").exists());
}

#[tokio::test]
async fn contract_96_an_agents_code_whose_session_is_lost_is_not_run_again() {
    let mut scene = AgentScene::new().await;
    let session = agent(&scene).await;
    said(&scene, &session, "run n = 0").await;
    let keeper = scene.children(&session).await[0].keeper_pid.unwrap();
    let code = "open('ran', 'a').write('x'); import time; time.sleep(600)";
    let turn = named_turn("lost", format!("run {code}"));
    scene.client.submit_turn(&session, &turn).await.unwrap();
    let ran = |scene: &AgentScene| std::fs::read(scene.workspace.path().join("ran"));
    scene.until(|scene| ran(scene).is_ok_and(|ran| ran == b"x")).await;
    scene.node.kill9();
    processes::kill(keeper);
    scene.node.restart().await.unwrap();
    scene.client = scene.node.client().await.unwrap();
    let id = turn.id.unwrap();
    turn_ended(&scene.client, &session, &id, PATIENCE).await.unwrap();
    let answer = completed(&scene.events(&session).await).1;
    assert!(answer.contains("lost"), "{answer}");
    assert_eq!(ran(&scene).unwrap(), b"x", "the code ran again");
}

#[tokio::test]
async fn contract_96_an_agents_code_runs_once_while_the_node_is_killed() {
    let mut scene = AgentScene::new().await;
    let session = agent(&scene).await;
    said(&scene, &session, "run n = 0").await;
    let code = "n += 1; open('ran', 'a').write('x'); import time; time.sleep(2); print('n is', n)";
    for round in 1..=3 {
        let turn = named_turn(&format!("t{round}"), format!("run {code}"));
        scene.client.submit_turn(&session, &turn).await.unwrap();
        let ran = |scene: &AgentScene| {
            std::fs::read(scene.workspace.path().join("ran")).is_ok_and(|ran| ran.len() == round)
        };
        if round > 1 {
            scene.until(ran).await;
        }
        for _ in 0..2 {
            scene.node.restart().await.unwrap();
        }
        scene.client = scene.node.client().await.unwrap();
        let id = turn.id.unwrap();
        let ended = turn_ended(&scene.client, &session, &id, 2 * PATIENCE).await.unwrap();
        assert_eq!(ended.outcome, Some(Outcome::Ok), "{ended:?}");
        let answer = completed(&scene.events(&session).await).1;
        assert_eq!(answer.trim_end(), format!("n is {round}"));
        assert!(ran(&scene), "the code ran more than once");
    }
}

#[tokio::test]
async fn contract_95_children_whose_parent_died_without_a_node_end() {
    let mut scene = AgentScene::new().await;
    let session = agent(&scene).await;
    said(&scene, &session, "run x = 1").await;
    let child = scene.children(&session).await.remove(0);
    let keeper = scene.client.session(&session).await.unwrap().keeper_pid.unwrap();
    scene.node.kill9();
    processes::kill(keeper);
    scene.node.restart().await.unwrap();
    scene.client = scene.node.client().await.unwrap();
    let ended = async {
        while scene.client.session(&child.id).await.unwrap().state != SessionState::Ended {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    within(PATIENCE, ended).await;
}

#[tokio::test]
async fn an_agent_reaches_its_own_children_and_no_other_session() {
    let scene = AgentScene::new().await;
    let other = scene.client.create_session(&TestNode::create()).await.unwrap().session.id;
    let turn = named_turn("secret", "print('of another session'); y = 5");
    scene.client.submit_turn(&other, &turn).await.unwrap();
    turn_ended(&scene.client, &other, &turn.id.unwrap(), PATIENCE).await.unwrap();
    let neighbour = agent(&scene).await;
    said(&scene, &neighbour, "run print('of a neighbour')").await;
    let theirs = scene.children(&neighbour).await.remove(0).id;

    let session = agent(&scene).await;
    said(&scene, &session, "run x = 1").await;
    let own = scene.children(&session).await.remove(0).id;
    let listed = called(&scene, &session, "sessions", json!({})).await;
    assert!(listed.starts_with(own.as_str()) && listed.lines().count() == 1, "{listed}");
    for foreign in [&other, &theirs, &session] {
        let target = json!({"session": foreign});
        for (tool, arguments) in [
            ("read_output", target.clone()),
            ("interrupt", target.clone()),
            ("continue", target.clone()),
            ("reset", target.clone()),
            ("reset", json!({"session": foreign, "end": true})),
        ] {
            let answer = called(&scene, &session, tool, arguments).await;
            assert!(!answer.contains("of a"), "{tool} {foreign}: {answer}");
            let codes = ["session_not_found", "unauthorized"];
            let is_refused = codes.iter().any(|code| answer.starts_with(code));
            assert!(is_refused, "{tool} {foreign}: {answer}");
        }
        // For the agent this is a name that nobody has. A long one is no name.
        let turns = scene.client.session(foreign).await.unwrap().turns;
        called(&scene, &session, "run", json!({"session": foreign, "code": "z = 1"})).await;
        let own_turn = u64::from(foreign == &session);
        assert_eq!(scene.client.session(foreign).await.unwrap().turns, turns + own_turn);
        let uri = format!("windlass://sessions/{foreign}/output");
        let read = json!({"method": "resources/read", "params": {"uri": uri}});
        let answer = said(&scene, &session, &format!("mcp {read}")).await;
        assert!(answer.contains("error") && !answer.contains("of a"), "{answer}");
    }
    let resources = said(&scene, &session, "mcp {\"method\": \"resources/list\"}").await;
    let lists = |id: &SessionId| resources.contains(&format!("/{id}/output"));
    assert!(lists(&own) && !lists(&other) && !lists(&theirs) && !lists(&session), "{resources}");
    for alive in [&other, &theirs] {
        assert_eq!(scene.client.session(alive).await.unwrap().state, SessionState::Idle);
    }
    // A child of a name that another session has as its id.
    let short = SessionId::parse("short").unwrap();
    let named = CreateSession { id: Some(short.clone()), ..TestNode::create() };
    scene.client.create_session(&named).await.unwrap();
    let ran = called(&scene, &session, "run", json!({"session": "short", "code": "z = 1"})).await;
    assert_eq!(ran, "");
    assert_eq!(scene.client.session(&short).await.unwrap().turns, 0);
}

#[tokio::test]
async fn a_client_that_is_limited_to_children_gets_nothing_else() {
    let scene = AgentScene::new().await;
    let session = agent(&scene).await;
    said(&scene, &session, "run x = 1").await;
    let child = scene.children(&session).await.remove(0).id;
    let limited = scene.client.limited_to_children_of(&session);
    assert_eq!(limited.session(&child).await.unwrap().parent, Some(session.clone()));
    let list = limited.sessions(windlass_client::WhichSessions::EndedToo).await.unwrap();
    assert_eq!(list.sessions.len(), 1);
    for refused in [
        limited.session(&session).await.unwrap_err(),
        limited.close_session(&session, CloseQuery::default()).await.unwrap_err(),
        limited.secrets().await.unwrap_err(),
        limited.fork_session(&child, &ForkSession::default()).await.unwrap_err(),
        limited.session_tools(&child, None).await.unwrap_err(),
        limited.secret_rules(&child).await.unwrap_err(),
        limited.disk_use().await.unwrap_err(),
    ] {
        let code = refused.api_code();
        assert!(
            matches!(code, Some(ErrorCode::NotFound | ErrorCode::SessionNotFound)),
            "{refused}"
        );
    }
    // What it creates is a child.
    let made = limited.create_session(&CreateSession::default()).await.unwrap().session;
    assert_eq!(made.parent, Some(session.clone()));
    limited.close_session(&made.id, CloseQuery::default()).await.unwrap();
}

#[tokio::test]
async fn a_child_has_nothing_of_its_own_choice_and_a_parent_has_few_children() {
    let scene = AgentScene::new().await;
    let session = agent(&scene).await;
    let with_parent = |parent: &SessionId| CreateSession {
        parent: Some(parent.clone()),
        interpreter: TestNode::create().interpreter,
        ..CreateSession::default()
    };
    let loose = PolicyRequest { preset: Some(Preset::Open), ..PolicyRequest::default() };
    let elsewhere = scene.workspace.path().display().to_string();
    for (odd, word) in [
        (CreateSession { policy: Some(loose), ..with_parent(&session) }, "policy"),
        (CreateSession { workspace: Some(elsewhere), ..with_parent(&session) }, "workspace"),
        (
            CreateSession {
                worker: Some("agent:codex".into()),
                interpreter: None,
                ..with_parent(&session)
            },
            "agent",
        ),
        (with_parent(&SessionId::parse("nobody").unwrap()), "nobody"),
    ] {
        let refused = scene.client.create_session(&odd).await.unwrap_err().to_string();
        assert!(refused.contains(word), "{refused}");
    }
    let made = many(&scene.client, &with_parent(&session), 20).await;
    let refused: Vec<&ClientError> = made.iter().filter_map(|made| made.as_ref().err()).collect();
    assert_eq!(refused.len(), 12, "{refused:?}");
    assert!(refused.iter().all(|error| error.api_code() == Some(ErrorCode::Overloaded)));
    let child = made.into_iter().find_map(Result::ok).unwrap();
    let refused = scene.client.create_session(&with_parent(&child)).await.unwrap_err();
    assert!(refused.to_string().contains("no children"), "{refused}");
    // There is space again.
    scene.client.close_session(&child, CloseQuery::default()).await.unwrap();
    scene.client.create_session(&with_parent(&session)).await.unwrap();
    scene.client.close_session(&session, CloseQuery::default()).await.unwrap();
    assert!(scene.children(&session).await.is_empty());
}

async fn many(
    client: &Client,
    create: &CreateSession,
    count: usize,
) -> Vec<Result<SessionId, ClientError>> {
    let made = (0..count).map(|_| {
        let (client, create) = (client.clone(), create.clone());
        tokio::spawn(
            async move { client.create_session(&create).await.map(|made| made.session.id) },
        )
    });
    let mut ids = Vec::new();
    for one in made.collect::<Vec<_>>() {
        ids.push(one.await.unwrap());
    }
    ids
}

#[tokio::test]
async fn an_agent_in_a_branch_leaves_the_directory_as_it_is() {
    let scene = AgentScene::new().await;
    scene.write("kept.txt", "as it was");
    // A session that protects names in the directory.
    let workspace = Some(scene.workspace.path().display().to_string());
    let beside = CreateSession { workspace, ..TestNode::create() };
    scene.client.create_session(&beside).await.unwrap();
    std::fs::create_dir_all(scene.workspace.path().join("node_modules/large")).unwrap();
    let create = |copy_workspace| CreateSession {
        worker: Some("acp:python3 engine.py".to_owned()),
        workspace: Some(scene.workspace.path().display().to_string()),
        copy_workspace: Some(copy_workspace),
        ..CreateSession::default()
    };
    let created = scene.client.create_session(&create(CopyScope::Needed)).await.unwrap();
    assert_eq!(created.left_out.len(), 1, "{created:?}");
    assert_eq!(created.left_out[0].path, "node_modules");
    let session = created.session.id;
    let code = "open('kept.txt', 'w').write('changed'); open('new', 'w').close()";
    said(&scene, &session, &format!("run {code}")).await;
    // The agent and its code work in the branch.
    let branch = std::path::PathBuf::from(&created.session.workspace);
    let from = created.session.copied_from.unwrap();
    assert_eq!(from, scene.workspace.path().canonicalize().unwrap().display().to_string());
    assert_eq!(std::fs::read_to_string(branch.join("kept.txt")).unwrap(), "changed");
    assert!(branch.join("new").exists());
    scene.client.close_session(&session, CloseQuery::default()).await.unwrap();
    let mut names: Vec<String> = std::fs::read_dir(&branch)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    assert_eq!(names, ["engine.py", "kept.txt", "new", "turns.log"]);
    let kept = std::fs::read_to_string(scene.workspace.path().join("kept.txt")).unwrap();
    assert_eq!(kept, "as it was");
    assert!(!scene.workspace.path().join("new").exists());
    let whole = scene.client.create_session(&create(CopyScope::All)).await.unwrap().session;
    assert!(std::path::Path::new(&whole.workspace).join("node_modules/large").exists());
    let odd = CreateSession { workspace: None, ..create(CopyScope::All) };
    let refused = scene.client.create_session(&odd).await.unwrap_err().to_string();
    assert!(refused.contains("needs a workspace"), "{refused}");
    // The copy for a session that is not made is removed.
    let id = SessionId::parse("not-made").unwrap();
    let (id, worker) = (Some(id), Some("agent:codex".to_owned()));
    let interpreter = Some("/nowhere/codex".to_owned());
    let odd = CreateSession { id, worker, interpreter, ..create(CopyScope::Needed) };
    scene.client.create_session(&odd).await.unwrap_err();
    assert!(!branch.parent().unwrap().join("not-made").exists());
}

#[tokio::test]
async fn code_of_an_agent_calls_the_tools_that_are_offered_to_the_agent() {
    let scene = AgentScene::new().await;
    let session = agent(&scene).await;
    let _host = TestToolHost::offer(&scene.client, &session, &["shop.price"], |call| async move {
        Ok(json!({"price": 7, "session": call.within().session}))
    })
    .await
    .unwrap();
    let answer = said(&scene, &session, "run tools.shop.price()['price'] * 6").await;
    assert_eq!(answer, "42");
}

#[tokio::test]
async fn odd_requests_of_an_agent_are_answered_and_leave_the_node_well() {
    let scene = AgentScene::new().await;
    let session = agent(&scene).await;
    for (request, expected) in [
        (json!({"method": "no/such"}), "error"),
        (
            json!({"method": "tools/call", "params": {"name": "run", "arguments": {"code": 7}}}),
            "expected a string",
        ),
        (json!({"method": "tools/call", "params": {"name": "nothing"}}), "nothing"),
        (
            json!({"method": "tools/call", "params": {"name": "run", "arguments": {"code": "1", "language": "klingon"}}}),
            "klingon",
        ),
        (
            json!({"method": "tools/call", "params": {"name": "run", "arguments": {"code": "x".repeat(1100 * 1024)}}}),
            "1048576",
        ),
        (json!({"method": "tools/list"}), "read_output"),
        (json!({"method": "ping"}), "result"),
    ] {
        let answer = said(&scene, &session, &format!("mcp {request}")).await;
        assert!(answer.contains(expected), "{request:.100}: {answer:.300}");
    }
    // Code that takes longer than the call goes on, and is found again. Its session may still be starting.
    let slow = json!({"code": "import time; time.sleep(1); print('late')", "wait_seconds": 0.1});
    let first = called(&scene, &session, "run", slow).await;
    assert!(first.contains("call continue to wait"), "{first}");
    assert_eq!(called(&scene, &session, "continue", json!({})).await.trim_end(), "late");
    let child = scene.children(&session).await.remove(0);
    assert_eq!(child.turn, None);
    assert_ne!(child.state, SessionState::Ended);
    let last =
        scene.client.turn(&session, &named_turn("run-0", "").id.unwrap(), <_>::default()).await;
    assert_eq!(last.unwrap().state, TurnState::Ended);
}
