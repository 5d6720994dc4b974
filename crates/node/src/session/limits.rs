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
}

impl LimitReports {
    /// Notes a keeper's event, before the lifecycle decides about it.
    pub fn note(&mut self, kind: &EventKind) {
        match kind {
            EventKind::LimitReached { limit, message } => {
                self.message.clone_from(message);
                self.reached = Some(*limit);
            }
            EventKind::WorkerEnded { limit, cause, .. } => {
                self.cause.clone_from(cause);
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
        EventKind::LimitReached { limit, message }
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
            return Some(reached(limit, code, report.map_or("", |(_, message)| message)));
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

    fn reports(limit: Option<Limit>) -> LimitReports {
        let mut reports = LimitReports::default();
        let message = "it used 65 MiB of 64 MiB".to_owned();
        reports.note(&EventKind::LimitReached { limit: Limit::Memory, message });
        reports.note(&EventKind::WorkerEnded { cause: String::new(), limit, replaced: false });
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
        reports.note(&EventKind::WorkerEnded {
            cause: cause.clone(),
            limit: None,
            replaced: false,
        });
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
