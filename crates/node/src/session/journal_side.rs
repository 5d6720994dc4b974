//! A session's journal, with and without room. On a full disk the running turn is stopped and fails with
//! `disk_full`; its output from there on is counted and dropped. The few records that must not be lost are
//! owed, and written first when there is room again. Until then the keeper holds them too, for the case
//! that this node does not live to write them.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use bytes::Bytes;
use windlass_journal::{AppendError, NewEvent, SessionFacts, SessionLog};
use windlass_lifecycle::link::NodeHalf;
use windlass_protocol::api::Ended;
use windlass_protocol::event::{DropReason, EventKind};
use windlass_protocol::link::AttachReply;
use windlass_protocol::{ErrorCode, LinkSeq, Outcome, TurnNo};

use super::effects::explain;
use super::turns::Turns;

/// Records kept for later. More are dropped, but for those that [`must_not_be_lost`].
const OWED_MAX: usize = 512;

/// How long after a failed write the disk is looked at again.
pub(super) const OWED_RETRY: Duration = Duration::from_secs(1);

/// Whether a record is kept however many are owed: the ends of turns and of the session. A session has few
/// open turns, and gets no more while the disk is full.
fn must_not_be_lost(kind: &EventKind) -> bool {
    matches!(kind, EventKind::TurnEnded { .. } | EventKind::SessionEnded { .. })
}

/// Whether records are in the journal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Written {
    Yes,
    No,
}

/// What a full disk still owes the journal: records in their order. Output that is dropped is one record for each
/// run of it, with its turn and the number of its last event.
#[derive(Debug, Default)]
struct Owed {
    records: Vec<NewEvent>,
    /// Whether the keeper remembers for the next node which turns have failed.
    keeper_remembers: bool,
}

impl Owed {
    fn is_empty(&self) -> bool {
        self.records.is_empty()
    }

    /// How the session ended, where that is owed too.
    fn session_end(&self) -> Option<Ended> {
        self.records.iter().find_map(|record| match &record.kind {
            EventKind::SessionEnded { reason, message, receipt } => {
                let (message, receipt) = (message.clone(), receipt.clone());
                Some(Ended { reason: *reason, message, receipt })
            }
            _ => None,
        })
    }

