//! The sandbox for a process that is an interpreter already: one function with a C interface, for a
//! process that was forked from another and is about to run untrusted code. The shared object is
//! this crate, built as `libwindlass_sandbox.so`.

use std::os::fd::{AsFd, BorrowedFd};

use crate::enter::Prepared;
use crate::plan::Plan;

/// Everything was done.
const DONE: i32 = 0;
/// The plan is not one.
const BAD_PLAN: i32 = -1;
/// A canary of a required control got through.
const CANARY_THROUGH: i32 = -2;

/// Makes the namespaces of a plan (JSON) around the calling process, which has one thread and goes
/// on in a child: call this, fork, and call `windlass_enter` in the child. Returns 0, -1 for a plan
/// that is not one, or the number of the error.
///
/// # Safety
/// `plan` points to `length` readable bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn windlass_make_namespaces(plan: *const u8, length: usize) -> i32 {
    // SAFETY: the caller's promise.
    match unsafe { prepare(plan, length) } {
        None => BAD_PLAN,
        Some(prepared) if !prepared.needs_namespaces() => DONE,
        Some(prepared) => prepared.make_namespaces().map_or_else(|failed| failed.errno, |()| DONE),
    }
}

/// Confines the calling process, which has one thread, as the plan (JSON) says, and tests the
/// sandbox. The proxy's listener, where the plan has one, is put at the descriptor `listener`.
/// Returns 0, -1 for a plan that is not one, -2 if the sandbox does not hold, or the number of the
/// error; on anything but 0 the process must end.
///
/// # Safety
/// `plan` points to `length` readable bytes; `listener` is an open descriptor that may be replaced,
/// or -1.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn windlass_enter(plan: *const u8, length: usize, listener: i32) -> i32 {
    // SAFETY: the caller's promise.
    let Some(prepared) = (unsafe { prepare(plan, length) }) else { return BAD_PLAN };
    match prepared.confine() {
        Err(failed) => return failed.errno,
        Ok(Some(made)) if listener >= 0 => {
            // SAFETY: the caller's promise: it may be replaced.
            let place = unsafe { BorrowedFd::borrow_raw(listener) };
            if let Err(errno) = replace(place, made.as_fd()) {
                return errno;
            }
        }
        Ok(_) => {}
    }
    if prepared.canaries.run().required_failed { CANARY_THROUGH } else { DONE }
}

fn replace(place: BorrowedFd<'_>, with: BorrowedFd<'_>) -> Result<(), i32> {
    use std::os::fd::AsRawFd;
    // SAFETY: two open descriptors.
    let answer = unsafe { libc::dup3(with.as_raw_fd(), place.as_raw_fd(), libc::O_CLOEXEC) };
    if answer < 0 {
        Err(std::io::Error::last_os_error().raw_os_error().unwrap_or(-1))
    } else {
        Ok(())
    }
}

/// # Safety
/// `plan` points to `length` readable bytes.
unsafe fn prepare(plan: *const u8, length: usize) -> Option<Prepared> {
    if plan.is_null() {
        return None;
    }
    // SAFETY: the caller's promise.
    let bytes = unsafe { std::slice::from_raw_parts(plan, length) };
    let plan: Plan = serde_json::from_slice(bytes).ok()?;
    Prepared::new(&plan).ok()
}
