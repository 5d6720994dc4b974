//! What a worker does about itself when it forks a twin, with a C interface: see `ffi` for the shared
//! object. Each function returns 0, or the number of an error.

use std::sync::atomic::{AtomicBool, Ordering};

use crate::enter::landlock::Rules;
use crate::enter::leave_others_alone;
use crate::plan::Ruleset;

/// Whether this process, or one that it was forked from, has the filter that only twins need.
static FILTERED: AtomicBool = AtomicBool::new(false);

/// The ruleset is not one.
const BAD_RULES: i32 = -1;

/// Adds one Landlock layer (a ruleset as JSON) to the calling thread, and keeps it from changing others
/// of its user in ways that Landlock does not know. -1: the ruleset is none; E2BIG: there are as many layers as there can be.
///
/// # Safety
/// `rules` points to `length` readable bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn windlass_separate(rules: *const u8, length: i32) -> i32 {
    let Ok(length) = usize::try_from(length) else { return BAD_RULES };
    if rules.is_null() {
        return BAD_RULES;
    }
    // SAFETY: the caller's promise.
    let bytes = unsafe { std::slice::from_raw_parts(rules, length) };
    let Ok(ruleset) = serde_json::from_slice::<Ruleset>(bytes) else { return BAD_RULES };
    let Ok(rules) = Rules::new(&ruleset) else { return BAD_RULES };
    if let Err(failed) = rules.enforce() {
        return failed.errno;
    }
    // Filters stay over a fork, and so does this word of them.
    if FILTERED.swap(true, Ordering::Relaxed) {
        return 0;
    }
    leave_others_alone().map_or_else(|errno| errno, |()| 0)
}

/// Whether orphans of the calling process come to it (1) or to whoever holds it (0).
#[unsafe(no_mangle)]
pub extern "C" fn windlass_adopt(orphans: i32) -> i32 {
    let whose = rustix::process::Pid::from_raw(orphans);
    rustix::process::set_child_subreaper(whose).map_or_else(|errno| errno.raw_os_error(), |()| 0)
}
