//! The MCP door: a node's sessions as a few tools for agents, built on the client crate.
//!
//! How it works. [`Door`] is one `rmcp` handler for three transports: standard input and output
//! ([`serve_stdio`], the bridge that an agent starts), streamable HTTP on the node ([`http`]), and the
//! tool calls of a session whose worker is an agent ([`agent`]).
//! It keeps no state that a call needs. A session is found by its name, and the name is made of the
//! client, its directory and its policy, so a new process of the same agent finds the session of
//! the previous process. A long turn is a turn id in the node's journal, whether the client sees it
//! as an MCP task or as a reply with the state "running".
//!
//! An error in the code is a tool error, which the model reads. An error in the client's use of MCP
//! is a protocol error, which the model does not read.

pub mod agent;
mod arguments;
mod call;
mod codex;
mod door;
mod fault;
mod follow;
mod handler;
pub mod http;
mod images;
mod input;
mod names;
mod outlook;
mod output;
mod permission;
mod reply;
mod resources;
mod schema;
pub mod servers;
mod sessions;
mod stdio;
mod tasks;
mod tools;

pub use door::{
    AskingScope, Connect, Connecting, Door, DoorOptions, DoorScope, ScopeSource, Transport,
};
pub use stdio::{BridgeError, serve_stdio};
