//! The nesting of open calls: which call waits for which other call. Detects a turn that would wait for
//! itself, and decides nothing else.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use windlass_protocol::SessionId;
use windlass_protocol::host::Within;
use windlass_protocol::limits::WITHIN_DEPTH_MAX;

/// The open calls of all sessions to tool hosts.
#[derive(Debug, Default)]
pub struct OpenWithin {
    /// Each call, with the outer call in which its turn was submitted.
    calls: Mutex<HashMap<Within, Option<Within>>>,
}

impl OpenWithin {
    pub fn open(&self, call: Within, within: Option<Within>) {
        self.lock().insert(call, within);
    }

    pub fn close(&self, call: &Within) {
        self.lock().remove(call);
    }

    /// Whether a turn of `session` that is submitted in the call `within` could never begin, because
    /// the session waits for that call or for one of its outer calls.
    pub fn would_deadlock(&self, session: &SessionId, within: &Within) -> bool {
        let calls = self.lock();
        let mut at = within;
        for _ in 0..WITHIN_DEPTH_MAX {
            // No session waits for a call that has ended.
            let Some(outer) = calls.get(at) else { return false };
            if at.session == *session {
                return true;
            }
            match outer {
                Some(outer) => at = outer,
                None => return false,
            }
        }
        true
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Within, Option<Within>>> {
        self.calls.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn call(text: &str) -> Within {
        Within::parse(text).unwrap()
    }

    #[test]
    fn a_cycle_is_found_through_other_sessions_and_only_while_it_exists() {
        let open = OpenWithin::default();
        open.open(call("a/1/1"), None);
        open.open(call("b/1/1"), Some(call("a/1/1")));
        open.open(call("c/1/1"), Some(call("b/1/1")));
        let session = |text| SessionId::parse(text).unwrap();
        for (to, within, circle) in [
            ("a", "a/1/1", true),
            ("b", "a/1/1", false),
            ("a", "c/1/1", true),
            ("d", "c/1/1", false),
            ("a", "a/1/2", false),
        ] {
            assert_eq!(open.would_deadlock(&session(to), &call(within)), circle, "{to} {within}");
        }
        open.close(&call("b/1/1"));
        assert!(!open.would_deadlock(&session("a"), &call("c/1/1")), "b waits no longer");
    }

    #[test]
    fn a_nesting_that_is_too_deep_to_follow_is_refused() {
        let open = OpenWithin::default();
        for depth in 1..=WITHIN_DEPTH_MAX + 1 {
            let outer = (depth > 1).then(|| call(&format!("s{}/1/1", depth - 1)));
            open.open(call(&format!("s{depth}/1/1")), outer);
        }
        let deepest = call(&format!("s{}/1/1", WITHIN_DEPTH_MAX + 1));
        assert!(open.would_deadlock(&SessionId::parse("other").unwrap(), &deepest));
    }
}
