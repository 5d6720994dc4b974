//! The turns a session's owner has at hand: the open ones, and the last few that ended. Older ones
//! are in the journal.

use std::collections::{HashMap, HashSet, VecDeque};
use std::hash::{BuildHasher, RandomState};

use bytes::Bytes;
use windlass_journal::{OpenTurn, OutputRange, OutputScope, TurnRecord};
use windlass_protocol::api::{DisplayRef, StdinWait, TurnState};
use windlass_protocol::event::{Receipt, TurnError, Usage};
use windlass_protocol::host::Within;
use windlass_protocol::limits::INPUT_BYTES_MAX;
use windlass_protocol::{Outcome, TurnId, TurnNo};

use super::view::Ends;

/// Ended turns kept at hand.
const RECENT_MAX: usize = 8;

/// Ids of older turns that are known without asking the journal; of a session with more, it is asked.
const PAST_MAX: usize = 8192;

/// Displays listed for one turn; later ones are still events.
const DISPLAYS_MAX: usize = 1000;

/// A turn as its session's owner knows it.
#[derive(Debug, Clone)]
pub(crate) struct Turn {
    pub id: TurnId,
    pub number: TurnNo,
    /// Empty once the keeper has it.
    pub code: Bytes,
    pub deadline_ms: Option<u64>,
    /// The host tool call in which it was submitted.
    pub within: Option<Within>,
    pub output: Ends,
    pub extent: Extent,
    pub displays: Vec<DisplayRef>,
    /// Bytes so far of a display that goes on.
    pub display_bytes: u64,
    pub stdin_wait: Option<StdinWait>,
    /// Input given and not yet taken by the code.
    pub input_bytes: usize,
    pub end: Option<End>,
}

/// Where a turn's output lies in the session's: from its first byte to its last. Set when the turn ends;
/// before that the journal's facts have it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Extent {
    pub from: u64,
    pub to: u64,
    /// Bytes of the turn's own; background output may lie between them.
    bytes: u64,
}

impl Extent {
    pub fn of(open: &OpenTurn) -> Self {
        Self { from: open.output_from, to: open.output_to, bytes: open.output_bytes }
    }

    /// The turn has printed so many bytes, which start there.
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
pub(crate) struct End {
    pub outcome: Outcome,
    pub error: Option<TurnError>,
    pub usage: Usage,
    pub receipt: Option<Receipt>,
}

/// A turn at one moment, for a reply.
#[derive(Debug, Clone)]
pub(crate) struct Snapshot {
    pub turn: Turn,
    pub state: TurnState,
}

impl Turn {
    pub fn new(id: TurnId, number: TurnNo, code: Bytes, deadline_ms: Option<u64>) -> Self {
        Self {
            id,
            number,
            code,
            deadline_ms,
            within: None,
            output: Ends::default(),
            extent: Extent::default(),
            displays: Vec::new(),
            display_bytes: 0,
            stdin_wait: None,
            input_bytes: 0,
            end: None,
        }
    }

    /// A turn that ended long ago, from the journal. Its output is read from there too.
    pub fn from_record(record: TurnRecord) -> Self {
        let mut turn = Self::new(record.id, record.number, Bytes::new(), None);
        let (from, to, bytes) = (record.output_from, record.output_to, record.output_bytes);
        turn.extent = Extent { from, to, bytes };
        turn.output = Ends::elsewhere(record.output_bytes);
        turn.displays = record.displays;
        turn.end = Some(End {
            outcome: record.outcome,
            error: record.error,
            usage: record.usage,
            receipt: record.receipt,
        });
        turn
    }

    /// Where the journal has its output.
    pub fn range(&self) -> OutputRange {
        let Extent { from, to, .. } = self.extent;
        OutputRange { from, to, scope: OutputScope::Turn(self.number) }
    }

    /// Whether the keeper has room for so much more input.
    pub fn takes_input(&self, bytes: usize) -> bool {
        self.input_bytes + bytes <= INPUT_BYTES_MAX
    }

    /// A display is complete: an update takes the place of the one with its id.
    pub fn show(&mut self, display: DisplayRef, update: bool) {
        let same = |shown: &&mut DisplayRef| update && shown.id.is_some() && shown.id == display.id;
        if let Some(shown) = self.displays.iter_mut().find(same) {
            *shown = display;
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
    past: Past,
}

/// Which ids turns had that are not at hand any more: as numbers that stand for them, so that a new id
/// need not be looked for in the journal.
#[derive(Debug)]
enum Past {
    All {
        ids: HashSet<u64>,
        hasher: RandomState,
    },
    /// Some are in the journal alone.
    Unknown,
}

impl Default for Past {
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

    /// The turn of that id. Chosen ids are never plain numbers, so a number is every turn's second
    /// name.
    pub fn number(&self, id: &TurnId) -> Option<TurnNo> {
        let by_number = || id.as_str().parse().ok().map(TurnNo);
        let found = self.by_id.get(id).copied().or_else(by_number)?;
        self.by_number.contains_key(&found).then_some(found)
    }

    /// The turn ended: it stays at hand until its end is in the journal and enough others have ended.
    pub fn ended(&mut self, number: TurnNo) {
        self.recent.push_back(number);
    }

    /// The ends of all turns are in the journal: older ones need not be at hand. While a full disk owes
    /// some to the journal, all stay, as many as a session can have open at once: no more are accepted
    /// meanwhile.
    pub fn let_go_of_recorded(&mut self) {
        while self.recent.len() > RECENT_MAX {
            if let Some(oldest) = self.recent.pop_front() {
                self.put_by(oldest);
            }
        }
    }

    fn put_by(&mut self, number: TurnNo) {
        let Some(turn) = self.by_number.get(&number) else { return };
        match &mut self.past {
            Past::All { ids, hasher } if ids.len() < PAST_MAX => {
                ids.insert(hasher.hash_one(&turn.id));
            }
            Past::All { .. } => self.past = Past::Unknown,
            Past::Unknown => {}
        }
        self.remove(number);
    }

    /// An earlier node had turns that are not at hand.
    pub fn had_others(&mut self) {
        self.past = Past::Unknown;
    }

    /// Whether a turn of this id may be in the journal, although none is at hand.
    pub fn may_be_past(&self, id: &TurnId) -> bool {
        match &self.past {
            Past::All { ids, hasher } => ids.contains(&hasher.hash_one(id)),
            Past::Unknown => true,
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
    fn only_what_was_there_is_looked_for_in_the_journal() {
        let mut turns = Turns::default();
        let past = (RECENT_MAX + 3) as u64;
        for number in 1..=past {
            turns.insert(turn(number));
            turns.ended(TurnNo(number));
        }
        assert_eq!(turns.number(&turn(3).id), Some(TurnNo(3)), "its end may not be recorded");
        turns.let_go_of_recorded();
        assert_eq!(turns.number(&turn(3).id), None, "it is not at hand any more");
        assert!(turns.may_be_past(&turn(3).id));
        assert!(!turns.may_be_past(&turn(past + 1).id));
        turns.had_others();
        assert!(turns.may_be_past(&turn(past + 1).id));
    }

    #[test]
    fn a_session_with_very_many_turns_has_them_looked_for() {
        let mut turns = Turns::default();
        let many = (PAST_MAX + RECENT_MAX + 2) as u64;
        for number in 1..=many {
            turns.insert(turn(number));
            turns.ended(TurnNo(number));
            turns.let_go_of_recorded();
        }
        assert!(turns.may_be_past(&turn(many + 1).id));
    }
}
