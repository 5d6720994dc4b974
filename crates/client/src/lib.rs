//! Talks to a node: the Rust SDK, and how the CLI and the other doors reach a node.
//!
//! Theory of operation. A [`Client`] holds a small pool of keep-alive HTTP/1.1 connections to the
//! node's unix socket, or to its TCP door with the node's token. A connection is driven by the task that uses it, not by one of its own: a
//! warm request costs one write, one read and no hop between threads. When the node is absent a
//! client may start it: an exclusive lock makes many first clients start exactly one, and the
//! node's own word on its standard output says when it is ready, so nobody polls.
//!
//! What may be repeated is repeated: a request that never left, or one that the node would do only
//! once (reads, turns with a chosen id), is sent again for [`RETRY_FOR_DEFAULT`] after a
//! connection failed. Everything else is reported, never guessed.
//!
//! This crate never touches the terminal and never decides what a failure means to its caller.

mod address;
mod call;
mod client;
mod connection;
mod dirs;
mod endpoints;
mod error;
mod events;
pub mod files;
pub mod timers;
mod query;
mod random;
mod sse;
mod start;
pub mod stream;
mod token;
pub mod tools;

pub use address::RemoteNode;
pub use client::{Client, RETRY_FOR_DEFAULT, StartNode};
pub use dirs::{Dirs, DirsError};
pub use endpoints::{DisplayBytes, OutputBytes, WhichSessions, fresh_turn_id};
pub use error::ClientError;
pub use events::EventStream;
pub use start::{LaunchedNode, NodeStartError, rotate_log, launch_node};
pub use token::{Token, TokenError};
pub use windlass_protocol as protocol;
