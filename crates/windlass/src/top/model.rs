//! What `windlass top` knows and shows: sessions, their order, the selection and what a key does. Pure: takes samples,
//! output and keys, and returns as values what is to be done.

use std::cmp::Ordering;
use std::collections::HashMap;
use std::mem;

use windlass_protocol::SessionId;
use windlass_protocol::api::{SessionRow, SessionState};

use super::keys::TopKey;
use super::tail::OutputTail;

/// Maximum number of sessions of a fleet that are shown.
pub const SESSIONS_MAX: usize = 2000;

/// Maximum number of characters of the filter.
const FILTER_CHARS_MAX: usize = 64;

/// How often the output of the selected session is followed anew without any success in between.
const FOLLOWS_MAX: u32 = 5;

/// The node that answers.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TopNode {
    pub version: String,
    /// The URL of a node over TCP.
    pub address: Option<String>,
    /// The tenant of the client's token.
    pub tenant: Option<String>,
}

/// What the node said at one moment.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct TopSample {
    pub node: TopNode,
    pub sessions: Vec<SessionRow>,
    /// There are more sessions than [`SESSIONS_MAX`].
    pub is_cut: bool,
}

/// What happened.
#[derive(Debug)]
pub enum TopEvent {
    Key(TopKey),
    Sampled(TopSample),
    /// The node did not answer, for this reason.
    Unanswered(String),
    /// The output of this session went on.
    Output(SessionId, TailPart),
    /// A request of the user ended with this message.
    Told(String),
}

/// A piece of what is shown of the selected session.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TailPart {
    /// The output that was there before.
    Earlier(Vec<u8>),
    Output(Vec<u8>),
    EndLine,
    Note(String),
    /// No output can follow.
    Ended,
    /// The output could not be followed any further, for this reason.
    Failed(String),
}

/// What is to be done.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TopEffect {
    Quit,
    /// Draw the whole screen again.
    Redraw,
    /// Follow the output of this session and of no other.
    Follow(Option<SessionId>),
    Interrupt(SessionId),
    Close(SessionId),
    Attach(SessionId),
}

/// The order of the sessions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TopSort {
    /// Those that wait for input first, then those that run a turn.
    Attention,
    Memory,
    Processor,
    State,
    /// The oldest first.
    Age,
}

impl TopSort {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Attention => "attention",
            Self::Memory => "memory",
            Self::Processor => "processor",
            Self::State => "state",
            Self::Age => "age",
        }
    }

    fn next(self) -> Self {
        match self {
            Self::Attention => Self::Memory,
            Self::Memory => Self::Processor,
            Self::Processor => Self::State,
            Self::State => Self::Age,
            Self::Age => Self::Attention,
        }
    }
}

/// What the keys are for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TopMode {
    Sessions,
    /// The user types the filter. `before` comes back if the user gives up.
    Filter {
        before: String,
    },
    /// The user is asked whether to close the session.
    ConfirmClose(SessionId),
    Help,
}

/// Whether the node answers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NodeContact {
    /// No sample has come.
    Waiting,
    Answers,
    /// The node stopped answering, for this reason. What is shown is what it said last.
    Lost(String),
}

/// A session with what two samples tell.
#[derive(Debug, Clone)]
pub struct ShownSession {
    pub row: SessionRow,
    /// Tenths of a percent of one processor, between the last two readings.
    pub processor_tenths: Option<u64>,
}

/// The output of the selected session.
#[derive(Debug, Default)]
pub struct FollowedTail {
    pub session: Option<SessionId>,
    pub output: OutputTail,
    pub state: TailState,
    /// How often it was followed anew since it last succeeded.
    follows: u32,
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum TailState {
    #[default]
    Loading,
    Live,
    Ended,
    Failed(String),
}

/// See the module documentation.
#[derive(Debug)]
pub struct TopModel {
    pub node: TopNode,
    pub contact: NodeContact,
    pub is_cut: bool,
    pub sort: TopSort,
    pub filter: String,
    pub mode: TopMode,
    /// A message for the user, until the next key.
    pub notice: String,
    pub tail: FollowedTail,
    sessions: Vec<ShownSession>,
    selected: Option<SessionId>,
    /// Number of sessions that a page shows.
    page: usize,
}

impl TopModel {
    pub fn new() -> Self {
        Self {
            node: TopNode::default(),
            contact: NodeContact::Waiting,
            is_cut: false,
            sort: TopSort::Attention,
            filter: String::new(),
            mode: TopMode::Sessions,
            notice: String::new(),
            tail: FollowedTail::default(),
            sessions: Vec::new(),
            selected: None,
            page: 1,
        }
    }

    /// Takes one event. The caller performs the effects in their order.
    pub fn update(&mut self, event: TopEvent) -> Vec<TopEffect> {
        match event {
            TopEvent::Key(key) => self.key(key),
            TopEvent::Sampled(sample) => self.sampled(sample),
            TopEvent::Unanswered(cause) => {
                self.contact = NodeContact::Lost(cause);
                Vec::new()
            }
            TopEvent::Output(session, part) => {
                if self.tail.session.as_ref() == Some(&session) {
                    self.tail.take(part);
                }
                Vec::new()
            }
            TopEvent::Told(message) => {
                self.notice = message;
                Vec::new()
            }
        }
    }

