//! A journal without room. The turn that hit it is stopped and fails with `disk_full`; its output
//! from there on is counted and dropped; the few records that must not be lost are owed and
//! written first when there is room again.

use bytes::Bytes;
use windlass_journal::{AppendError, NewEvent};
use windlass_lifecycle::Event;
use windlass_protocol::event::{DropReason, EventKind};

use super::actor::Actor;
use crate::clock::now_ms;

/// Records kept for later; more are dropped with their turns unended in the journal, and a
/// recovering node ends those as lost.
const OWED_MAX: usize = 512;

/// Whether records are in the journal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Written {
    Yes,
    No,
}

/// What a full disk still owes the journal.
#[derive(Debug, Default)]
pub(super) struct Owed {
    records: Vec<NewEvent>,
    dropped_bytes: u64,
}

impl Owed {
    fn is_empty(&self) -> bool {
        self.records.is_empty() && self.dropped_bytes == 0
    }

    fn keep(&mut self, records: &mut Vec<NewEvent>) {
        for record in records.drain(..) {
            match record.kind {
                EventKind::Output { .. } => self.dropped_bytes += record.body.len() as u64,
                EventKind::Display { .. } => {}
                _ if self.records.len() < OWED_MAX => self.records.push(record),
                _ => {}
            }
        }
    }

    fn take(&mut self) -> Vec<NewEvent> {
        let mut records = std::mem::take(&mut self.records);
        let bytes = std::mem::take(&mut self.dropped_bytes);
        if bytes > 0 {
            let kind = EventKind::OutputDropped { bytes, reason: DropReason::DiskFull };
            let note =
                NewEvent { at_ms: now_ms(), turn: None, link: None, kind, body: Bytes::new() };
            records.insert(0, note);
        }
        records
    }
}

impl Actor {
    /// Writes this round's records. What cannot be written is owed, and the running turn stopped.
    pub(super) fn write_records(&mut self) {
        if self.records.is_empty() {
            return;
        }
        let mut records = std::mem::take(&mut self.records);
        let written = self.try_write(&mut records);
        if written == Written::No {
            self.owed.keep(&mut records);
            self.stop_for_room();
        }
        // Empty again: its room serves the next round.
        self.records = records;
    }

    /// Writes what is owed and then `records`, which it leaves empty; or leaves them as they are.
    pub(super) fn try_write(&mut self, records: &mut Vec<NewEvent>) -> Written {
        if !self.owed.is_empty() {
            let mut owed = self.owed.take();
            if self.append(&mut owed) == Written::No {
                self.owed.keep(&mut owed);
                return Written::No;
            }
        }
        self.append(records)
    }

    fn append(&mut self, records: &mut Vec<NewEvent>) -> Written {
        match self.log.append_from(records) {
            Ok(_) => Written::Yes,
            Err(error) => {
                self.context.metrics.append_failed();
                if !matches!(error, AppendError::DiskFull { .. }) {
                    tracing::error!(session = %self.id, %error, "the journal cannot be written");
                }
                Written::No
            }
        }
    }

    fn stop_for_room(&mut self) {
        let Some(turn) = self.machine.current() else { return };
        let Some(running) = self.turns.get_mut(turn) else { return };
        if !running.disk_full {
            running.disk_full = true;
            tracing::warn!(session = %self.id, %turn, "the journal has no room; stopping the turn");
            self.step(Event::InterruptAsked { turn });
            let mut records = std::mem::take(&mut self.records);
            self.owed.keep(&mut records);
        }
    }
}
