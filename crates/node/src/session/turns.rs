//! The turns that a session's owner has in memory: the open ones, and the last few that ended. Older ones are
//! only in the journal.

use std::collections::{HashMap, HashSet, VecDeque};
use std::hash::{BuildHasher, RandomState};

use bytes::Bytes;
use windlass_journal::{OpenTurn, OutputRange, OutputScope, TurnRecord};
use windlass_protocol::api::{DisplayRef, StdinWait, TurnState};
use windlass_protocol::event::{EventKind, Receipt, TurnError, Usage};
use windlass_protocol::host::Within;
use windlass_protocol::limits::INPUT_BYTES_MAX;
use windlass_protocol::refusal::PolicyRefusal;
use windlass_protocol::turn::{ResultValue, TurnContext};
use windlass_protocol::{Outcome, Seq, TurnId, TurnNo};

use super::output_ends::OutputEnds;

/// Maximum number of ended turns in memory.
const RECENT_MAX: usize = 8;

/// Maximum number of remembered ids of older turns. In a session with more, every unknown id is looked up
/// in the journal.
const PAST_MAX: usize = 8192;

/// Maximum number of displays listed for one turn. Later ones are only events.
const DISPLAYS_MAX: usize = 1000;

/// A turn in the memory of its session's owner.
#[derive(Debug, Clone)]
pub(crate) struct Turn {
    pub id: TurnId,
    pub number: TurnNo,
    /// Empty once the keeper has it.
    pub request: TurnRequest,
    pub deadline_ms: Option<u64>,
    /// The host tool call during which the turn was submitted.
    pub within: Option<Within>,
    pub output: OutputEnds,
    pub extent: OutputExtent,
    pub displays: Vec<DisplayRef>,
    /// Bytes so far of a display that is not complete.
    pub display_bytes: u64,
    pub stdin_wait: Option<StdinWait>,
    /// Bytes of input that the code has not read yet.
    pub input_bytes: usize,
    pub end: Option<TurnEnd>,
}

/// What the keeper gets of a turn.
#[derive(Debug, Clone, Default)]
pub(crate) struct TurnRequest {
    pub code: Bytes,
    pub context: Option<Box<TurnContext>>,
}

/// The range of a turn's output in the session's output, from its first byte to its last. Set when the turn
/// ends; before that the journal's facts have it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct OutputExtent {
    pub from: u64,
    pub to: u64,
    /// Bytes of the turn itself. Background output may be between them.
    bytes: u64,
}

impl OutputExtent {
    pub fn of(open: &OpenTurn) -> Self {
        Self { from: open.output_from, to: open.output_to, bytes: open.output_bytes }
    }

    /// The turn has printed `bytes` bytes at offset `from`.
    pub fn extend(&mut self, from: u64, bytes: u64) {
        if self.bytes == 0 {
            self.from = from;
        }
        self.to = from + bytes;
        self.bytes += bytes;
    }
}

/// How a turn ended.
#[derive(Debug, Clone)]
pub(crate) struct TurnEnd {
    pub outcome: Outcome,
    pub error: Option<TurnError>,
    pub usage: Usage,
    pub receipt: Option<Receipt>,
    pub refusal: Option<PolicyRefusal>,
    pub exit_code: Option<i32>,
    pub value: Option<ResultValue>,
}

impl TurnEnd {
    pub fn into_event(self) -> EventKind {
        let Self { outcome, error, usage, receipt, refusal, exit_code, value } = self;
        let refusal = refusal.map(Box::new);
        EventKind::TurnEnded { outcome, error, usage, receipt, refusal, exit_code, value }
    }
}

/// A turn at one moment, for a reply.
#[derive(Debug, Clone)]
pub(crate) struct Snapshot {
    pub turn: Turn,
    pub state: TurnState,
    /// The event with which the turn was accepted, if the turn has not ended.
    pub accepted: Option<Seq>,
}

impl Turn {
    pub fn new(id: TurnId, number: TurnNo, code: Bytes, deadline_ms: Option<u64>) -> Self {
        Self {
            id,
            number,
            request: TurnRequest { code, context: None },
            deadline_ms,
            within: None,
            output: OutputEnds::default(),
            extent: OutputExtent::default(),
            displays: Vec::new(),
            display_bytes: 0,
            stdin_wait: None,
            input_bytes: 0,
            end: None,
        }
    }

    /// A turn that is only in the journal. Its output is read from there too.
    pub fn from_record(record: TurnRecord) -> Self {
        let mut turn = Self::new(record.id, record.number, Bytes::new(), None);
        let (from, to, bytes) = (record.output_from, record.output_to, record.output_bytes);
        turn.extent = OutputExtent { from, to, bytes };
        turn.output = OutputEnds::in_journal(record.output_bytes);
        turn.displays = record.displays;
        turn.end = Some(TurnEnd {
            outcome: record.outcome,
            error: record.error,
            usage: record.usage,
            receipt: record.receipt,
            refusal: record.refusal,
            exit_code: record.exit_code,
            value: record.value,
        });
        turn
    }

    /// The range of the turn's output in the journal.
    pub fn range(&self) -> OutputRange {
        let OutputExtent { from, to, .. } = self.extent;
        OutputRange { from, to, scope: OutputScope::Turn(self.number) }
    }

