//! Chooses a turn's deadline: its own, its session's or its node's. Names the deadline in the turn's error.
//! Reads no clock: the turn queue arms the timer.

use std::time::Duration;

use windlass_protocol::Outcome;
use windlass_protocol::event::TurnError;

use super::limits::limit_of;
use crate::clock::in_words;

/// The default deadlines of a session's turns.
#[derive(Debug)]
pub(super) struct Deadlines {
    session: Option<Duration>,
    node: Option<Duration>,
}

impl Deadlines {
    pub fn new(session_ms: Option<u64>, node: Option<Duration>) -> Self {
        Self { session: session_ms.map(Duration::from_millis), node }
    }

    /// How long a turn may run.
    pub fn of(&self, own_ms: Option<u64>) -> Option<Duration> {
        own_ms.map(Duration::from_millis).or(self.session).or(self.node)
    }

    /// Adds the deadline, and where it was set, to the error of a turn that its deadline ended.
    pub fn name_in(&self, error: TurnError, own_ms: Option<u64>, outcome: Outcome) -> TurnError {
        let by_limit = error.code.and_then(limit_of).is_some();
        let Some(deadline) = self.of(own_ms).filter(|_| outcome == Outcome::TimedOut && !by_limit)
        else {
            return error;
        };
        let whose = match (own_ms, self.session) {
            (Some(_), _) => "",
            (None, Some(_)) => " (the default of its session)",
            (None, None) => " (the default of the node)",
        };
        let deadline = in_words(deadline);
        let message = error.message;
        let message =
            format!("the turn ran longer than its deadline of {deadline}{whose}; {message}");
        TurnError { message, ..error }
    }
}

#[cfg(test)]
mod tests {
    use windlass_protocol::ErrorCode;

    use super::*;

    fn error(code: ErrorCode) -> TurnError {
        TurnError { code: Some(code), name: code.as_str().to_owned(), message: "help".to_owned() }
    }

    #[test]
    fn a_turn_has_its_own_deadline_then_its_sessions_then_the_nodes() {
        let node = Some(Duration::from_secs(3600));
        for (own_ms, session_ms, node, expected) in [
            (Some(1500), Some(30_000), node, Some("1500 ms; help")),
            (None, Some(30_000), node, Some("30 s (the default of its session); help")),
            (None, None, node, Some("1 h (the default of the node); help")),
            (None, None, None, None),
        ] {
            let deadlines = Deadlines::new(session_ms, node);
            let named =
                deadlines.name_in(error(ErrorCode::DeadlinePassed), own_ms, Outcome::TimedOut);
            let expected = expected.map_or("help".to_owned(), |rest| {
                format!("the turn ran longer than its deadline of {rest}")
            });
            assert_eq!(named.message, expected);
            assert_eq!(deadlines.of(own_ms).is_some(), expected != "help");
        }
    }

    #[test]
    fn an_error_without_a_deadline_names_none() {
        let deadlines = Deadlines::new(Some(1000), None);
        for (code, outcome) in [
            (ErrorCode::Unstoppable, Outcome::Interrupted),
            (ErrorCode::WorkerDied, Outcome::Lost),
            (ErrorCode::LimitMemory, Outcome::TimedOut),
        ] {
            assert_eq!(deadlines.name_in(error(code), None, outcome), error(code), "{code:?}");
        }
        let killed = deadlines.name_in(error(ErrorCode::Unstoppable), None, Outcome::TimedOut);
        assert!(killed.message.contains("its deadline of 1 s"), "{}", killed.message);
    }
}
