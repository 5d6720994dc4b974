//! `windlass servers` and `windlass tools`, as a user sees them.

use std::process::Command;

use serde_json::json;
use windlass_testkit::{TestNode, mcp_server};

use crate::Place;

/// The output of the command, and whether it succeeded.
fn say(node: &TestNode, args: &[&str]) -> (String, bool) {
    let output = Command::new(node.program())
        .args(args)
        .env("WINDLASS_RUNTIME_DIR", &node.dirs().runtime)
        .env("WINDLASS_STATE_DIR", &node.dirs().state)
        .env("NO_COLOR", "1")
        .output()
        .unwrap();
    let text = [output.stdout, output.stderr].concat();
    (String::from_utf8(text).unwrap(), output.status.success())
}

#[tokio::test]
async fn servers_and_tools_are_shown() {
    let ruin = mcp_server(&["--dies"]);
    let place = Place::start(json!({"my-shelf": mcp_server(&[]), "ruin": ruin})).await;
    let session = place.session(&["my_shelf.*"]).await;
    place.sees(&session, "my_shelf.add").await;
    let (said, well) = say(&place.node, &["servers", "--wait", "20s"]);
    assert!(well, "{said}");
    let lines: Vec<&str> = said.lines().collect();
    assert!(lines[0].starts_with("SERVER") && lines[0].contains("RESTARTS"), "{said}");
    assert!(lines[1].starts_with("my-shelf (my_shelf)  by policy"), "{said}");
    assert!(lines[1].ends_with("running"), "{said}");
    assert!(
        lines[2].contains("restart in") && lines[2].contains("the cellar is flooded"),
        "{said}"
    );
    let (said, _) = say(&place.node, &["servers", "--json"]);
    let list: serde_json::Value = serde_json::from_str(&said).unwrap();
    assert_eq!(list["servers"][0]["tools"], 11);
    let (said, well) = say(&place.node, &["tools", session.as_str(), "add", "numbers"]);
    assert!(well && said.contains("my_shelf.add(a: int, b: int)"), "{said}");
    assert!(said.contains("Add two numbers") && !said.contains("echo"), "{said}");
}

#[tokio::test]
async fn a_broken_file_and_no_servers_are_told_apart() {
    let broken = Place::with_file(r#"{"mcpServers": []}"#, |builder| builder).await;
    let (said, well) = say(&broken.node, &["servers"]);
    assert!(!well && said.contains("mcp.json is not understood"), "{said}");
    let empty = Place::start(json!({})).await;
    let (said, well) = say(&empty.node, &["servers"]);
    assert!(well && said.contains("no MCP servers are listed in"), "{said}");
}
