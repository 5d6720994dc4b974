//! Exit codes: what scripts may rely on.

use std::process::ExitCode;

use windlass_protocol::Outcome;

/// `status` found no node.
pub const NO_NODE: u8 = 3;

/// The terminal's user left with Ctrl-C.
pub const DETACHED: u8 = 130;

/// Nobody reads the command's output any more, as if SIGPIPE had ended it.
pub const PIPE_CLOSED: u8 = 141;

/// The session, and with it the turn, is gone.
pub const LOST: u8 = 70;

pub fn of_outcome(outcome: Outcome) -> u8 {
    match outcome {
        Outcome::Ok => 0,
        Outcome::Error => 1,
        Outcome::Interrupted => 130,
        Outcome::TimedOut => 124,
        Outcome::Lost => LOST,
    }
}

pub fn code(outcome: Outcome) -> ExitCode {
    ExitCode::from(of_outcome(outcome))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_outcome_has_the_exit_code_that_shells_expect() {
        let codes = [
            (Outcome::Ok, 0),
            (Outcome::Error, 1),
            (Outcome::Interrupted, 130),
            (Outcome::TimedOut, 124),
            (Outcome::Lost, 70),
        ];
        for (outcome, expected) in codes {
            assert_eq!(of_outcome(outcome), expected, "{outcome:?}");
        }
    }
}
