//! A snapshot of this process's mount table, and whether the table has changed since.

use std::fs::File;
use std::sync::{Mutex, PoisonError};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

const TABLE: &str = "/proc/self/mountinfo";

/// An open mount table. The kernel reports each change once: `poll` returns if the table has changed since it
/// was opened or last polled.
#[derive(Debug)]
struct MountTableWatch {
    table: File,
    changes: u64,
}

static WATCH: Mutex<Option<MountTableWatch>> = Mutex::new(None);

/// The mount table at one moment.
#[derive(Debug, Clone, Eq)]
pub(crate) struct MountTable {
    /// The change counter at that moment; `None` where the table cannot be watched.
    changes: Option<u64>,
    table: Option<Vec<u8>>,
}

impl MountTable {
    pub fn now() -> Self {
        // The counter is read first: a change in between then counts as a later change.
        let changes = changes();
        Self { changes, table: read() }
    }

    pub fn is_current(&self) -> bool {
        let changes = changes();
        let is_same = || self.table.is_some() && self.table == read();
        changes.is_some() && changes == self.changes || is_same()
    }
}

impl PartialEq for MountTable {
    fn eq(&self, other: &Self) -> bool {
        self.table.is_some() && self.table == other.table
    }
}

/// The table as bytes: the path of a mount need not be UTF-8. A table that cannot be read equals no other
/// table.
fn read() -> Option<Vec<u8>> {
    std::fs::read(TABLE).ok()
}

/// The number of changes seen so far.
fn changes() -> Option<u64> {
    let mut watch = WATCH.lock().unwrap_or_else(PoisonError::into_inner);
    let watch = match &mut *watch {
        Some(watch) => watch,
        none => none.insert(MountTableWatch { table: File::open(TABLE).ok()?, changes: 0 }),
    };
    let mut polled = [PollFd::new(&watch.table, PollFlags::PRI)];
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    // A failed poll counts as a change.
    if !matches!(poll(&mut polled, Some(&now)), Ok(0)) {
        watch.changes += 1;
    }
    Some(watch.changes)
}
