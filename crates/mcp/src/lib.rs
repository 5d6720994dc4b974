//! The MCP door: a node's sessions as a few tools for agents, written on the client crate.
//!
//! Theory of operation. [`Door`] is one `rmcp` handler, the same for standard input and output
//! ([`serve_stdio`], the bridge that an agent starts) and for streamable HTTP on the node
//! ([`http`]). It holds no state that a call needs: a session is found by its name, and the name
//! comes from the client, its directory and its policy, so a new process of the same agent finds
//! the session of the last one. A long turn is a turn id in the node's journal, whether it is
//! shown as an MCP task or as a reply that says "running".
//!
//! What the code did wrong is a tool's error, which the model reads. What the client did wrong to
//! the protocol is a protocol's error, which it does not.

mod arguments;
mod call;
mod codex;
mod door;
mod follow;
pub mod http;
mod images;
mod input;
mod names;
mod reply;
mod resources;
mod schema;
pub mod servers;
mod sessions;
mod stdio;
mod tasks;
mod tools;

pub use door::{Connect, Connecting, Door, DoorOptions, Transport};
pub use stdio::{BridgeError, serve_stdio};