    /// The number of sessions that fit on the screen, for the keys that move by a page.
    pub fn set_page(&mut self, page: usize) {
        self.page = page.max(1);
    }

    /// All sessions, also those that the filter leaves out.
    pub fn all(&self) -> &[ShownSession] {
        &self.sessions
    }

    /// The sessions that the filter leaves, in their order.
    pub fn visible(&self) -> Vec<&ShownSession> {
        let wanted = self.filter.to_lowercase();
        self.sessions.iter().filter(|session| matches(&session.row, &wanted)).collect()
    }

    /// The place of the selected session among the visible ones.
    pub fn selected_at(&self) -> Option<usize> {
        let selected = self.selected.as_ref()?;
        self.visible().iter().position(|session| session.row.id == *selected)
    }

    pub fn selected(&self) -> Option<&ShownSession> {
        let selected = self.selected.as_ref()?;
        self.sessions.iter().find(|session| session.row.id == *selected)
    }

    fn sampled(&mut self, sample: TopSample) -> Vec<TopEffect> {
        let was_lost = !matches!(self.contact, NodeContact::Answers);
        let at = self.selected_at();
        self.contact = NodeContact::Answers;
        (self.node, self.is_cut) = (sample.node, sample.is_cut);
        let before = mem::take(&mut self.sessions);
        let before: HashMap<&SessionId, &ShownSession> =
            before.iter().map(|session| (&session.row.id, session)).collect();
        self.sessions = sample
            .sessions
            .into_iter()
            .map(|row| {
                let processor_tenths = processor_tenths(before.get(&row.id).copied(), &row);
                ShownSession { row, processor_tenths }
            })
            .collect();
        self.order();
        if let TopMode::ConfirmClose(session) = &self.mode
            && !self.sessions.iter().any(|shown| shown.row.id == *session)
        {
            self.mode = TopMode::Sessions;
        }
        let moved = self.keep_selection(at);
        if !moved.is_empty() {
            return moved;
        }
        // The stream of output ended with the node's answers, so it is followed anew when the node answers again.
        let failed = matches!(self.tail.state, TailState::Failed(_));
        if failed && (was_lost || self.tail.follows < FOLLOWS_MAX) {
            return self.follow_selected();
        }
        Vec::new()
    }

    fn order(&mut self) {
        let sort = self.sort;
        self.sessions.sort_by(|one, other| compared(sort, one, other));
    }

    /// Selects a visible session if the selected one is not visible any more: the one in its place.
    fn keep_selection(&mut self, at: Option<usize>) -> Vec<TopEffect> {
        if self.selected_at().is_some() {
            return Vec::new();
        }
        let visible = self.visible();
        let last = visible.len().checked_sub(1);
        let next = last.map(|last| visible[at.unwrap_or(0).min(last)].row.id.clone());
        self.select(next)
    }

    fn select(&mut self, session: Option<SessionId>) -> Vec<TopEffect> {
        if self.selected == session {
            return Vec::new();
        }
        self.selected = session;
        self.tail.follows = 0;
        self.follow_selected()
    }

    fn follow_selected(&mut self) -> Vec<TopEffect> {
        let session = self.selected.clone();
        let follows = self.tail.follows + 1;
        self.tail = FollowedTail { session: session.clone(), follows, ..FollowedTail::default() };
        vec![TopEffect::Follow(session)]
    }

    fn key(&mut self, key: TopKey) -> Vec<TopEffect> {
        self.notice.clear();
        match key {
            TopKey::Interrupt => return vec![TopEffect::Quit],
            TopKey::Redraw => return vec![TopEffect::Redraw],
            _ => {}
        }
        match mem::replace(&mut self.mode, TopMode::Sessions) {
            TopMode::Sessions => self.session_key(key),
            TopMode::Filter { before } => self.filter_key(key, before),
            TopMode::ConfirmClose(session) => match key {
                TopKey::Char('y') => vec![TopEffect::Close(session)],
                _ => {
                    self.notice = format!("session {session} stays");
                    Vec::new()
                }
            },
            TopMode::Help => Vec::new(),
        }
    }

    fn session_key(&mut self, key: TopKey) -> Vec<TopEffect> {
        let page = self.page;
        match key {
            TopKey::Char('q') => vec![TopEffect::Quit],
            TopKey::Char('k') | TopKey::Up => self.go(|at| at.saturating_sub(1)),
            TopKey::Char('j') | TopKey::Down => self.go(|at| at + 1),
            TopKey::PageUp => self.go(|at| at.saturating_sub(page)),
            TopKey::PageDown => self.go(|at| at.saturating_add(page)),
            TopKey::Home => self.go(|_| 0),
            TopKey::End => self.go(|_| usize::MAX),
            TopKey::Char('s') => {
                self.sort = self.sort.next();
                self.order();
                Vec::new()
            }
            TopKey::Char('/') => {
                self.mode = TopMode::Filter { before: self.filter.clone() };
                Vec::new()
            }
            TopKey::Char('?') => {
                self.mode = TopMode::Help;
                Vec::new()
            }
            TopKey::Escape => {
                self.filter.clear();
                self.keep_selection(None)
            }
            TopKey::Char('i' | 'K' | 'a') | TopKey::Enter => self.act(key),
            _ => Vec::new(),
        }
    }

