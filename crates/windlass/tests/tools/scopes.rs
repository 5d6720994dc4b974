//! Which host's tools code finds, in real sessions.

use serde_json::json;
use windlass_client::Client;
use windlass_client::protocol::api::CreateSession;
use windlass_client::protocol::{Owner, SessionId};
use windlass_client::tools::ToolScope;
use windlass_testkit::{
    PATIENCE, TestNode, TestToolCall, TestToolHost, ToolResult, run_ok, within,
};

use crate::{start, start_session};

/// A tool that returns its name.
fn saying(name: &'static str) -> impl Fn(TestToolCall) -> std::future::Ready<ToolResult> {
    move |_call| std::future::ready(Ok(json!(name)))
}

async fn session_of(client: &Client, owner: &Owner) -> SessionId {
    let create = CreateSession { owner: Some(owner.clone()), ..TestNode::create() };
    client.create_session(&create).await.unwrap().session.id
}

#[tokio::test]
async fn an_owners_tools_are_there_in_present_and_future_sessions_of_his_alone() {
    let (node, client) = start().await;
    let [me, you] = ["me", "you"].map(|name| Owner::parse(name).unwrap());
    let present = session_of(&client, &me).await;
    let scope = ToolScope::Owner(me.clone());
    let host = TestToolHost::offer_to(&client, &scope, &["who"], saying("mine")).await.unwrap();
    let future = session_of(&client, &me).await;
    for session in [&present, &future] {
        assert_eq!(run_ok(&client, session, "print(tools.who())").await, "mine\n");
    }
    let nobodys = node.session(&client).await.unwrap().id;
    for session in [session_of(&client, &you).await, nobodys] {
        let code = "try: tools.who()\nexcept tools.ToolNotFound as e: print('no')";
        assert_eq!(run_ok(&client, &session, code).await, "no\n");
    }
    drop(host);
}

#[tokio::test]
async fn the_newest_host_of_a_session_answers_and_the_former_again_when_it_goes() {
    let (_node, client, session) = start_session().await;
    let former = TestToolHost::offer(&client, &session, &["who"], saying("former")).await.unwrap();
    let newest = TestToolHost::offer(&client, &session, &["who"], saying("newest")).await.unwrap();
    // A call in flight to a host that disconnects fails with an error.
    let code = "try: print(tools.who())\nexcept tools.ToolHostGone: print('gone')";
    let ask = async || run_ok(&client, &session, code).await;
    assert_eq!(ask().await, "newest\n");
    within(PATIENCE, former_answers(newest, ask)).await;
    drop(former);
}

/// Disconnects the newest host, and calls until that is known.
async fn former_answers(newest: TestToolHost, ask: impl AsyncFn() -> String) {
    drop(newest);
    while ask().await != "former\n" {}
}

#[tokio::test]
async fn code_can_list_the_tools() {
    let (_node, client, session) = start_session().await;
    let names = ["files.read", "files.write", "weather"];
    let host = TestToolHost::offer(&client, &session, &names, saying("x")).await.unwrap();
    let said = run_ok(
        &client,
        &session,
        "print(sorted(n for n in dir(tools) if n in ('files', 'weather', 'search')))",
    )
    .await;
    assert_eq!(said, "['files', 'search', 'weather']\n");
    let code = "print([t['name'] for t in tools.search('read a file')])";
    assert_eq!(run_ok(&client, &session, code).await, "['files.read', 'files.write']\n");
    let code = "try: tools.files.raed()\nexcept tools.ToolNotFound as e: print(e)";
    let said = run_ok(&client, &session, code).await;
    assert!(said.contains("files.read"), "{said}");
    drop(host);
}
