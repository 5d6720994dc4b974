//! The MCP door through `windlass mcp`, as an agent uses it: a real bridge, a real node, a real Python. The
//! contract lines are in `contract_mcp`.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod continuing;
mod input;
mod long_turn;
mod output;
mod permissions;
mod place;
mod revisions;
mod running;
mod tasks;
mod tools;

use serde_json::{Value, json};
use windlass_testkit::{McpClient, TestNode, processes};

/// Private directories. The first call that needs a node starts it in them.
fn place() -> TestNode {
    TestNode::builder(env!("CARGO_BIN_EXE_windlass")).prepare().unwrap()
}

/// A client of the stateless revision that accepts task handles, and can ask its user if the capabilities say
/// so.
fn task_client(place: &TestNode, elicitation: bool) -> windlass_testkit::mcp::McpClientBuilder {
    let mut capabilities = json!({"extensions": {"io.modelcontextprotocol/tasks": {}}});
    if elicitation {
        capabilities["elicitation"] = json!({});
    }
    let revision = windlass_testkit::mcp::STATELESS;
    McpClient::builder(place).revision(revision).capabilities(capabilities).with_gates()
}

/// Kills the only node of this directory with SIGKILL.
fn kill_node(place: &TestNode) {
    let nodes: Vec<u32> = processes::nodes(place.base()).into_iter().collect();
    assert_eq!(nodes.len(), 1, "{nodes:?}");
    processes::kill(nodes[0]);
    assert!(processes::wait_gone(nodes[0], windlass_testkit::PATIENCE));
}

/// A field of the structured content of a turn's result.
fn said<'r>(reply: &'r Value, field: &str) -> &'r Value {
    &reply["structuredContent"][field]
}

fn is_error(reply: &Value) -> bool {
    reply["isError"] == json!(true)
}
