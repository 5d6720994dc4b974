//! Decides, and does nothing else: pure state machines over the words of `windlass_protocol`.
//! This crate never links tokio, reads a clock or does I/O; what must be done comes out as values
//! for the node to perform, so that every decision can be tested as a table.
//!
//! - [`link`]: what node and keeper promise each other across cuts, kills and rivals.
//! - [`session`]: one session's life, and how it is recovered from the journal.

pub mod link;
pub mod session;

pub use session::{SessionEffect, SessionEvent, SessionMachine, SessionPhase};