    /// The keys that do something with the selected session.
    fn act(&mut self, key: TopKey) -> Vec<TopEffect> {
        let Some(session) = self.selected() else {
            "no session is selected".clone_into(&mut self.notice);
            return Vec::new();
        };
        let (id, state) = (session.row.id.clone(), session.row.state);
        match key {
            TopKey::Char('K') => {
                self.mode = TopMode::ConfirmClose(id);
                Vec::new()
            }
            TopKey::Char('i') if !runs_a_turn(state) => {
                self.notice = format!("session {id} runs no turn");
                Vec::new()
            }
            TopKey::Char('i') => vec![TopEffect::Interrupt(id)],
            _ => vec![TopEffect::Attach(id)],
        }
    }

    fn filter_key(&mut self, key: TopKey, before: String) -> Vec<TopEffect> {
        match key {
            TopKey::Enter => return Vec::new(),
            TopKey::Escape => {
                self.filter = before;
                return self.keep_selection(None);
            }
            TopKey::Backspace => drop(self.filter.pop()),
            TopKey::EraseLine => self.filter.clear(),
            TopKey::Char(char) if self.filter.chars().count() < FILTER_CHARS_MAX => {
                self.filter.push(char);
            }
            _ => {}
        }
        self.mode = TopMode::Filter { before };
        self.keep_selection(None)
    }

    fn go(&mut self, to: impl FnOnce(usize) -> usize) -> Vec<TopEffect> {
        let visible = self.visible();
        let Some(last) = visible.len().checked_sub(1) else { return Vec::new() };
        let at = self.selected_at().map_or(0, to).min(last);
        let session = visible[at].row.id.clone();
        self.select(Some(session))
    }
}

impl FollowedTail {
    fn take(&mut self, part: TailPart) {
        match part {
            TailPart::Earlier(bytes) => {
                self.output = OutputTail::default();
                self.output.push(&bytes);
                (self.state, self.follows) = (TailState::Live, 0);
            }
            TailPart::Output(bytes) => self.output.push(&bytes),
            TailPart::EndLine => self.output.end_line(),
            TailPart::Note(text) => self.output.note(&text),
            TailPart::Ended => self.state = TailState::Ended,
            TailPart::Failed(cause) => self.state = TailState::Failed(cause),
        }
    }
}

/// Whether there is a turn to interrupt.
pub fn runs_a_turn(state: SessionState) -> bool {
    matches!(state, SessionState::Busy | SessionState::AwaitingInput | SessionState::Interrupting)
}

fn matches(row: &SessionRow, wanted: &str) -> bool {
    let holds = |text: &str| text.to_lowercase().contains(wanted);
    holds(row.id.as_str())
        || holds(&row.kind)
        || holds(&row.state.as_str().replace('_', " "))
        || holds(&row.workspace)
        || row.client.as_ref().is_some_and(|client| holds(client.as_str()))
        || row.node.as_ref().is_some_and(|node| holds(node.as_str()))
}

/// The use of processors between two readings. While the node has no newer reading, the last one counts.
fn processor_tenths(before: Option<&ShownSession>, row: &SessionRow) -> Option<u64> {
    let before = before?;
    let elapsed_ms = row.measured_at_ms?.checked_sub(before.row.measured_at_ms?)?;
    if elapsed_ms == 0 {
        return before.processor_tenths;
    }
    let used_ms = row.cpu_ms?.checked_sub(before.row.cpu_ms?)?;
    Some(used_ms.saturating_mul(1000) / elapsed_ms)
}

fn compared(sort: TopSort, one: &ShownSession, other: &ShownSession) -> Ordering {
    let by = match sort {
        TopSort::Attention => attention(&one.row).cmp(&attention(&other.row)),
        TopSort::Memory => other.row.memory_bytes.cmp(&one.row.memory_bytes),
        TopSort::Processor => other.processor_tenths.cmp(&one.processor_tenths),
        TopSort::State => one.row.state.as_str().cmp(other.row.state.as_str()),
        TopSort::Age => one.row.created_at_ms.cmp(&other.row.created_at_ms),
    };
    by.then_with(|| other.row.created_at_ms.cmp(&one.row.created_at_ms))
        .then_with(|| one.row.id.cmp(&other.row.id))
}

/// How much a session needs its user: less is more.
fn attention(row: &SessionRow) -> u8 {
    match row.state {
        _ if row.waits_for_input => 0,
        SessionState::AwaitingInput => 0,
        SessionState::Busy
        | SessionState::Interrupting
        | SessionState::Restarting
        | SessionState::Starting => 1,
        SessionState::Idle => 2,
        SessionState::Unreachable | SessionState::Lost | SessionState::Ended => 3,
    }
}
