//! Histories with planted faults: the checker finds each of them, and nothing in a history without faults.

use std::collections::BTreeMap;

use super::super::record::{EventFact, TurnAnswer};
use super::*;

fn ended(id: &str, number: u64, counter: u64) -> TurnAnswer {
    let text = format!("{id} m1 {counter}\n");
    TurnAnswer { number, end: Some(ToldOutcome { outcome: OK.to_owned(), text }) }
}

fn events(turns: &[(&str, u64)]) -> BTreeMap<u64, EventFact> {
    let kinds = |id: &str| [FactKind::Accepted(id.to_owned()), FactKind::Other, FactKind::Ended];
    let facts = turns.iter().flat_map(|(id, number)| {
        kinds(id).map(|kind| EventFact {
            text: format!("{id} {kind:?}"),
            turn: Some(*number),
            kind,
        })
    });
    (1..).zip(facts).collect()
}

fn view(node: &str, state: ViewState, turns: &[(&str, u64)]) -> NodeView {
    NodeView { node: node.to_owned(), state, events: events(turns) }
}

/// A session of three turns that was never in trouble. Each row of the tables changes one thing.
fn sound() -> SessionHistory {
    let turns = [("a", 1), ("b", 2), ("c", 3)];
    let mut history = SessionHistory {
        session: "s".to_owned(),
        mark: "m1".to_owned(),
        replicated: true,
        seen: events(&turns[..2]),
        effects: Some(turns.iter().map(|(id, _)| (*id).to_owned()).collect()),
        views: ["n1", "n2"].map(|node| view(node, ViewState::Live, &turns)).to_vec(),
        ..SessionHistory::default()
    };
    for (id, number) in turns {
        history.told(id, TurnAnswer { number, end: None });
        history.told(id, ended(id, number, number - 1));
    }
    history
}

/// The session was lost with its node. The copy has the first turns.
fn lost(history: &mut SessionHistory, turns: &[(&str, u64)]) {
    let copied = Some(3 * turns.len() as u64);
    let state = ViewState::Lost { copied };
    history.views = ["n1", "n2"].map(|node| view(node, state.clone(), turns)).to_vec();
}

type Change = fn(&mut SessionHistory);

#[track_caller]
fn check_table(table: &[(&str, Change, &[&str])]) {
    for (what, change, expected) in table {
        let mut history = sound();
        change(&mut history);
        let found = check(&[history]);
        let mut kinds: Vec<&str> = Vec::new();
        for broken in &found {
            if !kinds.contains(&broken.kind) {
                kinds.push(broken.kind);
            }
        }
        assert_eq!(kinds, *expected, "{what}: {found:?}");
    }
}

#[test]
fn a_history_without_faults_is_no_violation() {
    check_table(&[
        ("nothing changed", |_| {}, &[]),
        ("a turn without an answer", |h| h.turn("d").answers.clear(), &[]),
        (
            "a turn without an answer ran",
            |h| h.effects.iter_mut().for_each(|e| e.push("d".into())),
            &[],
        ),
        (
            "closed, and the workspace is gone",
            |h| {
                h.end = ToldEnd::Closed;
                h.effects = None;
                h.views.iter_mut().for_each(|view| view.state = ViewState::Ended);
            },
            &[],
        ),
        (
            "the owner says fenced, the other node says lost",
            |h| {
                h.end = ToldEnd::Gone("session_lost".to_owned());
                let lost = ViewState::Lost { copied: Some(9) };
                h.views[0].state = ViewState::Ended;
                h.views[1].state = lost;
            },
            &[],
        ),
    ]);
}

#[test]
fn a_loss_or_an_end_that_was_told_is_no_violation() {
    check_table(&[
        (
            "lost with a turn that was told before it was copied",
            |h| {
                h.replicated = false;
                lost(h, &[("a", 1), ("b", 2)]);
            },
            &[],
        ),
        (
            "lost behind an event that a follower read",
            |h| {
                h.turns.truncate(1);
                lost(h, &[("a", 1)]);
            },
            &[],
        ),
        (
            "lost behind a replicated turn that was told as running",
            |h| {
                h.turns[2].answers.truncate(1);
                lost(h, &[("a", 1), ("b", 2)]);
            },
            &[],
        ),
        (
            "a session of the same name followed",
            |h| {
                h.replaced = true;
                h.views.clear();
                h.effects = Some(vec!["a".to_owned()]);
            },
            &[],
        ),
        (
            "a turn was cut by the end of the session",
            |h| {
                let end = ToldOutcome { outcome: "lost".to_owned(), text: String::new() };
                h.turns[2].answers = vec![TurnAnswer { number: 3, end: Some(end) }];
                h.views.iter_mut().for_each(|view| view.state = ViewState::Ended);
            },
            &[],
        ),
        (
            "a twin counts on from its original",
            |h| {
                h.turns.iter_mut().for_each(|turn| turn.answers.clear());
                h.turns[1].answers = vec![ended("b", 2, 41)];
                h.turns[2].answers = vec![ended("c", 3, 42)];
            },
            &[],
        ),
    ]);
}

