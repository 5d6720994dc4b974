//! Pure state machines over the messages of `windlass_protocol`. They decide; the node and the keeper act.
//! This crate never links tokio, reads a clock or does I/O. Each decision returns its effects as values,
//! so a test can check every decision as a table.
//!
//! - [`fleet`]: leases, ownership of sessions and copies of events among many nodes.
//! - [`link`]: the delivery guarantees between node and keeper when connections break and nodes die.
//! - [`session`]: the life of one session, and its recovery from the journal.

pub mod fleet;
pub mod link;
pub mod session;

pub use session::{SessionEffect, SessionEvent, SessionMachine, SessionPhase};
