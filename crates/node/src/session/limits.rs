//! Limits that a session has reached, and the errors of turns that were lost to them.

use std::time::{Duration, Instant};

use windlass_protocol::ErrorCode;
use windlass_protocol::event::{EventKind, TurnError};
use windlass_protocol::policy::Limit;

use crate::clock::now_ms;
use crate::failure::remedy;

/// The keeper's reports about limits and about the end of its worker, until the next turn starts.
#[derive(Debug, Default)]
pub(super) struct LimitReports {
    /// The last report. The limit may have ended only one process, not the worker.
    message: String,
    /// The limit of the last report.
    reached: Option<Limit>,
    /// The limit that ended the worker, with its figures.
    ended: Option<(Limit, String)>,
    /// Why the last worker ended or was not started, or how it violated the protocol.
    cause: String,
    /// The exit status of the last worker that ended.
    exit_code: Option<i32>,
    /// The end of what the lost turn wrote to its standard error.
    stderr: String,
}

impl LimitReports {
    /// Notes a keeper's event, before the lifecycle decides about it.
    pub fn note(&mut self, kind: &EventKind) {
        match kind {
            EventKind::LimitReached { limit, message, ends_session } => {
                self.message.clone_from(message);
                self.reached = Some(*limit);
                if *ends_session {
                    self.ended = Some((*limit, message.clone()));
                }
            }
            EventKind::WorkerEnded { limit, cause, exit_code, stderr, .. } => {
                self.cause.clone_from(cause);
                self.exit_code = *exit_code;
                self.stderr.clone_from(stderr);
                let message = std::mem::take(&mut self.message);
                self.ended = limit.map(|limit| (limit, message));
            }
            EventKind::ProtocolBroken { message } => self.cause.clone_from(message),
            _ => {}
        }
    }

    /// The session has reached its wall time limit of `wall_s` seconds.
    pub fn wall_time_passed(&mut self, wall_s: u64) -> EventKind {
        let (limit, message) = (Limit::WallTime, format!("the session may live for {wall_s} s"));
        self.ended = Some((limit, message.clone()));
        self.reached = Some(limit);
        EventKind::LimitReached { limit, message, ends_session: true }
    }

    /// The exit status of a turn that its worker did not survive.
    pub fn exit_code(&self, code: Option<ErrorCode>) -> Option<i32> {
        let code = code.filter(|code| *code == ErrorCode::WorkerDied || limit_of(*code).is_some());
        code.and(self.exit_code)
    }

    fn add_stderr(&self, message: &mut String) {
        if !self.stderr.is_empty() {
            message.push_str("; the end of its standard error:\n");
            message.push_str(&self.stderr);
        }
    }

    /// A turn starts: forgets the reports before it.
    pub fn turn_starts(&mut self) {
        *self = Self::default();
    }

    /// The limit that was reported last since the turn started.
    pub fn reached(&self) -> Option<Limit> {
        self.reached
    }

    /// The error of a turn that a limit or its worker ended, or that did not run because of a limit.
    pub fn explain(&self, code: ErrorCode) -> Option<TurnError> {
        if let Some(limit) = limit_of(code) {
            let report = self.ended.as_ref().filter(|(reported, _)| *reported == limit);
            let mut error = reached(limit, code, report.map_or("", |(_, message)| message));
            self.add_stderr(&mut error.message);
            return Some(error);
        }
        if code == ErrorCode::WorkerDied && !self.cause.is_empty() {
            let mut message = format!("{}; {}", death(&self.cause), remedy(code));
            self.add_stderr(&mut message);
            return Some(TurnError { code: Some(code), name: code.as_str().to_owned(), message });
        }
        let has_cause = matches!(code, ErrorCode::WorkerFailed | ErrorCode::ProtocolError);
        if has_cause && !self.cause.is_empty() {
            return Some(TurnError {
                code: Some(code),
                name: code.as_str().to_owned(),
                message: format!("{}; {}", self.cause, remedy(code)),
            });
        }
        let (limit, message) = self.ended.as_ref().filter(|_| code == ErrorCode::StateLost)?;
        let name = limit.name();
        Some(TurnError {
            code: Some(code),
            name: code.as_str().to_owned(),
            message: format!("{}; the worker was ended by {name}: {message}", remedy(code)),
        })
    }
}

/// How a worker ended, in words. `cause` is its end as the keeper describes it: `exit code 3`, `signal SIGSEGV`.
fn death(cause: &str) -> String {
    if let Some(code) = cause.strip_prefix("exit code ") {
        return format!("the worker ended itself with exit status {code}");
    }
    let Some(signal) = cause.strip_prefix("signal ") else {
        return format!("the worker ended: {cause}");
    };
    let meaning = match signal {
        "SIGSEGV" | "SIGBUS" => " (invalid memory access, usually in native code)",
        "SIGABRT" => " (native code gave up)",
        "SIGILL" => " (invalid machine instruction)",
        "SIGFPE" => " (arithmetic error in native code)",
        "SIGSYS" => " (system call that the sandbox forbids)",
        "SIGKILL" => " (killed from outside, or out of memory on this machine)",
        _ => "",
    };
    format!("the worker was ended by {signal}{meaning}")
}

/// When a session reaches its wall time limit.
pub(super) fn wall_end(created_at_ms: u64, wall_s: Option<u64>) -> Option<Instant> {
    let end_ms = created_at_ms.saturating_add(wall_s?.saturating_mul(1000));
    // A time too far in the future for an `Instant` means never.
    Instant::now().checked_add(Duration::from_millis(end_ms.saturating_sub(now_ms())))
}

