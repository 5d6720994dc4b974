//! Remembers: every event of every session, its output, its ended turns.
//!
//! Theory of operation. A session is a directory of append-only segment files (`docs/journal.md`).
//! The segments are the truth. An append is one write to the newest segment and nothing else that
//! could wait: no fsync, no index, no reader. What was written survives the death of the node,
//! because the kernel has it. Each segment starts with the session's [`SessionFacts`] so far, so opening
//! a session again reads its newest segment only, cuts off what is not a whole record, and folds
//! the rest; the fold is the same code that keeps the facts while events are appended.
//!
//! The SQLite index answers "which sessions are there" and "how did this turn end" without reading
//! segments. It is written behind, by one thread, and made again from the segments when it is lost.
//! What it does not have yet is kept in memory, so a lookup right after an append finds its turn.
//!
//! Past its quota a session keeps its first half and its newest bytes, and counts what it dropped.
//!
//! This crate never decides what happens, knows no process and no clock. All calls block; those
//! that read much belong on a thread that may.

mod facts;
mod index;
mod indexer;
mod journal;
mod load;
mod log;
mod new_dir;
mod quota;
mod reader;
mod record;
mod retention;
mod search;
mod segment;
mod shared;
mod startup;

pub use facts::{DISPLAYS_MAX, NewSession, OpenTurn, SessionFacts, TurnRecord};
pub use index::IndexError;
pub use journal::{
    CreateError, Journal, JournalOptions, OpenError, OpenSessionError, RecoveredSession,
    RemoveError,
};
pub use load::LoadError;
pub use log::{AppendError, AppendedBatch, NewEvent, SessionLog};
pub use quota::{QUOTA_BYTES_DEFAULT, QUOTA_BYTES_MIN};
pub use reader::{
    OUTPUT_SLICE_BYTES_MAX, OutputRange, OutputScope, OutputSlice, ReadError, SessionReader,
};
pub use record::EVENT_BYTES_MAX;
pub use retention::{EndedSession, RetentionOptions, sessions_to_remove};
pub use search::{LINE_BYTES_MAX, NEEDLE_BYTES_MAX, OutputMatch, OutputMatches};
pub use segment::FORMAT;
pub use startup::IndexLocation;
