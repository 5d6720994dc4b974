//! Judges the record of a run: a pure function. What it looks for is in `docs/chaos.md`.
//!
//! Every turn adds 1 to a counter in the session's memory, appends its id to a file in the workspace, and prints its id,
//! the session's mark and the counter. One acceptor numbers turns without gap and runs each once. So the counter minus
//! the turn's number is the same for all turns of a session.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use super::record::{
    FactKind, NodeView, SessionHistory, ToldEnd, ToldOutcome, TurnHistory, ViewState,
};

/// The outcome of a turn that ended well.
const OK: &str = "ok";

/// The code of a node that knows no such session.
const NOT_FOUND: &str = "session_not_found";

/// A broken promise.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BrokenPromise {
    /// The first word of the row in `docs/chaos.md`.
    pub kind: &'static str,
    pub session: String,
    pub text: String,
}

impl fmt::Display for BrokenPromise {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}: {}", self.kind, self.session, self.text)
    }
}

/// Everything that is wrong in the record.
pub fn check(histories: &[SessionHistory]) -> Vec<BrokenPromise> {
    let mut found = Vec::new();
    for history in histories {
        let mut judge = SessionJudge { history, found: Vec::new() };
        judge.answers();
        judge.numbers();
        judge.effects();
        if !history.replaced {
            judge.states();
            judge.events();
        }
        found.extend(judge.found);
    }
    found
}

/// Which events a node must have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum PromisedEvents {
    /// All that a client read, and all acknowledged turns.
    All,
    /// All turns that were told as ended. A turn can be told as running, and an event can be read, before it is copied.
    EndedTurns,
    /// No gap.
    Copied,
}

struct SessionJudge<'a> {
    history: &'a SessionHistory,
    found: Vec<BrokenPromise>,
}

