//! The revisions of the protocol: the server uses the one that the client requests.

use serde_json::{Value, json};
use windlass_testkit::McpClient;
use windlass_testkit::mcp::{STATELESS, WITH_A_BEGINNING};

use crate::{is_error, place};

#[tokio::test]
async fn the_server_uses_the_revision_that_the_client_requests() {
    let place = place();
    for revision in WITH_A_BEGINNING {
        let mut agent = McpClient::builder(&place).revision(revision).spawn().unwrap();
        let begun = agent.initialize().await.unwrap();
        assert_eq!(begun["protocolVersion"], revision, "{begun}");
        assert_eq!(begun["serverInfo"]["name"], "windlass", "{begun}");
        assert!(begun["capabilities"]["tools"].is_object(), "{begun}");
        assert!(begun["instructions"].as_str().unwrap().contains("session"), "{begun}");
        assert_eq!(agent.run_ok("6 * 7").await, "42\n", "{revision}");
    }
    let mut agent = McpClient::builder(&place).revision(STATELESS).start().await.unwrap();
    let found = agent.request("server/discover", json!({})).await.unwrap().unwrap();
    let mut spoken: Vec<Value> = found["supportedVersions"].as_array().unwrap().clone();
    spoken.sort_by_key(Value::to_string);
    assert_eq!(json!(spoken), json!(["2025-03-26", "2025-06-18", "2025-11-25", STATELESS]));
    assert_eq!(agent.run_ok("6 * 7").await, "42\n", "{STATELESS}");
}

#[tokio::test]
async fn a_client_of_an_unknown_revision_is_offered_a_known_one() {
    let place = place();
    let mut agent = McpClient::builder(&place).revision("2020-01-01").spawn().unwrap();
    let begun = agent.initialize().await.unwrap();
    let offered = begun["protocolVersion"].as_str().unwrap();
    assert!(WITH_A_BEGINNING.contains(&offered), "{begun}");
}

#[tokio::test]
async fn an_older_client_never_gets_what_only_the_newest_revision_has() {
    let place = place();
    for revision in WITH_A_BEGINNING {
        let mut agent = McpClient::builder(&place).revision(revision).start().await.unwrap();
        let asked = json!({"code": "input()", "session": revision});
        let reply = agent.call("run", asked).await;
        assert!(!is_error(&reply) && reply["inputRequests"].is_null(), "{reply}");
        assert_eq!(reply["structuredContent"]["state"], "waiting_for_input", "{reply}");
    }
}

#[tokio::test]
async fn lines_that_are_no_messages_do_not_end_the_bridge() {
    let place = place();
    for revision in [STATELESS, "2025-11-25"] {
        let mut agent = McpClient::builder(&place).revision(revision).start().await.unwrap();
        for line in ["", "not json", "{}", "[]", "7", "{\"jsonrpc\":\"2.0\",\"id\":5,\"method\":5}"]
        {
            agent.write_line(line).unwrap();
        }
        let listed = agent.request("tools/list", json!({})).await.unwrap();
        assert!(listed.is_ok(), "{revision}: {listed:?}");
        assert!(agent.close().await.unwrap().success());
    }
}
