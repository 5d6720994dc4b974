//! The audit log of a node: who did what. Each record is a line of JSON with the hash of the line before, so that a
//! removed, changed or reordered line is found. `docs/audit-log.md` is the written format.
//!
//! - [`entry`] is what the node records; [`line`] gives it its form and reads it; [`line_reader`] splits files into lines;
//! - [`log`] takes records without waiting; its writer thread ([`writer`]) owns the open file ([`files`]);
//! - [`retention`] says which files are removed;
//! - [`verify`](mod@verify) checks the chain, [`reader`] finds records.
//!
//! Knows no HTTP and no session, and never decides what is recorded.

mod entry;
mod files;
mod line;
mod line_reader;
mod log;
mod queue;
mod reader;
mod retention;
#[cfg(test)]
mod tests;
mod verify;
mod writer;

pub use entry::{AuditActor, AuditDetail, AuditDetails, AuditEntry, shortened};
pub use line::{AuditRecord, ChainHead, LineFault, is_control};
pub use log::{AuditLog, AuditStanding};
pub use reader::{AuditFilter, FoundRecords, find};
pub use retention::AuditOptions;
pub use verify::{Anchor, AuditProblem, VerifiedChain, verify};

/// The directory of the log in the state directory of a node.
pub const DIRECTORY: &str = "audit";
