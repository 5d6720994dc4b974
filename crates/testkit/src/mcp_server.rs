//! MCP servers of a test's own, as a node's file names them: a real process, in all its moods.

use std::path::PathBuf;

use serde_json::{Value, json};

use crate::python;

/// The entry of a server for `mcp.json`: the program of `crates/testkit/servers/server.py`, whose
/// first lines say what it may be told.
pub fn mcp_server(arguments: &[&str]) -> Value {
    let script = PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/servers/server.py"));
    let mut args = vec!["-S".to_owned(), script.display().to_string()];
    args.extend(arguments.iter().map(|argument| (*argument).to_owned()));
    json!({"command": python().display().to_string(), "args": args})
}
