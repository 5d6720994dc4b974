//! Which session an agent uses, where it works, and what it may access there.

use std::path::Path;

use serde_json::{Value, json};
use windlass_testkit::McpClient;
use windlass_testkit::mcp::{STATELESS, output_of, text_of, work_of};

use crate::{is_error, place, said};

#[tokio::test]
async fn a_variable_is_kept_from_bridge_to_bridge_in_the_same_place() {
    let place = place();
    for (revision, x) in [(STATELESS, "0"), ("2025-11-25", "1"), ("2025-03-26", "2")] {
        let mut agent = McpClient::builder(&place).revision(revision).start().await.unwrap();
        let said = agent.run_ok("x = globals().get('x', -1) + 1; x").await;
        assert_eq!(said, format!("{x}\n"), "{revision}");
        assert!(agent.close().await.unwrap().success());
    }
}

#[tokio::test]
async fn sessions_are_of_a_directory_a_client_and_a_name() {
    let place = place();
    let elsewhere = place.base().join("elsewhere");
    let own = || McpClient::builder(&place);
    let mut agent = own().start().await.unwrap();
    assert_eq!(agent.run_ok("x = 5").await, "");
    let mut others = vec![
        own().directory(&elsewhere).start().await.unwrap(),
        own().name("another").start().await.unwrap(),
        own().arg("--memory").arg("1G").start().await.unwrap(),
    ];
    for other in &mut others {
        assert_eq!(other.run_ok("'x' in globals()").await, "False\n");
    }
    let named = json!({"code": "'x' in globals()", "session": "plots"});
    let named = agent.call("run", named).await;
    assert_eq!(output_of(&named), "False\n");
    assert!(text_of(&named).contains("new session"), "{named}");

    // With its full id, the session's output can be read, but no code runs in it.
    let whole = agent.run("print('mine')").await;
    let session = said(&whole, "session");
    for other in &mut others[..2] {
        let read = other.call("read_output", json!({"session": session})).await;
        assert_eq!(output_of(&read), "mine\n", "{read}");
        let refused = other.call("run", json!({"code": "x", "session": session})).await;
        assert!(is_error(&refused), "{refused}");
        assert!(text_of(&refused).contains("does not belong to this client"), "{refused}");
    }
    // Its prompts are not forwarded either: a client that could ask its user only sees that the session
    // waits.
    let asks = own().name("asking").capabilities(json!({"elicitation": {}}));
    let mut asking = asks.start().await.unwrap();
    agent.call("run", json!({"code": "_ = input('name? ')", "wait_seconds": 1})).await;
    let waits = asking.call("continue", json!({"session": session})).await;
    assert_eq!(said(&waits, "state"), "waiting_for_input", "{waits}");
    assert!(!asking.has_said("elicitation/create"));
    agent.call("continue", json!({"input": "ada"})).await;
    // A client with its own policy cannot even read it.
    for tool in ["read_output", "continue", "interrupt", "reset"] {
        let refused = others[2].call(tool, json!({"session": session})).await;
        assert!(is_error(&refused), "{tool}: {refused}");
    }
    let uri = format!("windlass://sessions/{}/output", session.as_str().unwrap());
    let read = others[0].request("resources/read", json!({"uri": uri})).await.unwrap();
    assert_eq!(read.unwrap()["contents"][0]["text"], "mine\n");
    let refused = others[2].request("resources/read", json!({"uri": uri})).await.unwrap();
    assert!(refused.is_err(), "{refused:?}");
    assert_eq!(agent.run_ok("x").await, "5\n");
}

#[tokio::test]
async fn a_session_works_in_the_agents_directory() {
    let place = place();
    let mut agent = McpClient::start(&place).await.unwrap();
    std::fs::write(work_of(&place).join("given"), "to read").unwrap();
    let code = "open('made', 'w').write('by the session'); open('given').read()";
    assert_eq!(agent.run_ok(code).await, "'to read'\n");
    let made = std::fs::read_to_string(work_of(&place).join("made")).unwrap();
    assert_eq!(made, "by the session");
}

#[tokio::test]
async fn a_read_only_agent_cannot_write_where_it_works() {
    let place = place();
    let builder = McpClient::builder(&place).arg("--policy").arg("read-only");
    let mut agent = builder.start().await.unwrap();
    std::fs::write(work_of(&place).join("given"), "to read").unwrap();
    assert_eq!(agent.run_ok("open('given').read()").await, "'to read'\n");
    for code in ["open('given', 'w')", "open('made', 'w')", "import os; os.remove('given')"] {
        let refused = agent.run(code).await;
        assert!(is_error(&refused), "{code}: {refused}");
        let name = said(&refused, "error")["name"].as_str().unwrap();
        assert!(["PermissionError", "OSError"].contains(&name), "{code}: {refused}");
    }
    let left = std::fs::read_dir(work_of(&place)).unwrap().count();
    assert_eq!(left, 1);
    assert_eq!(std::fs::read(work_of(&place).join("given")).unwrap(), b"to read");
}

#[tokio::test]
async fn an_agent_started_in_the_home_or_in_the_root_gets_a_separate_workspace() {
    let place = place();
    let home = place.base().join("home");
    for directory in [home.as_path(), Path::new("/")] {
        let builder = McpClient::builder(&place).env("HOME", &home).directory(directory);
        let mut agent = builder.start().await.unwrap();
        let reply = agent.run("import os; open('made', 'w').close(); os.getcwd()").await;
        assert!(!is_error(&reply), "{reply}");
        let workspace = workspace_of(&mut agent, said(&reply, "session")).await;
        let state = place.dirs().state.canonicalize().unwrap();
        assert!(Path::new(&workspace).starts_with(&state), "{workspace}");
        assert!(Path::new(&workspace).join("made").exists(), "{workspace}");
        assert!(!directory.join("made").exists());
        assert!(agent.call("reset", json!({"end": true})).await["isError"] != true);
    }
}

async fn workspace_of(agent: &mut McpClient, session: &Value) -> String {
    let listed = agent.call("sessions", json!({})).await;
    let sessions = said(&listed, "sessions").as_array().unwrap();
    let found = sessions.iter().find(|it| it["session"] == *session).unwrap();
    found["workspace"].as_str().unwrap().to_owned()
}
