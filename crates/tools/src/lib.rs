//! Host tools: functions that a session's code calls and that a tool host outside the sandbox runs.
//!
//! - [`hub`]: the table of attached hosts, and which session may call which tool;
//! - [`host`]: the queue of messages to one host;
//! - [`builtin`]: the tools that the node itself provides;
//! - [`within`]: which calls are nested in which.
//!
//! The session owns its calls (`node::session::calls`), and the HTTP door owns the wire
//! (`node::http::tools`).

#![deny(clippy::print_stderr, clippy::print_stdout)]

pub mod builtin;
pub mod host;
pub mod hub;
mod refused;
pub mod within;

pub use host::AttachedHost;
pub use hub::{Caller, HostId, HostScope, Hub};
pub use refused::HostRefused;
