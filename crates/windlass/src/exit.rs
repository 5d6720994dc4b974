//! Exit codes, which scripts may rely on.

use std::process::ExitCode;

use windlass_protocol::Outcome;

/// The command did what it says; the turn ended `ok`.
pub const OK: u8 = 0;

/// The command failed; the turn ended `error`.
pub const FAILED: u8 = 1;

/// The command line is wrong. The argument parser exits with this code.
pub const USAGE: u8 = 2;

/// No node is running.
pub const NO_NODE: u8 = 3;

/// The session, and with it the turn, is lost.
pub const LOST: u8 = 70;

/// The turn reached its deadline; the same code as that of `timeout`.
pub const TIMED_OUT: u8 = 124;

/// SIGHUP ended the command.
pub const HUNG_UP: u8 = 129;

/// The turn was interrupted; the same code as for a process ended by SIGINT.
pub const INTERRUPTED: u8 = 130;

/// The user detached with Ctrl-C.
pub const DETACHED: u8 = INTERRUPTED;

/// SIGQUIT ended the command.
pub const QUIT: u8 = 131;

/// The reader of the command's output is gone; the same code as for a process ended by SIGPIPE.
pub const PIPE_CLOSED: u8 = 141;

/// SIGTERM ended the command.
pub const TERMINATED: u8 = 143;

/// Every exit code with its meaning, for `docs/reference/exit-codes.md`.
pub const TABLE: [(u8, &str); 11] = [
    (OK, "the command did what it says; for `run` and `agent run`: the turn ended `ok`"),
    (
        FAILED,
        "the command failed, and standard error says why; for `agent run` also: the turn ended `error`; for \
         `worker check`: the worker failed a case; for `config check`: the file has an error; for `audit --verify`: the \
         log has a fault",
    ),
    (USAGE, "the command line is wrong: an unknown option, or a value that cannot be read"),
    (NO_NODE, "no node is running, and the command (`status`, `du`, `prune`, ...) starts none"),
    (LOST, "the session ended before its turn did"),
    (TIMED_OUT, "the turn reached its deadline (`timed_out`)"),
    (HUNG_UP, "SIGHUP ended the command, as a closed terminal does"),
    (
        INTERRUPTED,
        "the turn was interrupted (`interrupted`), or the user detached with a second Ctrl-C",
    ),
    (QUIT, "SIGQUIT ended the command (`top`)"),
    (
        PIPE_CLOSED,
        "the reader of the output closed the pipe, as in `windlass run big.py | head -1`",
    ),
    (TERMINATED, "SIGTERM ended the command"),
];

pub fn of_outcome(outcome: Outcome) -> u8 {
    match outcome {
        Outcome::Ok => OK,
        Outcome::Error => FAILED,
        Outcome::Interrupted => INTERRUPTED,
        Outcome::TimedOut => TIMED_OUT,
        Outcome::Lost => LOST,
    }
}

pub fn code(outcome: Outcome) -> ExitCode {
    ExitCode::from(of_outcome(outcome))
}

/// The exit code of a command that ran one turn: the exit status of the code, unless its deadline ended it.
pub fn of_turn(outcome: Outcome, exit_code: Option<i32>) -> u8 {
    match (outcome, exit_code) {
        (Outcome::TimedOut, _) | (_, None) => of_outcome(outcome),
        // As the kernel does with the status of a process: its lowest eight bits.
        (_, Some(code)) => u8::try_from(code & 0xff).expect("eight bits fit"),
    }
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
            assert_eq!(of_turn(outcome, None), expected, "{outcome:?}");
        }
    }

    #[test]
    fn a_turn_has_the_exit_status_of_its_code_unless_its_deadline_passed() {
        for (outcome, status, expected) in [
            (Outcome::Ok, 0, 0),
            (Outcome::Error, 3, 3),
            (Outcome::Error, 256, 0),
            (Outcome::Error, -1, 255),
            (Outcome::Interrupted, 7, 7),
            (Outcome::Lost, 139, 139),
            (Outcome::TimedOut, 130, 124),
        ] {
            assert_eq!(of_turn(outcome, Some(status)), expected, "{outcome:?} {status}");
        }
    }

    #[test]
    fn the_table_is_in_order_and_has_each_outcome() {
        assert!(TABLE.is_sorted_by(|one, next| one.0 < next.0));
        let outcomes =
            [Outcome::Ok, Outcome::Error, Outcome::Interrupted, Outcome::TimedOut, Outcome::Lost];
        for outcome in outcomes {
            assert!(TABLE.iter().any(|(code, _)| *code == of_outcome(outcome)), "{outcome:?}");
        }
    }
}
