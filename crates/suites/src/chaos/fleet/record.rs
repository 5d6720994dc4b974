//! The record of a run: what clients were told about each session, and what every node says about it at the end. Plain
//! data. `checker` judges it.

use std::collections::BTreeMap;

/// One incarnation of a session. A session that is created again under the name of a lost one is another incarnation.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SessionHistory {
    pub session: String,
    /// The mark that each turn of the session prints. It differs between incarnations. A twin has that of its original.
    pub mark: String,
    /// Whether clients are told of a turn only when the fleet has a copy of it.
    pub replicated: bool,
    pub turns: Vec<TurnHistory>,
    /// The events that clients read, by sequence number.
    pub seen: BTreeMap<u64, EventFact>,
    pub end: ToldEnd,
    /// A client tried to create a later session of the same name, so the nodes may tell of that one.
    pub replaced: bool,
    /// A lost session had the same name. The node that had it tells of it until that node has joined again.
    pub reused: bool,
    /// The session's directory, in which each turn leaves a line.
    pub workspace: String,
    /// The lines of the file of effects. `None`: the file is gone, or was never made.
    pub effects: Option<Vec<String>>,
    /// What each node says after the faults.
    pub views: Vec<NodeView>,
}

/// One turn and every answer about it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TurnHistory {
    pub id: String,
    /// Different answers, in the order of arrival.
    pub answers: Vec<TurnAnswer>,
}

/// What one answer says about a turn. Every answer acknowledges that the turn was accepted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TurnAnswer {
    /// The number of the turn in its session.
    pub number: u64,
    /// How the turn ended, if the answer says it.
    pub end: Option<ToldOutcome>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ToldOutcome {
    /// `ok`, or another outcome.
    pub outcome: String,
    pub text: String,
}

/// What clients know about the end of a session.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum ToldEnd {
    #[default]
    Open,
    /// A client tried to close the session, and got no answer.
    CloseAsked,
    Closed,
    /// The code of the refusal that said so.
    Gone(String),
}

/// An event, as far as the checker needs it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct EventFact {
    /// The whole event as text.
    pub text: String,
    /// The number of the event's turn.
    pub turn: Option<u64>,
    pub kind: FactKind,
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum FactKind {
    /// The turn with this id was accepted.
    Accepted(String),
    Ended,
    #[default]
    Other,
}

/// What one node says about a session after the faults.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeView {
    /// The name of the node.
    pub node: String,
    pub state: ViewState,
    pub events: BTreeMap<u64, EventFact>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ViewState {
    Live,
    /// The session has ended, and its owner tells of it.
    Ended,
    /// The session was lost with its node. The receipt names the last event that was copied.
    Lost {
        copied: Option<u64>,
    },
    /// The node answers with this code.
    Refused(String),
}

impl SessionHistory {
    /// Adds an answer about a turn.
    pub fn told(&mut self, id: &str, answer: TurnAnswer) {
        let turn = self.turn(id);
        if !turn.answers.contains(&answer) {
            turn.answers.push(answer);
        }
    }

    /// The history of a turn, which begins when the turn is submitted.
    pub fn turn(&mut self, id: &str) -> &mut TurnHistory {
        let at = match self.turns.iter().position(|turn| turn.id == id) {
            Some(at) => at,
            None => {
                self.turns.push(TurnHistory { id: id.to_owned(), answers: Vec::new() });
                self.turns.len() - 1
            }
        };
        &mut self.turns[at]
    }
}
