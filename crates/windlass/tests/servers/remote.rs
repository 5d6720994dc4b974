//! Servers that are reached by a URL, for example the MCP door of another node.

use serde_json::json;
use windlass_client::Token;
use windlass_client::protocol::api::ServerState;
use windlass_testkit::TestNode;

use crate::Place;

#[tokio::test]
async fn a_server_over_http_is_called_and_found_again_after_it_was_away() {
    let program = env!("CARGO_BIN_EXE_windlass");
    let state = tempfile::tempdir().unwrap();
    let listening = |address: &str| {
        TestNode::builder(program).state_dir(state.path()).arg("--listen").arg(address)
    };
    let mut remote = listening("127.0.0.1:0").start().await.unwrap();
    let status = remote.client().await.unwrap().node_status().await.unwrap();
    let address = status.listen.unwrap();
    let token = std::fs::read_to_string(remote.dirs().token()).unwrap();
    assert!(Token::parse(token.trim()).is_some());
    let header = format!("Bearer {}", token.trim());
    let entry =
        json!({"url": format!("http://{address}/mcp"), "headers": {"Authorization": header}});
    let wrong = json!({"url": format!("http://{address}/mcp"), "headers": {}});
    let place = Place::start(json!({"far": entry, "locked": wrong})).await;
    let session = place.session(&["far.*"]).await;
    place.sees(&session, "far.run").await;
    let code = "print(tools.far.run(code='6 * 7')['outcome'])\n\
                print(len(tools.far.sessions()['sessions']))";
    assert_eq!(place.run(&session, code).await, "ok\n1\n");
    let list = place.servers_once(|list| list.servers[1].reason.is_some()).await;
    assert!(list.servers[1].reason.as_ref().unwrap().contains("401"), "{list:?}");
    assert_eq!(list.servers[0].pid, None);

    remote.kill9();
    let away = "try:\n    tools.far.sessions()\nexcept tools.ToolHostGone as e:\n    print('gone')";
    assert_eq!(place.run(&session, away).await, "gone\n");
    place.server_once(|server| server.state == ServerState::Waiting).await;
    let _again = listening(&address).start().await.unwrap();
    place.server_once(|server| server.state == ServerState::Running).await;
    place.sees(&session, "far.run").await;
    let code = "tools.far.run(code='6 * 7')['outcome']";
    assert_eq!(place.run(&session, code).await, "'ok'\n");
}
