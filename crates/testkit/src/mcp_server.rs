//! Real MCP server processes for tests, in the form of an entry of the node's file.

use std::path::PathBuf;

use serde_json::{Value, json};

use crate::python;

/// The entry of a server for `mcp.json`. It runs `crates/testkit/servers/server.py`; the first lines of that
/// file describe the arguments.
pub fn mcp_server(arguments: &[&str]) -> Value {
    let script = PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/servers/server.py"));
    let mut args = vec!["-S".to_owned(), script.display().to_string()];
    args.extend(arguments.iter().map(|argument| (*argument).to_owned()));
    json!({"command": python().display().to_string(), "args": args})
}
