//! Talks to a node: the Rust SDK. The CLI and the other doors reach a node through it.
//!
//! How it works. A [`Client`] holds a small pool of keep-alive HTTP/1.1 connections to the node's
//! unix socket, or to its TCP door (`http` or `https`) with the node's token. The task that uses a connection drives
//! it; there is no task per connection. So a warm request costs one write, one read and no hop
//! between threads.
//!
//! If no node runs, a client may start one. An exclusive lock makes sure that many first clients
//! start exactly one node. The node writes a line to its standard output when it is ready, so no
//! client polls.
//!
//! The client sends a request again only if that is safe: the request never left, or the node
//! carries it out once however often it arrives (reads, turns with a chosen id). It retries for
//! [`RETRY_FOR_DEFAULT`] after a connection failed. Every other failure is reported.
//!
//! This crate never touches the terminal and never decides what a failure means to its caller.

mod address;
mod call;
mod client;
mod codes;
mod connection;
mod dirs;
pub mod door_stream;
mod endpoints;
mod error;
mod events;
pub mod files;
mod named_tokens;
mod query;
mod random;
mod sse;
mod start;
pub mod stream;
pub mod timers;
mod tls;
mod token;
pub mod tools;

pub use address::RemoteNode;
pub use client::{Client, RETRY_FOR_DEFAULT, StartNode};
pub use codes::CLIENT_CODES;
pub use dirs::{Dirs, DirsError};
pub use endpoints::{DisplayBytes, OutputBytes, WhichSessions, fresh_turn_id};
pub use error::ClientError;
pub use events::EventStream;
pub use named_tokens::{
    NAMED_TOKENS_MAX, NamedToken, NamedTokenError, NamedTokens, NewToken, TokenRights, TokenScope,
};
pub use start::{LaunchedNode, NodeStartError, launch_node, rotate_log};
pub use tls::TlsError;
pub use token::{Token, TokenError};
pub use windlass_protocol as protocol;
