//! What is mounted on this machine, as this process sees it, and whether that has changed.

use std::fs::File;
use std::sync::{Mutex, PoisonError};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

const TABLE: &str = "/proc/self/mountinfo";

/// The kernel says of an open table, once, that it has changed since it was opened or last asked.
#[derive(Debug)]
struct Watched {
    table: File,
    changes: u64,
}

static WATCHED: Mutex<Option<Watched>> = Mutex::new(None);

/// What was mounted at some moment.
#[derive(Debug, Clone, Eq)]
pub(crate) struct Mounted {
    /// How many changes there had been then; nothing where that cannot be known.
    changes: Option<u64>,
    table: Option<Vec<u8>>,
}

impl Mounted {
    pub fn now() -> Self {
        // In this order: what changes in between is seen as a change later.
        let changes = changes();
        Self { changes, table: read() }
    }

    pub fn is_current(&self) -> bool {
        let changes = changes();
        let is_same = || self.table.is_some() && self.table == read();
        changes.is_some() && changes == self.changes || is_same()
    }
}

impl PartialEq for Mounted {
    fn eq(&self, other: &Self) -> bool {
        self.table.is_some() && self.table == other.table
    }
}

/// As bytes: a mount's path need not be text. A table that cannot be read is no other's equal.
fn read() -> Option<Vec<u8>> {
    std::fs::read(TABLE).ok()
}

/// How often it was seen to change.
fn changes() -> Option<u64> {
    let mut watched = WATCHED.lock().unwrap_or_else(PoisonError::into_inner);
    let watched = match &mut *watched {
        Some(watched) => watched,
        none => none.insert(Watched { table: File::open(TABLE).ok()?, changes: 0 }),
    };
    let mut asked = [PollFd::new(&watched.table, PollFlags::PRI)];
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    // An interrupted question is a change that may have been.
    if !matches!(poll(&mut asked, Some(&now)), Ok(0)) {
        watched.changes += 1;
    }
    Some(watched.changes)
}
