//! Helpers for tests with real processes: a node of a test's own, load on the machine, facts about
//! processes, and waits with a deadline. For tests only; nothing that is shipped uses it.
//!
//! No process started through [`TestNode`] or [`Load`] outlives it, also when the test panics.

mod asking;
pub mod attacks;
pub mod bombs;
pub mod escape;
mod gate;
mod load;
pub mod mcp;
mod mcp_server;
mod node;
mod odd_node;
mod odd_worker;
mod place;
pub mod processes;
mod python;
pub mod raw_http;
mod skip;
mod tool_host;
mod wait;

pub use asking::{PATIENCE, all_events, named_turn, run, run_ok, turn};
pub use gate::{AtGate, Gate};
pub use load::Load;
pub use mcp::McpClient;
pub use mcp_server::mcp_server;
pub use node::{TestNode, TestNodeBuilder};
pub use odd_node::OddNode;
pub use odd_worker::odd_worker;
pub use place::outside_of_tmp;
pub use python::{python, python_with_matplotlib};
pub use skip::skip;
pub use tool_host::{Call, Offered, ToolHost};
pub use wait::{turn_ended, wait_for_event, within};
