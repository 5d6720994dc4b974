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
async fn calls_are_shown_as_they_happen_without_arguments_and_results() {
    let place = Place::start(json!({"shelf": mcp_server(&[])})).await;
    let session = place.session(&["shelf.*"]).await;
    place.sees(&session, "shelf.add").await;
    let code = "print(tools.shelf.echo(text='word'))\ntry:\n    tools.shelf.fail()\nexcept tools.ToolError: pass";
    let run = |option: &[&str]| {
        let words = [&["run", "--session", session.as_str()][..], option, &["-c", code]].concat();
        say(&place.node, &words).0
    };
    let shown = run(&["-v"]);
    let said: Vec<&str> = shown.lines().collect();
    let about = format!("windlass: [{session} 1.");
    let lines: Vec<&str> = said
        .iter()
        .filter_map(|line| line.strip_prefix(&about)?.split_once("] "))
        .map(|(_, line)| line)
        .collect();
    assert_eq!(lines.len(), 4, "{shown}");
    for (line, start) in lines.iter().zip([
        "-> shelf.echo(15 bytes of arguments)",
        "<- shelf.echo: 6 bytes of result (",
        "-> shelf.fail(2 bytes of arguments)",
        "!! shelf.fail: tool_failed (",
    ]) {
        assert!(line.starts_with(start), "{shown}");
    }
    // Only what the code itself prints has the text, and a pipe gets no colours.
    assert_eq!(shown.matches("word").count(), 1, "{shown}");
    assert!(!shown.contains('\u{1b}'), "{shown}");
    assert_eq!(run(&[]), "word\n");
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
