//! A session's journal, and what happens when its disk is full. The running turn is stopped and fails with
//! `disk_full`; its further output is counted and dropped. The few records that must not be lost are
//! *owed*: they are kept in memory and written first when the disk has space again. Until then the keeper
//! holds their events too, in case this node dies first.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use bytes::Bytes;
use windlass_journal::{AppendError, NewEvent, SessionFacts, SessionLog};
use windlass_lifecycle::link::NodeHalf;
use windlass_protocol::api::Ended;
use windlass_protocol::event::{DropReason, EventKind};
use windlass_protocol::link::AttachReply;
use windlass_protocol::{ErrorCode, LinkSeq, Outcome, TurnNo};

use super::limits::explain;
use super::trace::SessionTrace;
use super::turns::Turns;
use crate::metrics::DroppedOutput;

/// Maximum number of owed records. Further ones are dropped, except those that [`must_not_be_lost`].
const OWED_MAX: usize = 512;

/// How long after a failed write the next one is tried.
pub(super) const OWED_RETRY: Duration = Duration::from_secs(1);

/// Whether a record is kept even above [`OWED_MAX`]: the ends of turns and of the session. A session has few
/// open turns, and accepts no more while the disk is full.
fn must_not_be_lost(kind: &EventKind) -> bool {
    matches!(kind, EventKind::TurnEnded { .. } | EventKind::SessionEnded { .. })
}

/// The result of writing records to the journal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum JournalWrite {
    Done,
    Failed,
}

/// Records that are still to be written to the journal, in order. Each run of dropped output is one record,
/// with its turn and the number of its last event.
#[derive(Debug, Default)]
struct OwedRecords {
    records: Vec<NewEvent>,
    /// Whether the keeper can remember for the next node which turns have failed.
    keeper_remembers: bool,
}

impl OwedRecords {
    fn is_empty(&self) -> bool {
        self.records.is_empty()
    }

    /// How the session ended, if its end is among the owed records.
    fn session_end(&self) -> Option<Ended> {
        self.records.iter().find_map(|record| match &record.kind {
            EventKind::SessionEnded { reason, message, receipt } => {
                let (message, receipt) = (message.clone(), receipt.clone());
                Some(Ended { reason: *reason, message, receipt })
            }
            _ => None,
        })
    }

    /// The first event that the keeper must hold; `last` is the last event that came. The last one is always
    /// held, because the next node would wait for a keeper that holds none. Dropped output need not be
    /// held: the next node sees from the gap that its turn failed.
    fn first_withheld(&self, last: LinkSeq) -> Option<LinkSeq> {
        let kept = self.records.iter().filter(|record| dropped_bytes(record).is_none());
        let first_record = kept.filter_map(|record| record.link).next();
        (!self.is_empty()).then(|| first_record.map_or(last, |first| first.min(last)))
    }

    fn keep(&mut self, records: &mut Vec<NewEvent>) {
        for record in records.drain(..) {
            match dropped_bytes(&record) {
                Some(bytes) => self.count(record, bytes),
                None if self.records.len() >= OWED_MAX && !must_not_be_lost(&record.kind) => {
                    self.count(record, 0);
                }
                None => self.records.push(record),
            }
        }
    }

    /// Counts a dropped record together with the record dropped just before it, if both are of the same turn.
    /// Above the limit the turn does not matter, so that the number of records is bounded.
    fn count(&mut self, record: NewEvent, bytes: u64) {
        let is_over = self.records.len() >= OWED_MAX;
        if let Some(last) = self.records.last_mut()
            && let EventKind::OutputDropped { bytes: before, reason: DropReason::DiskFull } =
                &mut last.kind
            && (is_over || last.turn == record.turn)
        {
            *before += bytes;
            last.link = last.link.max(record.link);
            return;
        }
        let kind = EventKind::OutputDropped { bytes, reason: DropReason::DiskFull };
        self.records.push(NewEvent { kind, body: Bytes::new(), ..record });
    }

    fn take(&mut self) -> Vec<NewEvent> {
        std::mem::take(&mut self.records)
    }
}

/// The bytes of output that are lost if this record is dropped. None: the record must be kept.
fn dropped_bytes(record: &NewEvent) -> Option<u64> {
    match record.kind {
        EventKind::Output { .. } => Some(record.body.len() as u64),
        EventKind::OutputDropped { bytes, reason: DropReason::DiskFull } => Some(bytes),
        EventKind::Display { .. } => Some(0),
        _ => None,
    }
}

