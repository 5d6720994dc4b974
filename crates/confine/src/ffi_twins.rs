//! C functions with which a worker separates itself from its twin when it forks. `ffi` describes the shared
//! object. Each function returns 0 or an error number.

use crate::enter::TwinLayer;
use crate::enter::landlock::PreparedRuleset;
use crate::other_threads;
use crate::plan::Ruleset;

/// The ruleset cannot be parsed or prepared.
const BAD_RULES: i32 = -1;

/// Adds a Landlock layer (a ruleset as JSON) to the calling thread, and a filter. The filter stops the thread
/// from changing other processes of its user in ways that Landlock does not cover. -1: the ruleset is
/// invalid; E2BIG: the thread already has the maximum number of layers.
///
/// # Safety
/// `rules` points to `length` readable bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn windlass_separate(rules: *const u8, length: i32) -> i32 {
    // SAFETY: the caller's promise.
    let layer = unsafe { layer_of(rules, length) };
    layer.and_then(|layer| layer.add()).map_or_else(|errno| errno, |()| 0)
}

/// Adds the same to every other thread of the calling process; each thread gets a separate layer. `threads`
/// contains the ids of the known threads, as text separated by spaces; other threads are looked up in
/// `/proc`. A thread that does not answer gets nothing; the keeper sees which threads these are.
///
/// # Safety
/// `rules` points to `length` readable bytes, and `threads` to `threads_length`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn windlass_separate_others(
    rules: *const u8,
    length: i32,
    threads: *const u8,
    threads_length: i32,
) -> i32 {
    // SAFETY: the caller's promises.
    let (layer, threads) =
        unsafe { (layer_of(rules, length), bytes(threads, threads_length).unwrap_or_default()) };
    let layer = match layer {
        Ok(layer) => layer,
        Err(errno) => return errno,
    };
    let known = std::str::from_utf8(threads).unwrap_or_default().split_ascii_whitespace();
    other_threads::separate(&layer, known.filter_map(|thread| thread.parse().ok()));
    0
}

/// Makes the calling process a subreaper (1), so that it adopts its orphaned descendants, or ends that (0).
#[unsafe(no_mangle)]
pub extern "C" fn windlass_adopt(orphans: i32) -> i32 {
    let whose = rustix::process::Pid::from_raw(orphans);
    rustix::process::set_child_subreaper(whose).map_or_else(|errno| errno.raw_os_error(), |()| 0)
}

/// # Safety
/// `rules` points to `length` readable bytes.
unsafe fn layer_of(rules: *const u8, length: i32) -> Result<TwinLayer, i32> {
    // SAFETY: the caller's promise.
    let bytes = unsafe { bytes(rules, length) }.ok_or(BAD_RULES)?;
    let ruleset = serde_json::from_slice::<Ruleset>(bytes).map_err(|_| BAD_RULES)?;
    TwinLayer::new(&PreparedRuleset::new(&ruleset).map_err(|_| BAD_RULES)?)
}

/// # Safety
/// `start` is null, or points to `length` bytes that stay readable for as long as the result is used.
unsafe fn bytes<'a>(start: *const u8, length: i32) -> Option<&'a [u8]> {
    let length = usize::try_from(length).ok()?;
    // SAFETY: the caller's promise.
    (!start.is_null()).then(|| unsafe { std::slice::from_raw_parts(start, length) })
}
