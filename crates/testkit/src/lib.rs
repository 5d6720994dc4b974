//! Helpers for tests with real processes: a private node, load on the machine, facts about processes, and
//! waits with a deadline. For tests only; no shipped crate uses it.
//!
//! No process started through [`TestNode`] or [`Load`] outlives it, even if the test panics.

pub mod attacks;
pub mod bombs;
mod certificates;
pub mod escape;
pub mod fleet;
mod gate;
mod load;
pub mod mcp;
mod mcp_server;
pub mod nats;
mod node;
mod odd_node;
mod odd_worker;
mod outside_tmp;
pub mod processes;
mod python;
pub mod raw_http;
mod requests;
mod skip;
mod tool_host;
mod wait;

pub use certificates::TestCertificates;
pub use fleet::{TestFleet, TestFleetPlan};
pub use gate::{AtGate, Gate};
pub use load::Load;
pub use mcp::McpClient;
pub use mcp_server::mcp_server;
pub use node::{TestNode, TestNodeBuilder};
pub use odd_node::OddNode;
pub use odd_worker::odd_worker;
pub use outside_tmp::outside_of_tmp;
pub use python::{python, python_with_matplotlib};
pub use requests::{PATIENCE, all_events, named_turn, run, run_ok, turn};
pub use skip::skip;
pub use tool_host::{TestToolCall, TestToolHost, ToolResult};
pub use wait::{eventually, turn_ended, wait_for_event, within};
