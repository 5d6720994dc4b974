//! The worker's half of the worker protocol (`docs/protocol.md`), for workers written in Rust.
//!
//! - [`Link`] is the protocol socket. It never starts a thread and never installs a signal handler, so a poll
//!   loop, an embedded interpreter and an async runtime can all use it.
//! - [`Inbox`] turns bytes into whole messages. It does no I/O.
//! - [`outgoing`] encodes the worker's messages within the limits of the protocol. It does no I/O.
//!
//! A worker removes [`FD_VARIABLE`] from the environment of the code that it runs: from child processes with
//! `Command::env_remove`, from its own process before other threads exist.

mod inbox;
mod link;
pub mod outgoing;
mod text;

pub use inbox::{Inbox, InboxError, KeeperMessage};
pub use link::{Link, WorkerLinkError};
pub use outgoing::Display;
pub use text::shortened;
pub use windlass_protocol::turn::TurnContext;
pub use windlass_protocol::worker::{FD_VARIABLE, StartupFigures, WorkerOutcome};
pub use windlass_protocol::{CallNo, Stream, TurnNo};

/// The environment variable with the size of the session's terminal, `COLUMNSxROWS`. Absent if the session
/// has no terminal.
pub const TERMINAL_VARIABLE: &str = "WINDLASS_TERMINAL";

/// The capabilities that a worker declares in `worker_ready`.
pub mod capability {
    pub use windlass_protocol::worker::CONTEXTS as CONTEXT;
    pub use windlass_protocol::worker::FORKS as FORK;
    pub const STDIN: &str = "stdin";
    pub const INTERRUPT: &str = "interrupt";
    pub const DISPLAY: &str = "display";
    pub const BACKGROUND_OUTPUT: &str = "background_output";
    pub const TOOLS: &str = "tools";
}