/// The error of a turn that a limit ended.
pub(super) fn reached(limit: Limit, code: ErrorCode, figures: &str) -> TurnError {
    let message = match figures {
        "" => remedy(code).to_owned(),
        figures => format!("{figures}; {}", remedy(code)),
    };
    TurnError { code: Some(code), name: limit.name().to_owned(), message }
}

/// The limit that a code names.
pub(super) fn limit_of(code: ErrorCode) -> Option<Limit> {
    match code {
        ErrorCode::LimitMemory => Some(Limit::Memory),
        ErrorCode::LimitProcesses => Some(Limit::Processes),
        ErrorCode::LimitDisk => Some(Limit::Disk),
        ErrorCode::LimitWallTime => Some(Limit::WallTime),
        _ => None,
    }
}

/// The error of a turn that Windlass ended. `said` is the error that the code itself raised, if any.
pub(super) fn explain(code: ErrorCode, said: Option<TurnError>) -> TurnError {
    if let Some(limit) = limit_of(code) {
        return reached(limit, code, "");
    }
    let message = match said {
        Some(said) => {
            format!("{}; the code ended with {}: {}", remedy(code), said.name, said.message)
        }
        None => remedy(code).to_owned(),
    };
    TurnError { code: Some(code), name: code.as_str().to_owned(), message }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ended(cause: &str, limit: Option<Limit>) -> EventKind {
        EventKind::WorkerEnded {
            cause: cause.to_owned(),
            limit,
            replaced: false,
            exit_code: Some(3),
            stderr: "last words".to_owned(),
        }
    }

    #[test]
    fn a_turn_that_its_worker_did_not_survive_is_told_the_cause_and_the_last_words() {
        for (cause, told) in [
            ("exit code 3", "the worker ended itself with exit status 3; "),
            ("signal SIGSEGV", "the worker was ended by SIGSEGV (invalid memory access"),
            ("signal SIGUSR1", "the worker was ended by SIGUSR1; "),
            ("it vanished", "the worker ended: it vanished; "),
        ] {
            let mut reports = LimitReports::default();
            reports.note(&ended(cause, None));
            let error = reports.explain(ErrorCode::WorkerDied).unwrap();
            assert_eq!(error.name, "worker_died");
            assert!(error.message.starts_with(told), "{}", error.message);
            assert!(error.message.ends_with("standard error:\nlast words"), "{}", error.message);
            assert_eq!(reports.exit_code(Some(ErrorCode::WorkerDied)), Some(3));
            assert_eq!(reports.exit_code(Some(ErrorCode::StateLost)), None);
        }
    }

    fn reports(limit: Option<Limit>) -> LimitReports {
        let mut reports = LimitReports::default();
        let message = "it used 65 MiB of 64 MiB".to_owned();
        let limit_reached =
            EventKind::LimitReached { limit: Limit::Memory, message, ends_session: false };
        reports.note(&limit_reached);
        reports.note(&ended("", limit));
        reports
    }

    #[test]
    fn a_turn_that_a_limit_ended_is_told_its_name_figures_and_remedy() {
        let error = reports(Some(Limit::Memory)).explain(ErrorCode::LimitMemory).unwrap();
        assert_eq!(error.name, "limit: memory");
        assert_eq!(error.code, Some(ErrorCode::LimitMemory));
        assert!(error.message.starts_with("it used 65 MiB of 64 MiB; "), "{}", error.message);
        assert!(error.message.contains("policy.limits.memory_bytes"), "{}", error.message);
    }

    #[test]
    fn a_state_lost_to_a_limit_names_it_until_a_turn_starts() {
        let mut reports = reports(Some(Limit::Memory));
        let error = reports.explain(ErrorCode::StateLost).unwrap();
        assert!(error.message.contains("limit: memory: it used 65 MiB"), "{}", error.message);
        reports.turn_starts();
        assert_eq!(reports.explain(ErrorCode::StateLost), None);
    }

    #[test]
    fn a_turn_whose_worker_did_not_start_is_told_why() {
        let mut reports = LimitReports::default();
        assert_eq!(reports.explain(ErrorCode::WorkerFailed), None);
        let cause = "cannot start python3: cannot hide /srv/keys: permission denied".to_owned();
        reports.note(&ended(&cause, None));
        let error = reports.explain(ErrorCode::WorkerFailed).unwrap();
        assert!(error.message.starts_with(&cause), "{}", error.message);
    }

    #[test]
    fn a_turn_whose_worker_violated_the_protocol_is_told_how() {
        let mut reports = LimitReports::default();
        assert_eq!(reports.explain(ErrorCode::ProtocolError), None);
        let message =
            "a header is not a message: missing field `outcome`; its header: {}".to_owned();
        reports.note(&EventKind::ProtocolBroken { message: message.clone() });
        let error = reports.explain(ErrorCode::ProtocolError).unwrap();
        assert_eq!(error.code, Some(ErrorCode::ProtocolError));
        assert!(error.message.starts_with(&message), "{}", error.message);
        assert!(error.message.ends_with("create a new session"), "{}", error.message);
    }

    #[test]
    fn a_limit_that_cost_a_process_only_is_not_blamed_for_the_workers_end() {
        let reports = reports(None);
        assert_eq!(reports.explain(ErrorCode::StateLost), None);
        assert_eq!(reports.explain(ErrorCode::WorkerDied), None);
    }
}
