//! Host tools: functions that a session's code calls and somebody else runs. Owns who offers what to
//! whom ([`hub`]), what waits to be sent to each host ([`host`]) the node's own tools ([`own`]) and
//! which calls are made within which ([`within`]).
//! The calls themselves are their sessions' own affair (`session`), the wire is the door's
//! (`http::tools`).

#![deny(clippy::print_stderr, clippy::print_stdout)]

pub mod host;
pub mod hub;
pub mod own;
mod refused;
pub mod within;

pub use host::Host;
pub use hub::{Caller, HostId, Hub, Scope};
pub use refused::HostRefused;
