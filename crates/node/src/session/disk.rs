//! A journal without room. The turn that hit it is stopped and fails with `disk_full`; its output
//! from there on is counted and dropped; the few records that must not be lost are owed and
//! written first when there is room again. Until then the keeper holds them too, for the case
//! that this node does not live to write them.

use bytes::Bytes;
use windlass_journal::{AppendError, NewEvent};
use windlass_lifecycle::Event;
use windlass_protocol::api::TurnState;
use windlass_protocol::event::{DropReason, EventKind};
use windlass_protocol::{LinkSeq, TurnNo};

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
    /// The turn whose output was dropped.
    dropped_turn: Option<TurnNo>,
    /// The last event of the keeper's that was dropped.
    dropped_link: Option<LinkSeq>,
}

impl Owed {
    fn is_empty(&self) -> bool {
        self.records.is_empty() && self.dropped_bytes == 0 && self.dropped_link.is_none()
    }

    /// The first event that the keeper must hold while `last` is the last that came. The last is
    /// always among them: a keeper that holds none would be waited for by the next node.
    fn first_unsafe(&self, last: LinkSeq) -> Option<LinkSeq> {
        let first_record = self.records.iter().find_map(|record| record.link);
        (!self.is_empty()).then(|| first_record.map_or(last, |first| first.min(last)))
    }

    fn keep(&mut self, records: &mut Vec<NewEvent>) {
        for record in records.drain(..) {
            let bytes = match record.kind {
                EventKind::Output { .. } => record.body.len() as u64,
                EventKind::OutputDropped { bytes, reason: DropReason::DiskFull } => bytes,
                EventKind::Display { .. } => 0,
                _ if self.records.len() < OWED_MAX => {
                    self.records.push(record);
                    continue;
                }
                _ => 0,
            };
            self.dropped_bytes += bytes;
            self.dropped_turn = self.dropped_turn.or(record.turn);
            self.dropped_link = self.dropped_link.max(record.link);
        }
    }

    fn take(&mut self) -> Vec<NewEvent> {
        let mut records = std::mem::take(&mut self.records);
        let bytes = std::mem::take(&mut self.dropped_bytes);
        let turn = std::mem::take(&mut self.dropped_turn);
        let link = std::mem::take(&mut self.dropped_link);
        if bytes > 0 || link.is_some() {
            let kind = EventKind::OutputDropped { bytes, reason: DropReason::DiskFull };
            let note = NewEvent { at_ms: now_ms(), turn, link, kind, body: Bytes::new() };
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
            self.withhold();
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
            self.withhold();
        }
        self.append(records)
    }

    /// Has the keeper hold what is not in the journal, and nothing else.
    fn withhold(&mut self) {
        let first = self.owed.first_unsafe(self.link.half.after());
        self.link.half.withhold(first);
    }

    /// A node before us was killed while it had no room, and with it went `missing` events that it
    /// could not write. The turn that was cut fails as that node had said.
    pub(super) fn missed_for_room(&mut self, missing: u64) {
        tracing::warn!(session = %self.id, missing, "events are missing since the disk was full");
        if let Some(turn) = self.machine.current()
            && let Some(open) = self.turns.get_mut(turn)
        {
            open.disk_full = true;
        }
        let reason = "the disk was full".to_owned();
        self.record(None, EventKind::MessagesDropped { count: missing, reason }, Bytes::new());
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

    /// A held event tells that a turn was interrupted of which the journal does not know that
    /// anybody asked for it: only a node without room does that, and it said so to its clients.
    pub(super) fn interrupted_without_record(&mut self, turn: TurnNo) {
        let asked = self.machine.turn_state(turn) == TurnState::Interrupting;
        if self.attached.is_some()
            && !asked
            && let Some(open) = self.turns.get_mut(turn)
        {
            open.disk_full = true;
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