    /// The first event that the keeper must hold while `last` is the last that came. The last is
    /// always among them: a keeper that holds none would be waited for by the next node. What was
    /// dropped need not be held: the next node sees by the gap that its turn failed.
    fn first_unsafe(&self, last: LinkSeq) -> Option<LinkSeq> {
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

    /// Counts what is dropped, with what was dropped just before it. Past the limit it is counted with
    /// whatever was dropped last, so that the records stay few.
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

/// The bytes that are missing when a record is dropped; none where the record is to be kept.
fn dropped_bytes(record: &NewEvent) -> Option<u64> {
    match record.kind {
        EventKind::Output { .. } => Some(record.body.len() as u64),
        EventKind::OutputDropped { bytes, reason: DropReason::DiskFull } => Some(bytes),
        EventKind::Display { .. } => Some(0),
        _ => None,
    }
}

/// A session's journal, and what a full disk has done to it.
#[derive(Debug)]
pub(super) struct JournalSide {
    pub log: SessionLog,
    owed: Owed,
    /// Open turns that the journal could not take all of: they fail with `disk_full`.
    cut: BTreeSet<TurnNo>,
    /// The disk may have room then for what the journal is owed.
    retry_at: Option<Instant>,
}

impl JournalSide {
    pub fn new(log: SessionLog) -> Self {
        let open = log.facts().open_turns.iter().filter(|open| open.disk_full);
        let cut = open.map(|open| open.number).collect();
        Self { log, owed: Owed::default(), cut, retry_at: None }
    }

    pub fn facts(&self) -> &SessionFacts {
        self.log.facts()
    }

    /// Whether every record that must not be lost is in the journal.
    pub fn is_settled(&self) -> bool {
        self.owed.is_empty()
    }

    /// How the session ended, where the journal does not have it yet.
    pub fn owed_end(&self) -> Option<Ended> {
        self.owed.session_end()
    }

    pub fn keeper_said(&mut self, attached: &AttachReply) {
        self.owed.keeper_remembers = attached.remembers_failed;
        // Turns that an earlier node told to have failed, whatever the keeper's events say of them.
        let facts = self.log.facts();
        let open = attached.failed.iter().filter(|turn| facts.open_turn(**turn).is_some());
        self.cut.extend(open);
    }

    /// The journal could not take all of this open turn; whether that is new.
    pub fn cut(&mut self, turn: TurnNo) -> bool {
        self.facts().open_turn(turn).is_some() && self.cut.insert(turn)
    }

    /// The turn ends: whether the journal could not take all of it.
    pub fn take_cut(&mut self, turn: TurnNo) -> bool {
        self.cut.remove(&turn)
    }

    pub fn next_due(&self) -> Option<Instant> {
        self.retry_at
    }

    /// Tries to write what is owed, if it is time for that: with room again, nobody should have to send a
    /// request first.
    pub fn retry(&mut self, now: Instant, half: &mut NodeHalf) -> Written {
        match self.retry_at.take_if(|at| *at <= now) {
            Some(_) => self.write_owed(half),
            None => Written::Yes,
        }
    }

    pub fn write_owed(&mut self, half: &mut NodeHalf) -> Written {
        let written = self.write(&mut Vec::new(), half);
        if written == Written::No {
            self.retry_at = Some(Instant::now() + OWED_RETRY);
        }
        written
    }

    /// Writes what is owed and then `records`, which it leaves empty; or leaves them as they are.
    pub fn write(&mut self, records: &mut Vec<NewEvent>, half: &mut NodeHalf) -> Written {
        if !self.owed.is_empty() {
            let mut owed = self.owed.take();
            if self.append(&mut owed) == Written::No {
                self.owed.keep(&mut owed);
                return Written::No;
            }
            self.withhold(half);
        }
        self.append(records)
    }

    /// Keeps for later what could not be written.
    pub fn owe(&mut self, records: &mut Vec<NewEvent>) {
        self.owed.keep(records);
        self.retry_at.get_or_insert_with(|| Instant::now() + OWED_RETRY);
    }

    /// Has the keeper hold what is not in the journal, and nothing else.
    pub fn withhold(&self, half: &mut NodeHalf) {
        let first = self.owed.first_unsafe(half.after());
        half.withhold(first);
    }

    /// Whether the keeper remembers for the next node which turns have failed.
    pub fn keeper_remembers(&self) -> bool {
        self.owed.keeper_remembers
    }

    fn append(&mut self, records: &mut Vec<NewEvent>) -> Written {
        match self.log.append_from(records) {
            Ok(_) => Written::Yes,
            Err(error) => {
                if !matches!(error, AppendError::DiskFull { .. }) {
                    let session = &self.log.facts().created.id;
                    tracing::error!(%session, %error, "the journal cannot be written");
                }
                Written::No
            }
        }
    }
}

/// Turns that ended in this round, and whose output in it is about to be dropped, fail: nobody has been told
/// of their ends yet. Gives the turns that fail.
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
        event(turn, link, EventKind::TurnEnded { outcome, error: None, usage, receipt: None }, "")
    }

    /// Each record's turn, number and dropped bytes.
    fn told(owed: &mut Owed) -> Vec<(u64, u64, Option<u64>)> {
        let records = owed.take();
        let tell = |record: &NewEvent| {
            let (turn, link) = (record.turn.unwrap().0, record.link.unwrap().0);
            (turn, link, dropped_bytes(record))
        };
        records.iter().map(tell).collect()
    }

    #[test]
    fn dropped_output_is_counted_for_its_own_turn_and_numbers_stay_in_order() {
        let mut owed = Owed::default();
        owed.keep(&mut vec![output(1, 1, "abc"), output(1, 2, "de"), ended(1, 3)]);
        owed.keep(&mut vec![output(2, 4, "f")]);
        // A write that failed again gives back what it was to write.
        let mut again = owed.take();
        owed.keep(&mut again);
        owed.keep(&mut vec![output(2, 5, "gh"), ended(2, 6)]);
        assert_eq!(owed.first_unsafe(LinkSeq(6)), Some(LinkSeq(3)));
        let expected = [(1, 2, Some(5)), (1, 3, None), (2, 5, Some(3)), (2, 6, None)];
        assert_eq!(told(&mut owed), expected);
    }

    #[test]
    fn however_much_is_owed_ends_are_kept_and_the_rest_is_bounded() {
        let mut owed = Owed::default();
        let cause = StopCause::Client;
        for link in 1..=2 * OWED_MAX as u64 {
            owed.keep(&mut vec![event(1, link, EventKind::InterruptAsked { cause }, "")]);
        }
        let over = 2 * OWED_MAX as u64;
        owed.keep(&mut vec![ended(1, over + 1), output(2, over + 2, "x"), ended(2, over + 3)]);
        let told = told(&mut owed);
        assert_eq!(told.len(), OWED_MAX + 4);
        let last = &told[OWED_MAX..];
        let expected =
            [(1, over, Some(0)), (1, over + 1, None), (2, over + 2, Some(1)), (2, over + 3, None)];
        assert_eq!(last, expected);
    }
}