/// The bytes of output that the node could not write, according to this record.
fn dropped_by_node(record: &NewEvent) -> Option<u64> {
    match record.kind {
        EventKind::OutputDropped { bytes, reason: DropReason::DiskFull } => Some(bytes),
        _ => None,
    }
}

/// A session's journal, the owed records, and the turns that a full disk has cut.
#[derive(Debug)]
pub(super) struct JournalSide {
    pub log: SessionLog,
    owed: OwedRecords,
    /// Open turns with records that could not be written. They fail with `disk_full`.
    cut: BTreeSet<TurnNo>,
    /// When to try again to write the owed records.
    retry_at: Option<Instant>,
    dropped: DroppedOutput,
    /// Reports of what is in the journal, for spans.
    pub trace: Option<SessionTrace>,
}

impl JournalSide {
    pub fn new(log: SessionLog, dropped: DroppedOutput, trace: Option<SessionTrace>) -> Self {
        let open = log.facts().open_turns.iter().filter(|open| open.disk_full);
        let cut = open.map(|open| open.number).collect();
        Self { log, owed: OwedRecords::default(), cut, retry_at: None, dropped, trace }
    }

    pub fn facts(&self) -> &SessionFacts {
        self.log.facts()
    }

    /// Whether every record that must not be lost is in the journal.
    pub fn is_settled(&self) -> bool {
        self.owed.is_empty()
    }

    /// How the session ended, if that is not in the journal yet.
    pub fn owed_end(&self) -> Option<Ended> {
        self.owed.session_end()
    }

    pub fn keeper_said(&mut self, attached: &AttachReply) {
        self.owed.keeper_remembers = attached.remembers_failed;
        // Turns that an earlier node has reported as failed. They fail, whatever the keeper's events say.
        let facts = self.log.facts();
        let open = attached.failed.iter().filter(|turn| facts.open_turn(**turn).is_some());
        self.cut.extend(open);
    }

    /// Marks an open turn as cut: some of its records could not be written. Returns whether the mark is new.
    pub fn cut(&mut self, turn: TurnNo) -> bool {
        self.facts().open_turn(turn).is_some() && self.cut.insert(turn)
    }

    /// The turn ends. Returns whether it was cut.
    pub fn take_cut(&mut self, turn: TurnNo) -> bool {
        self.cut.remove(&turn)
    }

    pub fn next_due(&self) -> Option<Instant> {
        self.retry_at
    }

    /// Writes the owed records when the retry is due. So they are written as soon as the disk has space,
    /// without a client's request.
    pub fn retry(&mut self, now: Instant, half: &mut NodeHalf) -> JournalWrite {
        match self.retry_at.take_if(|at| *at <= now) {
            Some(_) => self.write_owed(half),
            None => JournalWrite::Done,
        }
    }

    pub fn write_owed(&mut self, half: &mut NodeHalf) -> JournalWrite {
        let written = self.write(&mut Vec::new(), half);
        if written == JournalWrite::Failed {
            self.retry_at = Some(Instant::now() + OWED_RETRY);
        }
        written
    }

    /// Writes the owed records and then `records`, which is then empty. If that fails, `records` is
    /// unchanged.
    pub fn write(&mut self, records: &mut Vec<NewEvent>, half: &mut NodeHalf) -> JournalWrite {
        if !self.owed.is_empty() {
            let mut owed = self.owed.take();
            if self.append(&mut owed) == JournalWrite::Failed {
                self.owed.keep(&mut owed);
                return JournalWrite::Failed;
            }
            self.withhold(half);
        }
        self.append(records)
    }

    /// Keeps records that could not be written.
    pub fn owe(&mut self, records: &mut Vec<NewEvent>) {
        self.owed.keep(records);
        self.retry_at.get_or_insert_with(|| Instant::now() + OWED_RETRY);
    }

    /// Sets which events the keeper must hold: exactly those that are not in the journal.
    pub fn withhold(&self, half: &mut NodeHalf) {
        let first = self.owed.first_withheld(half.after());
        half.withhold(first);
    }

    /// Whether the keeper can remember for the next node which turns have failed.
    pub fn keeper_remembers(&self) -> bool {
        self.owed.keeper_remembers
    }

    fn append(&mut self, records: &mut Vec<NewEvent>) -> JournalWrite {
        let traced = self.trace.as_ref().map(|trace| trace.read(records));
        let lost: u64 = records.iter().filter_map(dropped_by_node).sum();
        match self.log.append_from(records) {
            Ok(appended) => {
                if lost > 0 {
                    self.dropped.count(lost, DropReason::DiskFull);
                }
                if appended.dropped_bytes > 0 {
                    self.dropped.count(appended.dropped_bytes, DropReason::Quota);
                }
                if let (Some(trace), Some(traced)) = (&mut self.trace, traced) {
                    trace.report(traced);
                }
                JournalWrite::Done
            }
            Err(error) => {
                if !matches!(error, AppendError::DiskFull { .. }) {
                    let session = &self.log.facts().created.id;
                    tracing::error!(%session, %error, "cannot write the journal");
                }
                JournalWrite::Failed
            }
        }
    }
}

