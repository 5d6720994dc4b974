//! The audit log as the node uses it: notes that become records when their request is answered, and records of what the
//! node decides itself. `windlass_audit` owns the form and the files. Never records code, input, arguments or values.

mod decisions;
mod note;

use std::sync::{Mutex, PoisonError};

use windlass_audit::{AuditActor, AuditDetails, AuditEntry, AuditLog};
use windlass_protocol::SessionId;

pub(crate) use decisions::{SessionAudit, note_token_changes, of_use_of_secret};
pub(crate) use note::{AuditNote, SenderKind};

use crate::clock::now_ms;

/// Maximum number of refusals of known senders that are recorded in a minute: each of them could fill the log, too.
const KNOWN_REFUSALS_PER_MINUTE: u32 = 600;

/// Maximum number of refusals without a valid token that are recorded in a minute: anyone who reaches a door can cause
/// them, and records make older ones leave the log.
const REFUSALS_PER_MINUTE: u32 = 60;

const MINUTE_MS: u64 = 60_000;

/// The audit log of a node.
#[derive(Debug)]
pub(crate) struct NodeAudit {
    pub log: AuditLog,
    refusals_of_unknown: Mutex<RefusalCount>,
    refusals_of_known: Mutex<RefusalCount>,
}

/// The refusals of the current minute.
#[derive(Debug, Default)]
struct RefusalCount {
    minute: u64,
    recorded: u32,
    /// Refusals that were not recorded, and that no record tells of yet.
    left_out: u64,
}

impl RefusalCount {
    /// Whether one more refusal is recorded. If so, returns how many were left out before it.
    fn take(&mut self, now_ms: u64, per_minute: u32) -> Option<u64> {
        let minute = now_ms / MINUTE_MS;
        if self.minute != minute {
            (self.minute, self.recorded) = (minute, 0);
        }
        if self.recorded >= per_minute {
            self.left_out = self.left_out.saturating_add(1);
            return None;
        }
        self.recorded += 1;
        Some(std::mem::take(&mut self.left_out))
    }
}

impl NodeAudit {
    pub fn new(log: AuditLog) -> Self {
        Self { log, refusals_of_unknown: Mutex::default(), refusals_of_known: Mutex::default() }
    }

    /// Records a decision of the node.
    pub fn decided(&self, did: &'static str, session: Option<&SessionId>, what: AuditDetails) {
        if self.log.is_enabled() {
            self.log.record(decision(did, session, what));
        }
    }

    /// Records the refusal of a request, within a limit.
    pub fn refused(&self, note: &AuditNote, code: &str) {
        if !note.is_pending() {
            return;
        }
        let (refusals, per_minute) = match note.is_of_unknown() {
            true => (&self.refusals_of_unknown, REFUSALS_PER_MINUTE),
            false => (&self.refusals_of_known, KNOWN_REFUSALS_PER_MINUTE),
        };
        let mut refusals = refusals.lock().unwrap_or_else(PoisonError::into_inner);
        let counted = refusals.take(now_ms(), per_minute);
        drop(refusals);
        match counted {
            None => note.discard(),
            Some(left_out) => {
                if left_out > 0 {
                    note.add("refusals_left_out", left_out);
                }
                note.refuse(code);
            }
        }
    }
}

/// A record of the node itself.
fn decision(did: &'static str, session: Option<&SessionId>, what: AuditDetails) -> AuditEntry {
    let session = session.map(|id| id.as_str().to_owned());
    AuditEntry { at_ms: now_ms(), who: AuditActor::node(), did, session, what }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refusals_are_bounded_by_the_minute_and_counted() {
        for most in [REFUSALS_PER_MINUTE, KNOWN_REFUSALS_PER_MINUTE] {
            let mut count = RefusalCount::default();
            let mut take = |now_ms| count.take(now_ms, most);
            for _ in 0..most {
                assert_eq!(take(5), Some(0));
            }
            assert_eq!((take(6), take(MINUTE_MS - 1)), (None, None));
            assert_eq!(take(MINUTE_MS), Some(2));
            assert_eq!(take(MINUTE_MS), Some(0));
        }
    }

    #[test]
    fn a_refusal_of_a_request_that_is_recorded_already_counts_nothing() {
        let audit = NodeAudit::new(AuditLog::disabled());
        let (who, what) = (AuditActor::default(), AuditDetails::default());
        let note = AuditNote::new(&audit.log, who, SenderKind::Known, "session.create", what);
        note.send();
        audit.refused(&note, "not_found");
        assert_eq!(audit.refusals_of_known.lock().unwrap().recorded, 0);
    }
}
