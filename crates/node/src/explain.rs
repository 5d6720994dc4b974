//! Says which control of a session's policy stopped a turn, what the turn tried, and which option allows it.
//!
//! Pure: the policy, the end of the turn and a bounded tail of its output come in, and a sentence comes out. The
//! output was written by code that may be hostile. Its text is only shown, bounded and without control
//! characters; it changes nothing that is enforced. A symptom in the output counts only if the policy really
//! refuses what the symptom is about, so an ordinary error is not blamed on the sandbox.

mod paths;
mod symptoms;
#[cfg(test)]
mod tests;
mod words;

use std::path::{Path, PathBuf};

use windlass_protocol::api::EgressDecision;
use windlass_protocol::confinement::{Confinement, Control, ControlState, Isolation};
use windlass_protocol::event::TurnError;
use windlass_protocol::policy::{Limit, Policy};
use windlass_protocol::refusal::PolicyRefusal;
use windlass_protocol::{ErrorCode, Outcome};

use self::symptoms::Judgement;

/// Maximum bytes of a turn's output that are searched, from its end.
pub(crate) const TAIL_BYTES_MAX: usize = 4096;

/// Errors of a language that no policy causes. The output before such an error is not searched.
const ORDINARY_ERRORS: [&str; 17] = [
    "ArithmeticError",
    "AssertionError",
    "AttributeError",
    "ImportError",
    "IndentationError",
    "IndexError",
    "KeyError",
    "ModuleNotFoundError",
    "NameError",
    "RecursionError",
    "ReferenceError",
    "SyntaxError",
    "TypeError",
    "UnboundLocalError",
    "UnicodeDecodeError",
    "ValueError",
    "ZeroDivisionError",
];

/// The message of the error with which `fetch` of Node.js fails without a network. The error is a `TypeError`.
const FETCH_FAILED: &str = "fetch failed";

/// A session, as far as a refusal depends on it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ConfinedSession<'a> {
    pub policy: &'a Policy,
    /// Absent until a worker was started.
    pub confinement: Option<&'a Confinement>,
    pub workspace: &'a Path,
    pub home: Option<&'a Path>,
    /// Further directories that the node gave to the session.
    pub own: &'a [PathBuf],
}

/// The end of a turn.
#[derive(Debug, Clone, Copy)]
pub(crate) struct TurnFacts<'a> {
    pub outcome: Outcome,
    pub error: Option<&'a TurnError>,
    /// A limit that the session reached in the turn.
    pub limit: Option<Limit>,
    /// The last connection in the turn that the egress proxy refused.
    pub refused: Option<&'a EgressDecision>,
    /// The end of the turn's output. Empty unless [`reads_output`].
    pub tail: &'a str,
}

/// Whether the end of a turn's output is worth reading: its own code failed, for a reason that can be a policy.
pub(crate) fn reads_output(outcome: Outcome, error: Option<&TurnError>) -> bool {
    outcome == Outcome::Error
        && error.is_none_or(|error| {
            error.code.is_none()
                && (error.message == FETCH_FAILED
                    || !ORDINARY_ERRORS.contains(&error.name.as_str()))
        })
}

/// Why the policy made a turn fail. None if it did not, as far as the turn's end shows.
pub(crate) fn explain(session: ConfinedSession<'_>, turn: TurnFacts<'_>) -> Option<PolicyRefusal> {
    let code = turn.error.and_then(|error| error.code);
    if let Some(limit) = limit_behind(code, turn.limit) {
        return words::limit(&session.policy.limits, limit);
    }
    if turn.outcome == Outcome::Lost {
        return None;
    }
    let confined = session.confinement.filter(|found| found.isolation != Isolation::None);
    if let Some(confinement) = confined {
        let confined = Confined { session, confinement, tail: turn.tail };
        let judged = match reads_output(turn.outcome, turn.error) {
            true => confined.judge_texts(turn.error),
            false => None,
        };
        // The proxy knows the host. The text of the error often does not.
        let is_network = judged.as_ref().is_none_or(|found| found.control == Control::Network);
        if let Some(refused) = turn.refused.filter(|_| is_network) {
            return Some(words::refused_host(refused));
        }
        if judged.is_some() {
            return judged;
        }
    }
    turn.limit.and_then(|limit| words::limit(&session.policy.limits, limit))
}

/// The limit because of which Windlass ended a turn.
fn limit_behind(code: Option<ErrorCode>, reached: Option<Limit>) -> Option<Limit> {
    match code? {
        ErrorCode::LimitMemory => Some(Limit::Memory),
        ErrorCode::LimitProcesses => Some(Limit::Processes),
        ErrorCode::LimitDisk => Some(Limit::Disk),
        ErrorCode::LimitWallTime => Some(Limit::WallTime),
        ErrorCode::StateLost => reached,
        _ => None,
    }
}

/// A session that is confined, and the end of its turn's output.
#[derive(Debug, Clone, Copy)]
struct Confined<'a> {
    session: ConfinedSession<'a>,
    confinement: &'a Confinement,
    tail: &'a str,
}

impl<'a> Confined<'a> {
    /// Judges the error, and then the lines of the output from the last to the first. The first symptom decides: what
    /// was printed before it is about something else.
    fn judge_texts(&self, error: Option<&TurnError>) -> Option<PolicyRefusal> {
        let said = error.map(|error| format!("{}: {}", error.name, error.message));
        let said = said.as_deref().unwrap_or_default();
        let mut end = said.len().min(TAIL_BYTES_MAX);
        while !said.is_char_boundary(end) {
            end -= 1;
        }
        let lines = said[..end].lines().chain(self.tail.lines().rev());
        for line in lines {
            match self.judge(line) {
                Judgement::Unrelated => {}
                Judgement::Ordinary => return None,
                Judgement::Refused(refusal) => return Some(*refusal),
            }
        }
        None
    }

    fn enforces(&self, control: Control) -> bool {
        self.confinement.state(control) == Some(ControlState::Enforced)
    }

    fn isolation(&self) -> Isolation {
        self.confinement.isolation
    }

    fn policy(&self) -> &'a Policy {
        self.session.policy
    }
}
