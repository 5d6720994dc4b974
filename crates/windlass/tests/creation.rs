//! A node that dies while it creates sessions: each session is created completely or does not exist.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::time::Duration;

use windlass_client::Client;
use windlass_client::protocol::api::{CloseQuery, CreateSession};
use windlass_client::protocol::{ErrorCode, SessionId};
use windlass_testkit::{PATIENCE, TestNode, run_ok, within};

const PROGRAM: &str = env!("CARGO_BIN_EXE_windlass");

/// Number of sessions that are requested at the same time.
const AT_ONCE: usize = 6;

/// Number of moments of the creation at which the node is killed.
const MOMENTS: u64 = 12;
const APART: Duration = Duration::from_millis(2);

fn wanted(name: &str) -> CreateSession {
    let id = Some(SessionId::parse(name).unwrap());
    CreateSession { id, ..TestNode::create() }
}

/// Requests sessions until the node is gone, and returns those that the node reported as created.
fn ask_for(client: &Client, names: &[String]) -> Vec<tokio::task::JoinHandle<bool>> {
    let ask = |name: &String| {
        let (client, wanted) = (client.clone(), wanted(name));
        tokio::spawn(async move { client.create_session(&wanted).await.is_ok() })
    };
    names.iter().map(ask).collect()
}

async fn killed_at_each_moment(way: &str) {
    let mut node = TestNode::builder(PROGRAM).env("WINDLASS_START", way).start().await.unwrap();
    for moment in 0..MOMENTS {
        node.await_environments().await.unwrap();
        let names: Vec<String> = (0..AT_ONCE).map(|n| format!("s{moment}-{n}")).collect();
        let asked = ask_for(&node.client().await.unwrap(), &names);
        tokio::time::sleep(APART * u32::try_from(moment).unwrap()).await;
        node.kill9();
        let mut answered = Vec::new();
        for one in asked {
            answered.push(within(PATIENCE, one).await.unwrap());
        }
        node.restart().await.unwrap();
        let client = node.client().await.unwrap();
        for (name, answered) in names.iter().zip(answered) {
            let again = client.create_session(&wanted(name)).await;
            let code = again.err().and_then(|error| error.api_code());
            let there = code == Some(ErrorCode::SessionExists);
            assert!(there || !answered, "{way} {moment}: {name} was made and is not there");
            assert!(there || code.is_none(), "{way} {moment}: {name}: {code:?}");
            let id = SessionId::parse(name).unwrap();
            assert_eq!(within(PATIENCE, run_ok(&client, &id, "40 + 2")).await, "42\n", "{name}");
            client.close_session(&id, CloseQuery::default()).await.unwrap();
        }
    }
}

#[tokio::test]
async fn a_node_that_is_killed_while_it_starts_programs_makes_each_session_once() {
    killed_at_each_moment("exec").await;
}

#[tokio::test]
async fn a_node_that_is_killed_while_it_forks_makes_each_session_once() {
    killed_at_each_moment("zygote").await;
}

#[tokio::test]
async fn a_node_that_is_killed_while_workers_are_claimed_makes_each_session_once() {
    killed_at_each_moment("pool").await;
}

#[tokio::test]
async fn a_session_whose_keeper_cannot_start_does_not_exist_and_can_be_requested_again() {
    let node = TestNode::builder(PROGRAM).env("WINDLASS_START", "exec").start().await.unwrap();
    let client = node.client().await.unwrap();
    let sockets = node.dirs().runtime.join("k");
    let aside = node.dirs().runtime.join("aside");
    std::fs::rename(&sockets, &aside).unwrap();
    std::fs::write(&sockets, "").unwrap();
    let refused = client.create_session(&wanted("first")).await;
    std::fs::remove_file(&sockets).unwrap();
    std::fs::rename(&aside, &sockets).unwrap();
    assert!(refused.is_err(), "{refused:?}");
    let id = SessionId::parse("first").unwrap();
    let found = client.session(&id).await;
    let code = found.err().and_then(|error| error.api_code());
    assert_eq!(code, Some(ErrorCode::SessionNotFound));
    client.create_session(&wanted("first")).await.unwrap();
    assert_eq!(within(PATIENCE, run_ok(&client, &id, "40 + 2")).await, "42\n");
}
