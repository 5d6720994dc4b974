//! Exit codes, which scripts may rely on.

use std::process::ExitCode;

use windlass_protocol::Outcome;

/// No node is running.
pub const NO_NODE: u8 = 3;

/// The user detached with Ctrl-C.
pub const DETACHED: u8 = 130;

/// The reader of the command's output is gone; the same code as for a process ended by SIGPIPE.
pub const PIPE_CLOSED: u8 = 141;

/// The session, and with it the turn, is lost.
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
