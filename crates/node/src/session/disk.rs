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

    fn keep(&mut self, records: Vec<NewEvent>) {
        for record in records {
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
        let records = std::mem::take(&mut self.records);
        if let Err(records) = self.try_write(records) {
            self.owed.keep(records);
            self.stop_for_room();
        }
    }

    /// Writes what is owed and then `records`, or gives `records` back.
    pub(super) fn try_write(&mut self, records: Vec<NewEvent>) -> Result<(), Vec<NewEvent>> {
        if !self.owed.is_empty() {
            let owed = self.owed.take();
            if let Err(owed) = self.append(owed) {
                self.owed.keep(owed);
                return Err(records);
            }
        }
        self.append(records)
    }

    fn append(&mut self, records: Vec<NewEvent>) -> Result<(), Vec<NewEvent>> {
        match self.log.append(records.clone()) {
            Ok(_) => Ok(()),
            Err(error) => {
                self.context.metrics.append_failed();
                if !matches!(error, AppendError::DiskFull { .. }) {
                    tracing::error!(session = %self.id, %error, "the journal cannot be written");
                }
                Err(records)
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
            self.owed.keep(std::mem::take(&mut self.records));
        }
    }
}
