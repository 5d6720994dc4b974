//! What a seed did, and whether that is enough: the checker finds nothing wrong in a run that did nothing. Pure functions.

use std::collections::BTreeMap;

use super::checker::BrokenPromise;
use super::record::{SessionHistory, ViewState};

/// The names of counts.
pub const TURNS_ENDED: &str = "turns told as ended";
const EVENTS_READ: &str = "events that clients read";
const EFFECTS: &str = "lines of effects";
const TOLD_BY_ALL: &str = "sessions that every node told of";

/// What each seed does at least. The faults can take the store away for most of a short run, so the numbers are low.
const SEED_MIN: [(&str, u64); 6] = [
    ("faults", 1),
    ("sessions", 2),
    (TURNS_ENDED, 4),
    (EVENTS_READ, 1),
    (EFFECTS, 1),
    (TOLD_BY_ALL, 1),
];

/// Counts what the checker has to judge.
pub fn counts(histories: &[SessionHistory]) -> BTreeMap<String, u64> {
    let mut counts: BTreeMap<String, u64> = BTreeMap::new();
    let mut add = |what: &str, count: usize| {
        *counts.entry(what.to_owned()).or_default() += count as u64;
    };
    for history in histories {
        let has_ended =
            history.turns.iter().filter(|turn| turn.answers.iter().any(|a| a.end.is_some()));
        add(TURNS_ENDED, has_ended.count());
        add(EVENTS_READ, history.seen.len());
        add(EFFECTS, history.effects.as_ref().map_or(0, Vec::len));
        let any = |is: fn(&ViewState) -> bool| history.views.iter().any(|view| is(&view.state));
        let is_refused = any(|state| matches!(state, ViewState::Refused(_)));
        add(TOLD_BY_ALL, usize::from(!history.views.is_empty() && !is_refused));
        add("sessions told as live", usize::from(any(|state| *state == ViewState::Live)));
        add("sessions told as ended", usize::from(any(|state| *state == ViewState::Ended)));
        let is_copied = any(|state| matches!(state, ViewState::Lost { copied: Some(_) }));
        add("sessions told as lost, with a copy", usize::from(is_copied));
    }
    counts
}

/// What a seed with these counts did too little of.
pub fn too_little(counts: &BTreeMap<String, u64>) -> Vec<BrokenPromise> {
    let lacking = SEED_MIN.iter().filter_map(|(what, least)| {
        let count = counts.get(*what).copied().unwrap_or_default();
        (count < *least).then(|| BrokenPromise {
            kind: "idle",
            session: "fleet".to_owned(),
            text: format!("{what}: {count}, and each seed has at least {least}"),
        })
    });
    lacking.collect()
}

#[cfg(test)]
mod tests {
    use super::super::record::{EventFact, NodeView, ToldOutcome, TurnAnswer};
    use super::*;

    fn view(state: ViewState) -> NodeView {
        NodeView { node: "n1".to_owned(), state, events: BTreeMap::new() }
    }

    #[test]
    fn a_run_that_did_nothing_does_not_pass() {
        let found = too_little(&counts(&[]));
        assert_eq!(found.len(), SEED_MIN.len(), "{found:?}");
        let enough = SEED_MIN.map(|(what, least)| (what.to_owned(), least));
        let found = too_little(&BTreeMap::from(enough));
        assert!(found.is_empty(), "{found:?}");
    }

    #[test]
    fn only_turns_that_a_client_was_told_as_ended_count() {
        let mut history = SessionHistory::default();
        history.turn("sent");
        history.told("running", TurnAnswer { number: 1, end: None });
        assert_eq!(counts(&[history.clone()])[TURNS_ENDED], 0);
        let end = Some(ToldOutcome { outcome: "ok".to_owned(), text: String::new() });
        history.told("running", TurnAnswer { number: 1, end });
        assert_eq!(counts(&[history])[TURNS_ENDED], 1);
    }

    #[test]
    fn what_nodes_told_is_counted_by_session() {
        let lost = SessionHistory {
            seen: BTreeMap::from([(1, EventFact::default()), (2, EventFact::default())]),
            views: vec![view(ViewState::Lost { copied: Some(2) }); 2],
            ..SessionHistory::default()
        };
        let refused = SessionHistory {
            effects: Some(vec!["a".to_owned()]),
            views: vec![view(ViewState::Live), view(ViewState::Refused("fenced".to_owned()))],
            ..SessionHistory::default()
        };
        let found = counts(&[lost, refused]);
        for (what, count) in [
            (EVENTS_READ, 2),
            (EFFECTS, 1),
            (TOLD_BY_ALL, 1),
            ("sessions told as live", 1),
            ("sessions told as ended", 0),
            ("sessions told as lost, with a copy", 1),
        ] {
            assert_eq!(found[what], count, "{what}");
        }
    }
}
