//! What came of an attack, and how it is read from what the program said and how it ended.

use std::fmt;

use windlass_client::protocol::Outcome;
use windlass_client::protocol::api::Turn;

/// The most of a verdict's words that are kept.
const WORDS_MAX: usize = 400;

/// What came of an attack.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    /// By what.
    Refused(String),
    /// What it got.
    Through(String),
    /// It crashed, hung or said nothing: that proves nothing.
    NoVerdict(String),
    /// The session says by itself that it does not enforce this.
    NotClaimed(String),
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Refused(by) => write!(f, "refused: {by}"),
            Self::Through(what) => write!(f, "through: {what}"),
            Self::NoVerdict(why) => write!(f, "no verdict: {why}"),
            Self::NotClaimed(why) => write!(f, "not claimed: {why}"),
        }
    }
}

/// What the runner in the worker says last: how the program ended.
pub(super) const ENDED: &str = "attack ended: ";

/// Killed by a filter of system calls, as Python's subprocess says it.
const KILLED_BY_FILTER: &str = "-31";

/// Killed by force: by a limit, where one is tried.
const KILLED: &str = "-9";

/// Whether a program that is killed has run into the limit that it tries.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Trying {
    ALimit,
    SomethingElse,
}

impl Verdict {
    /// Reads a turn that ran an attack.
    pub(super) fn of(turn: &Turn, trying: Trying) -> Self {
        if let Some(limit) = limit_of(turn) {
            return match trying {
                Trying::ALimit => Self::Refused(limit),
                Trying::SomethingElse => Self::NoVerdict(limit),
            };
        }
        let text = turn.output.text.as_str();
        let mut said = text.lines().rev().map(str::trim).filter(|line| !line.is_empty());
        let Some(ended) = said.next().and_then(|line| line.strip_prefix(ENDED)) else {
            return Self::NoVerdict(short(&format!("{:?}: {text}", turn.outcome)));
        };
        let last = said.next().unwrap_or_default();
        match (ended, trying) {
            ("0", _) => {}
            (KILLED_BY_FILTER, _) => return Self::Refused("killed by the filter".to_owned()),
            (KILLED, Trying::ALimit) => return Self::Refused("killed by the limit".to_owned()),
            _ => return Self::NoVerdict(short(&format!("ended with {ended}: {last}"))),
        }
        match (last.strip_prefix("refused: "), last.strip_prefix("through: ")) {
            (Some(by), _) => Self::Refused(short(by)),
            (_, Some(what)) => Self::Through(short(what)),
            _ => Self::NoVerdict(short(&format!("it said {last:?}"))),
        }
    }
}

/// What an attack's first part says when there is a second part to play.
const PLANTED: &str = "planted: ";

/// Whether the turn ended with something planted for the next part.
pub(super) fn is_planted(turn: &Turn) -> bool {
    let text = turn.output.text.as_str();
    let mut said = text.lines().rev().map(str::trim).filter(|line| !line.is_empty());
    said.next().is_some_and(|line| line.starts_with(ENDED))
        && said.next().is_some_and(|line| line.starts_with(PLANTED))
}

/// What a program outside said in one line.
pub(super) fn of_line(line: &str) -> Option<Verdict> {
    let (refused, through) = (line.strip_prefix("refused: "), line.strip_prefix("through: "));
    let refused = refused.map(|by| Verdict::Refused(short(by)));
    refused.or_else(|| through.map(|what| Verdict::Through(short(what))))
}

/// The limit that ended the turn, by its name.
fn limit_of(turn: &Turn) -> Option<String> {
    let ended = turn.outcome.is_some_and(|outcome| outcome != Outcome::Ok);
    let name = turn.error.as_ref().map(|error| format!("{}: {}", error.name, error.message))?;
    (ended && name.contains("limit")).then(|| short(&name))
}

pub(super) fn short(words: &str) -> String {
    let line = words.split_whitespace().collect::<Vec<_>>().join(" ");
    line.chars().take(WORDS_MAX).collect()
}