/// Fails the turns that ended in this round and whose output in it is about to be dropped. No client has
/// been told of their ends yet. Returns the failed turns.
pub(super) fn fail_cut_turns(records: &mut [NewEvent], turns: &mut Turns) -> Vec<TurnNo> {
    let (mut cut, mut failed) = (Vec::new(), Vec::new());
    for record in records {
        let Some(turn) = record.turn else { continue };
        match &mut record.kind {
            EventKind::Output { background: false, .. } | EventKind::Display { .. } => {
                cut.push(turn);
            }
            EventKind::TurnEnded { outcome, error, .. }
                if cut.contains(&turn) && *outcome != Outcome::Lost =>
            {
                *outcome = Outcome::Error;
                *error = Some(explain(ErrorCode::DiskFull, error.take()));
                let ended = turns.get_mut(turn).and_then(|turn| turn.end.as_mut());
                if let Some(end) = ended {
                    (end.outcome, end.error) = (*outcome, error.clone());
                }
                failed.push(turn);
            }
            _ => {}
        }
    }
    failed
}

#[cfg(test)]
mod tests {
    use windlass_protocol::event::Usage;
    use windlass_protocol::{Stream, event::StopCause};

    use super::super::turns::TurnEnd;
    use super::*;

    fn event(turn: u64, link: u64, kind: EventKind, body: &'static str) -> NewEvent {
        let (turn, link) = (Some(TurnNo(turn)), Some(LinkSeq(link)));
        NewEvent { at_ms: 0, turn, link, kind, body: Bytes::from_static(body.as_bytes()) }
    }

    fn output(turn: u64, link: u64, body: &'static str) -> NewEvent {
        event(turn, link, EventKind::Output { stream: Stream::Stdout, background: false }, body)
    }

    fn ended(turn: u64, link: u64) -> NewEvent {
        let (outcome, usage) = (Outcome::Ok, Usage::default());
        let (error, receipt, refusal) = (None, None, None);
        let (exit_code, value) = (None, None);
        let end = TurnEnd { outcome, error, usage, receipt, refusal, exit_code, value };
        event(turn, link, end.into_event(), "")
    }

    /// Each record's turn, number and dropped bytes.
    fn summary(owed: &mut OwedRecords) -> Vec<(u64, u64, Option<u64>)> {
        let records = owed.take();
        let row = |record: &NewEvent| {
            let (turn, link) = (record.turn.unwrap().0, record.link.unwrap().0);
            (turn, link, dropped_bytes(record))
        };
        records.iter().map(row).collect()
    }

    #[test]
    fn dropped_output_is_counted_per_turn_and_event_numbers_stay_in_order() {
        let mut owed = OwedRecords::default();
        owed.keep(&mut vec![output(1, 1, "abc"), output(1, 2, "de"), ended(1, 3)]);
        owed.keep(&mut vec![output(2, 4, "f")]);
        // A second write fails and gives the records back.
        let mut again = owed.take();
        owed.keep(&mut again);
        owed.keep(&mut vec![output(2, 5, "gh"), ended(2, 6)]);
        assert_eq!(owed.first_withheld(LinkSeq(6)), Some(LinkSeq(3)));
        let expected = [(1, 2, Some(5)), (1, 3, None), (2, 5, Some(3)), (2, 6, None)];
        assert_eq!(summary(&mut owed), expected);
    }

    #[test]
    fn above_the_limit_only_ends_of_turns_are_kept() {
        let mut owed = OwedRecords::default();
        let cause = StopCause::Client;
        for link in 1..=2 * OWED_MAX as u64 {
            owed.keep(&mut vec![event(1, link, EventKind::InterruptAsked { cause }, "")]);
        }
        let over = 2 * OWED_MAX as u64;
        owed.keep(&mut vec![ended(1, over + 1), output(2, over + 2, "x"), ended(2, over + 3)]);
        let rows = summary(&mut owed);
        assert_eq!(rows.len(), OWED_MAX + 4);
        let last = &rows[OWED_MAX..];
        let expected =
            [(1, over, Some(0)), (1, over + 1, None), (2, over + 2, Some(1)), (2, over + 3, None)];
        assert_eq!(last, expected);
    }
}