#[test]
fn each_planted_acceptor_is_found() {
    check_table(&[
        (
            "two acceptors number one turn",
            |h| h.told("b", ended("b", 7, 6)),
            &["acceptors", "answer", "lost"],
        ),
        (
            "two acceptors run two turns with one counter",
            |h| {
                h.turns[2].answers = vec![ended("c", 3, 1)];
            },
            &["acceptors"],
        ),
        (
            "two turns have one number",
            |h| {
                h.turns[2].answers = vec![ended("c", 2, 1)];
            },
            &["acceptors", "lost"],
        ),
        (
            "an earlier incarnation answers",
            |h| {
                let end = ToldOutcome { outcome: OK.to_owned(), text: "c m0 2\n".to_owned() };
                h.turns[2].answers = vec![TurnAnswer { number: 3, end: Some(end) }];
            },
            &["acceptors"],
        ),
        (
            "turns ran in another order",
            |h| {
                h.effects = Some(["a", "c", "b"].map(str::to_owned).to_vec());
            },
            &["acceptors"],
        ),
    ]);
}

#[test]
fn each_planted_loss_is_found() {
    check_table(&[
        (
            "an acknowledged turn is not in a node's events",
            |h| {
                h.views[1] = view("n2", ViewState::Live, &[("a", 1), ("b", 2)]);
            },
            &["lost"],
        ),
        (
            "the end of a turn is not in a node's events",
            |h| drop(h.views[1].events.remove(&9)),
            &["lost"],
        ),
        ("a replicated turn is behind the receipt", |h| lost(h, &[("a", 1), ("b", 2)]), &["lost"]),
        ("a receipt of nothing", |h| lost(h, &[]), &["receipt", "lost"]),
        (
            "a receipt names another event",
            |h| {
                lost(h, &[("a", 1), ("b", 2), ("c", 3)]);
                h.views[0].state = ViewState::Lost { copied: Some(8) };
            },
            &["receipt"],
        ),
        ("an event that a client read is gone", |h| drop(h.views[0].events.remove(&2)), &["event"]),
        (
            "an event that a client read is another one",
            |h| {
                h.seen.insert(2, EventFact::default());
            },
            &["event"],
        ),
    ]);
}

#[test]
fn each_planted_effect_and_answer_is_found() {
    check_table(&[
        (
            "a side effect happened twice",
            |h| {
                h.effects.iter_mut().for_each(|lines| lines.push("c".to_owned()));
            },
            &["twice"],
        ),
        (
            "a side effect is missing",
            |h| h.effects.iter_mut().for_each(|e| drop(e.remove(1))),
            &["effect"],
        ),
        ("the effects of a live session are missing", |h| h.effects = None, &["effect"]),
        (
            "a wrong answer",
            |h| {
                let end = ToldOutcome { outcome: OK.to_owned(), text: "41\n".to_owned() };
                h.turns[2].answers = vec![TurnAnswer { number: 3, end: Some(end) }];
            },
            &["answer"],
        ),
        (
            "the answer of another turn",
            |h| h.turns[2].answers = vec![ended("b", 3, 2)],
            &["answer"],
        ),
        (
            "a turn of a live session failed",
            |h| {
                let end = ToldOutcome { outcome: "error".to_owned(), text: String::new() };
                h.turns[2].answers = vec![TurnAnswer { number: 3, end: Some(end) }];
            },
            &["answer"],
        ),
    ]);
}

#[test]
fn each_planted_state_is_found() {
    check_table(&[
        ("a session in two states", |h| h.views[1].state = ViewState::Ended, &["state"]),
        ("a closed session lives", |h| h.end = ToldEnd::Closed, &["state"]),
        ("a lost session lives", |h| h.end = ToldEnd::Gone("session_lost".to_owned()), &["state"]),
        (
            "a node does not answer after the faults",
            |h| {
                h.views[1].state = ViewState::Refused("node_unreachable".to_owned());
            },
            &["state"],
        ),
        (
            "a node knows no such session",
            |h| {
                h.views[1].state = ViewState::Refused(NOT_FOUND.to_owned());
            },
            &["gone"],
        ),
        (
            "a client was told that there is no such session",
            |h| {
                h.end = ToldEnd::Gone(NOT_FOUND.to_owned());
                h.views.iter_mut().for_each(|view| view.state = ViewState::Ended);
            },
            &["gone"],
        ),
    ]);
}