    /// Whether `bytes` more input stays within the limit of unread input.
    pub fn takes_input(&self, bytes: usize) -> bool {
        self.input_bytes + bytes <= INPUT_BYTES_MAX
    }

    /// A display is complete. An update replaces the display with the same id.
    pub fn show(&mut self, display: DisplayRef, update: bool) {
        let same = |old: &&mut DisplayRef| update && old.id.is_some() && old.id == display.id;
        if let Some(old) = self.displays.iter_mut().find(same) {
            *old = display;
        } else if self.displays.len() < DISPLAYS_MAX {
            self.displays.push(display);
        }
    }
}

/// Turns by number and by id.
#[derive(Debug, Default)]
pub(crate) struct Turns {
    by_number: HashMap<TurnNo, Turn>,
    by_id: HashMap<TurnId, TurnNo>,
    recent: VecDeque<TurnNo>,
    past: PastIds,
}

/// The ids of turns that are not in memory any more, as hashes. With them, a new id need not be looked up
/// in the journal.
#[derive(Debug)]
enum PastIds {
    All {
        ids: HashSet<u64>,
        hasher: RandomState,
    },
    /// The journal has turns whose ids are not remembered.
    Incomplete,
}

impl Default for PastIds {
    fn default() -> Self {
        Self::All { ids: HashSet::new(), hasher: RandomState::new() }
    }
}

impl Turns {
    pub fn insert(&mut self, turn: Turn) {
        self.by_id.insert(turn.id.clone(), turn.number);
        self.by_number.insert(turn.number, turn);
    }

    pub fn remove(&mut self, number: TurnNo) {
        if let Some(turn) = self.by_number.remove(&number) {
            self.by_id.remove(&turn.id);
        }
    }

    pub fn get(&self, number: TurnNo) -> Option<&Turn> {
        self.by_number.get(&number)
    }

    pub fn get_mut(&mut self, number: TurnNo) -> Option<&mut Turn> {
        self.by_number.get_mut(&number)
    }

    /// The turn with this id. Ids that clients choose are never plain numbers, so every turn can also be
    /// named by its number.
    pub fn number(&self, id: &TurnId) -> Option<TurnNo> {
        let by_number = || id.as_str().parse().ok().map(TurnNo);
        let found = self.by_id.get(id).copied().or_else(by_number)?;
        self.by_number.contains_key(&found).then_some(found)
    }

    /// The turn ended. It stays in memory until its end is in the journal and [`RECENT_MAX`] others have
    /// ended.
    pub fn ended(&mut self, number: TurnNo) {
        self.recent.push_back(number);
    }

    /// The ends of all turns are in the journal: drops the older ones from memory. While a full disk delays
    /// the records, all turns stay. Their number is bounded, because no more turns are accepted meanwhile.
    pub fn drop_recorded(&mut self) {
        while self.recent.len() > RECENT_MAX {
            if let Some(oldest) = self.recent.pop_front() {
                self.retire(oldest);
            }
        }
    }

    fn retire(&mut self, number: TurnNo) {
        let Some(turn) = self.by_number.get(&number) else { return };
        match &mut self.past {
            PastIds::All { ids, hasher } if ids.len() < PAST_MAX => {
                ids.insert(hasher.hash_one(&turn.id));
            }
            PastIds::All { .. } => self.past = PastIds::Incomplete,
            PastIds::Incomplete => {}
        }
        self.remove(number);
    }

    /// An earlier node had turns that are not in memory.
    pub fn has_unknown_past(&mut self) {
        self.past = PastIds::Incomplete;
    }

    /// Whether a turn with this id may be in the journal, although it is not in memory.
    pub fn may_be_past(&self, id: &TurnId) -> bool {
        match &self.past {
            PastIds::All { ids, hasher } => ids.contains(&hasher.hash_one(id)),
            PastIds::Incomplete => true,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn turn(number: u64) -> Turn {
        let id = TurnId::chosen(format!("t{number}")).unwrap();
        Turn::new(id, TurnNo(number), Bytes::new(), None)
    }

    #[test]
    fn only_ids_of_past_turns_are_looked_up_in_the_journal() {
        let mut turns = Turns::default();
        let past = (RECENT_MAX + 3) as u64;
        for number in 1..=past {
            turns.insert(turn(number));
            turns.ended(TurnNo(number));
        }
        assert_eq!(turns.number(&turn(3).id), Some(TurnNo(3)), "its end may not be in the journal");
        turns.drop_recorded();
        assert_eq!(turns.number(&turn(3).id), None, "it is not in memory any more");
        assert!(turns.may_be_past(&turn(3).id));
        assert!(!turns.may_be_past(&turn(past + 1).id));
        turns.has_unknown_past();
        assert!(turns.may_be_past(&turn(past + 1).id));
    }

    #[test]
    fn with_more_turns_than_ids_are_remembered_every_id_is_looked_up() {
        let mut turns = Turns::default();
        let many = (PAST_MAX + RECENT_MAX + 2) as u64;
        for number in 1..=many {
            turns.insert(turn(number));
            turns.ended(TurnNo(number));
            turns.drop_recorded();
        }
        assert!(turns.may_be_past(&turn(many + 1).id));
    }
}
