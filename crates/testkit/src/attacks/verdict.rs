//! The verdict on an attack, derived from the output of the program and its exit code.

use std::fmt;

use windlass_client::protocol::Outcome;
use windlass_client::protocol::api::Turn;

/// Maximum number of characters of a verdict's text.
const WORDS_MAX: usize = 400;

/// The verdict on an attack.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AttackVerdict {
    /// The attack was refused; names what refused it.
    Refused(String),
    /// The attack succeeded; names what it got.
    Through(String),
    /// The attack crashed, hung or printed no result, which proves nothing.
    NoVerdict(String),
    /// The session reports that it does not enforce this control.
    NotClaimed(String),
}

impl fmt::Display for AttackVerdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Refused(by) => write!(f, "refused: {by}"),
            Self::Through(what) => write!(f, "through: {what}"),
            Self::NoVerdict(why) => write!(f, "no verdict: {why}"),
            Self::NotClaimed(why) => write!(f, "not claimed: {why}"),
        }
    }
}

/// Prefix of the last line of the runner in the worker: the exit code of the program.
pub(super) const ENDED: &str = "attack ended: ";

/// Exit code of a program that the system call filter killed (SIGSYS), in Python's notation.
const KILLED_BY_FILTER: &str = "-31";

/// Exit code after SIGKILL. For an attack on a limit, the limit killed the program.
const KILLED: &str = "-9";

/// What the attack targets. A kill counts as a refusal only for an attack on a limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Trying {
    ALimit,
    SomethingElse,
}

impl AttackVerdict {
    /// The verdict of a turn that ran an attack.
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
        // What the program wrote to a terminal may arrive after its verdict.
        let last = said.clone().find(|line| of_line(line).is_some()).or_else(|| said.next());
        let last = last.unwrap_or_default();
        match (ended, trying) {
            ("0", _) => {}
            (KILLED_BY_FILTER, _) => return Self::Refused("killed by the filter".to_owned()),
            (KILLED, Trying::ALimit) => return Self::Refused("killed by the limit".to_owned()),
            _ => return Self::NoVerdict(short(&format!("exited with {ended}: {last}"))),
        }
        of_line(last).unwrap_or_else(|| Self::NoVerdict(short(&format!("it printed {last:?}"))))
    }
}

/// Prefix of the line that the first part of an attack prints if a second part must follow.
const PLANTED: &str = "planted: ";

/// Whether the turn ended and planted something for the next part.
pub(super) fn is_planted(turn: &Turn) -> bool {
    let text = turn.output.text.as_str();
    let mut said = text.lines().rev().map(str::trim).filter(|line| !line.is_empty());
    said.next().is_some_and(|line| line.starts_with(ENDED))
        && said.next().is_some_and(|line| line.starts_with(PLANTED))
}

/// The verdict in one line of output, if the line has one.
pub(super) fn of_line(line: &str) -> Option<AttackVerdict> {
    let (refused, through) = (line.strip_prefix("refused: "), line.strip_prefix("through: "));
    let refused = refused.map(|by| AttackVerdict::Refused(short(by)));
    refused.or_else(|| through.map(|what| AttackVerdict::Through(short(what))))
}

/// The name of the limit that ended the turn.
fn limit_of(turn: &Turn) -> Option<String> {
    let ended = turn.outcome.is_some_and(|outcome| outcome != Outcome::Ok);
    let name = turn.error.as_ref().map(|error| format!("{}: {}", error.name, error.message))?;
    (ended && name.contains("limit")).then(|| short(&name))
}

pub(super) fn short(words: &str) -> String {
    let line = words.split_whitespace().collect::<Vec<_>>().join(" ");
    line.chars().take(WORDS_MAX).collect()
}
