//! The journal stores every event of every session, the output, and the ended turns.
//!
//! How it works:
//! - A session is a directory of append-only segment files (`docs/journal.md`). The segments are the source
//!   of truth.
//! - An append is one write to the newest segment. It waits for no fsync, no index and no reader. Written
//!   events survive the death of the node, because the kernel has them.
//! - Each segment starts with the [`SessionFacts`] so far. Opening a session therefore reads only its newest
//!   segment, cuts off a torn tail, and folds the records into the facts. The same fold updates the facts
//!   during appends.
//! - The SQLite index answers which sessions exist and how a turn ended, without reading segments. One
//!   thread writes it in the background. A lost index is rebuilt from the segments. Turns that are not
//!   indexed yet stay in memory, so a lookup right after an append finds its turn.
//! - Past its quota, a session keeps its first half and its newest bytes, and counts the dropped bytes.
//!
//! This crate makes no decisions about sessions, and it knows no processes and no clock. All calls block.
//! Long reads belong on a thread that may block.

mod copied;
mod event_log;
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

pub use copied::{CopiedReader, CopiedSession};
pub use event_log::{EventLog, EventReader};
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
    StreamEnds,
};
pub use record::EVENT_BYTES_MAX;
pub use retention::{EndedSession, LiveBytes, RetentionOptions, sessions_to_remove};
pub use search::{LINE_BYTES_MAX, NEEDLE_BYTES_MAX, OutputMatch, OutputMatches};
pub use segment::FORMAT;
pub use startup::IndexLocation;
