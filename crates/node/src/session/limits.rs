//! Limits that a session ran into, in words: what a turn that was lost to one says.

use std::time::{Duration, Instant};

use windlass_protocol::ErrorCode;
use windlass_protocol::event::{EventKind, TurnError};
use windlass_protocol::policy::Limit;

use crate::clock::now_ms;
use crate::failure::remedy;

/// What the keeper said of a limit, and of why its worker ended, until the next turn starts.
#[derive(Debug, Default)]
pub(super) struct LimitReports {
    /// The last word, which may have cost a process only.
    message: String,
    /// The limit that ended the worker, with its figures.
    ended: Option<(Limit, String)>,
    /// Why the last worker ended, or was not started.
    cause: String,
}

impl LimitReports {
    /// Takes in a keeper's event, before it is decided upon.
    pub fn hear(&mut self, kind: &EventKind) {
        match kind {
            EventKind::LimitReached { message, .. } => self.message.clone_from(message),
            EventKind::WorkerEnded { limit, cause, .. } => {
                self.cause.clone_from(cause);
                let message = std::mem::take(&mut self.message);
                self.ended = limit.map(|limit| (limit, message));
            }
            _ => {}
        }
    }

    /// The session has lived as long as it may, which is so many seconds.
    pub fn wall_time_passed(&mut self, wall_s: u64) -> EventKind {
        let (limit, message) = (Limit::WallTime, format!("it may live for {wall_s} s"));
        self.ended = Some((limit, message.clone()));
        EventKind::LimitReached { limit, message }
    }

    /// A turn starts: what was before it is told.
    pub fn turn_starts(&mut self) {
        *self = Self::default();
    }

    /// The error of a turn that a limit ended, or that never ran because of one.
    pub fn explain(&self, code: ErrorCode) -> Option<TurnError> {
        if let Some(limit) = limit_of(code) {
            let heard = self.ended.as_ref().filter(|(heard, _)| *heard == limit);
            return Some(reached(limit, code, heard.map_or("", |(_, message)| message)));
        }
        if code == ErrorCode::WorkerFailed && !self.cause.is_empty() {
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

/// When a session that was created then has lived as long as it may.
pub(super) fn wall_end(created_at_ms: u64, wall_s: Option<u64>) -> Option<Instant> {
    let end_ms = created_at_ms.saturating_add(wall_s?.saturating_mul(1000));
    // So far off that it cannot be reckoned: never.
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

#[cfg(test)]
mod tests {
    use super::*;

    fn heard(limit: Option<Limit>) -> LimitReports {
        let mut heard = LimitReports::default();
        let message = "it used 65 MiB of 64 MiB".to_owned();
        heard.hear(&EventKind::LimitReached { limit: Limit::Memory, message });
        heard.hear(&EventKind::WorkerEnded { cause: String::new(), limit, replaced: false });
        heard
    }

    #[test]
    fn a_turn_that_a_limit_ended_is_told_its_name_figures_and_remedy() {
        let error = heard(Some(Limit::Memory)).explain(ErrorCode::LimitMemory).unwrap();
        assert_eq!(error.name, "limit: memory");
        assert_eq!(error.code, Some(ErrorCode::LimitMemory));
        assert!(error.message.starts_with("it used 65 MiB of 64 MiB; "), "{}", error.message);
        assert!(error.message.contains("policy.limits.memory_bytes"), "{}", error.message);
    }

    #[test]
    fn a_state_lost_to_a_limit_names_it_until_a_turn_starts() {
        let mut heard = heard(Some(Limit::Memory));
        let error = heard.explain(ErrorCode::StateLost).unwrap();
        assert!(error.message.contains("limit: memory: it used 65 MiB"), "{}", error.message);
        heard.turn_starts();
        assert_eq!(heard.explain(ErrorCode::StateLost), None);
    }

    #[test]
    fn a_turn_whose_worker_did_not_start_is_told_why() {
        let mut heard = LimitReports::default();
        assert_eq!(heard.explain(ErrorCode::WorkerFailed), None);
        let cause = "cannot start python3: cannot hide /srv/keys: permission denied".to_owned();
        heard.hear(&EventKind::WorkerEnded { cause: cause.clone(), limit: None, replaced: false });
        let error = heard.explain(ErrorCode::WorkerFailed).unwrap();
        assert!(error.message.starts_with(&cause), "{}", error.message);
    }

    #[test]
    fn a_limit_that_cost_a_process_only_is_not_blamed_for_the_workers_end() {
        let heard = heard(None);
        assert_eq!(heard.explain(ErrorCode::StateLost), None);
        assert_eq!(heard.explain(ErrorCode::WorkerDied), None);
    }
}