impl SessionJudge<'_> {
    fn broken(&mut self, kind: &'static str, text: impl Into<String>) {
        let session = self.history.session.clone();
        self.found.push(BrokenPromise { kind, session, text: text.into() });
    }

    fn is_live_anywhere(&self) -> bool {
        self.history.views.iter().any(|view| view.state == ViewState::Live)
    }

    /// All answers about one turn agree, and each is what the code prints.
    fn answers(&mut self) {
        let history = self.history;
        for turn in &history.turns {
            let numbers: BTreeSet<u64> = turn.answers.iter().map(|answer| answer.number).collect();
            if numbers.len() > 1 {
                self.broken("acceptors", format!("turn {} has the numbers {numbers:?}", turn.id));
            }
            let mut ends: Vec<&ToldOutcome> =
                turn.answers.iter().filter_map(|a| a.end.as_ref()).collect();
            ends.dedup();
            if ends.len() > 1 {
                self.broken("answer", format!("turn {} ended in several ways: {ends:?}", turn.id));
            }
            for end in ends {
                self.answer(turn, end);
            }
        }
    }

    fn answer(&mut self, turn: &TurnHistory, end: &ToldOutcome) {
        let id = &turn.id;
        if end.outcome != OK {
            // The end of a session ends its turns.
            if self.is_live_anywhere() {
                self.broken(
                    "answer",
                    format!("turn {id} ended {:?} in a live session", end.outcome),
                );
            }
            return;
        }
        let mark = self.history.mark.clone();
        match Printed::read(&end.text) {
            Some(printed) if printed.id != *id => {
                self.broken("answer", format!("turn {id} printed the output of {}", printed.id));
            }
            Some(printed) if printed.mark != mark => {
                let text = format!("turn {id} ran in {}, and the session is {mark}", printed.mark);
                self.broken("acceptors", text);
            }
            Some(_) => {}
            None => self.broken("answer", format!("turn {id} printed {:?}", end.text)),
        }
    }

    /// Turns have different numbers, and the counter follows them.
    fn numbers(&mut self) {
        let history = self.history;
        let mut ids: BTreeMap<u64, &str> = BTreeMap::new();
        let mut differences: BTreeMap<i64, &str> = BTreeMap::new();
        for turn in &history.turns {
            for answer in &turn.answers {
                let other = *ids.entry(answer.number).or_insert(&turn.id);
                if other != turn.id {
                    let text = format!("{other} and {} are both turn {}", turn.id, answer.number);
                    self.broken("acceptors", text);
                }
                let ended = answer.end.as_ref().filter(|end| end.outcome == OK);
                let Some(printed) = ended.and_then(|end| Printed::read(&end.text)) else {
                    continue;
                };
                differences.insert(printed.counter - signed(answer.number), &turn.id);
            }
        }
        if differences.len() > 1 {
            let text = format!("the counter does not follow the numbers of turns: {differences:?}");
            self.broken("acceptors", text);
        }
    }

    /// Each turn left its line once, in the order of the turns.
    fn effects(&mut self) {
        let history = self.history;
        let ended_well = |turn: &&TurnHistory| ends(turn).any(|end| end.outcome == OK);
        let Some(lines) = &history.effects else {
            if self.is_live_anywhere() && history.turns.iter().any(|turn| ended_well(&turn)) {
                self.broken("effect", "the session is live, and its file of effects is missing");
            }
            return;
        };
        let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
        for line in lines {
            *counts.entry(line).or_default() += 1;
        }
        for (line, count) in &counts {
            if *count > 1 {
                self.broken("twice", format!("turn {line} ran {count} times"));
            }
        }
        if history.replaced {
            // A later session of the name may have the same workspace.
            return;
        }
        for turn in history.turns.iter().filter(ended_well) {
            if !counts.contains_key(turn.id.as_str()) {
                self.broken("effect", format!("turn {} ended ok and left no line", turn.id));
            }
        }
        let number = |line: &String| {
            let turn = history.turns.iter().find(|turn| turn.id == *line)?;
            turn.answers.first().map(|answer| answer.number)
        };
        let numbers: Vec<u64> = lines.iter().filter_map(number).collect();
        if !numbers.is_sorted() {
            self.broken("acceptors", format!("turns ran in the order {numbers:?}"));
        }
    }

    /// All nodes tell the same state, and it agrees with what clients were told.
    fn states(&mut self) {
        let history = self.history;
        if history.end == ToldEnd::Gone(NOT_FOUND.to_owned()) {
            self.broken("gone", "a node knew no such session");
        }
        for view in &history.views {
            match &view.state {
                ViewState::Refused(code) if code == NOT_FOUND => {
                    self.broken("gone", format!("{} knows no such session", view.node));
                }
                ViewState::Refused(code) => {
                    self.broken("state", format!("{} answers {code} after the faults", view.node));
                }
                _ => {}
            }
        }
        let is_over =
            |view: &NodeView| matches!(view.state, ViewState::Ended | ViewState::Lost { .. });
        let told_over = matches!(history.end, ToldEnd::Closed | ToldEnd::Gone(_));
        let over = history.views.iter().find(|view| is_over(view)).map(|view| view.node.as_str());
        let live = history.views.iter().find(|view| view.state == ViewState::Live);
        match (live, over) {
            (Some(live), Some(over)) => {
                self.broken("state", format!("it is live in {} and over in {over}", live.node));
            }
            (Some(live), None) if told_over => {
                let text =
                    format!("it is live in {}, and clients were told {:?}", live.node, history.end);
                self.broken("state", text);
            }
            _ => {}
        }
    }

    /// Every node has the events that clients were told of.
    fn events(&mut self) {
        let history = self.history;
        for view in &history.views {
            match &view.state {
                ViewState::Live | ViewState::Ended => self.complete(view, PromisedEvents::All),
                ViewState::Lost { copied } => {
                    let last = view.events.keys().next_back().copied();
                    if last != *copied {
                        let text = format!(
                            "{}: the receipt says event {copied:?}, the events end with {last:?}",
                            view.node
                        );
                        self.broken("receipt", text);
                    }
                    let promised = match history.replicated {
                        true => PromisedEvents::EndedTurns,
                        false => PromisedEvents::Copied,
                    };
                    self.complete(view, promised);
                }
                ViewState::Refused(_) => {}
            }
        }
    }

    fn complete(&mut self, view: &NodeView, promised: PromisedEvents) {
        let history = self.history;
        let last = view.events.keys().next_back().copied().unwrap_or_default();
        for (seq, seen) in &history.seen {
            match view.events.get(seq) {
                Some(event) if event != seen => {
                    let text = format!(
                        "{}: event {seq} was {:?} and is {:?}",
                        view.node, seen.text, event.text
                    );
                    self.broken("event", text);
                }
                None if promised == PromisedEvents::All || *seq <= last => {
                    self.broken("event", format!("{}: event {seq} is missing", view.node));
                }
                _ => {}
            }
        }
        if promised == PromisedEvents::Copied {
            return;
        }
        for turn in &history.turns {
            for answer in &turn.answers {
                if answer.end.is_none() && promised == PromisedEvents::EndedTurns {
                    continue;
                }
                let of_turn = || view.events.values().filter(|e| e.turn == Some(answer.number));
                let accepted = FactKind::Accepted(turn.id.clone());
                let number = answer.number;
                if !of_turn().any(|event| event.kind == accepted) {
                    let text = format!("{}: turn {} ({number}) was accepted", view.node, turn.id);
                    self.broken("lost", text);
                } else if answer.end.is_some() && !of_turn().any(|e| e.kind == FactKind::Ended) {
                    let text = format!("{}: turn {} ({number}) has ended", view.node, turn.id);
                    self.broken("lost", text);
                }
            }
        }
    }
}

fn ends(turn: &TurnHistory) -> impl Iterator<Item = &ToldOutcome> {
    turn.answers.iter().filter_map(|answer| answer.end.as_ref())
}

fn signed(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

/// What a turn printed.
struct Printed<'a> {
    id: &'a str,
    mark: &'a str,
    counter: i64,
}

impl<'a> Printed<'a> {
    fn read(text: &'a str) -> Option<Self> {
        let mut words = text.strip_suffix('\n')?.split(' ');
        let (id, mark, counter) = (words.next()?, words.next()?, words.next()?.parse().ok()?);
        words.next().is_none().then_some(Self { id, mark, counter })
    }
}

#[cfg(test)]
mod tests;
