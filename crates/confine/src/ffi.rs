//! The sandbox for a process that is an interpreter already: functions with a C interface, for a
//! zygote and the workers that it forks. The shared object is this crate, built as
//! `libwindlass_confine.so`. Each function returns 0, or the number of an error.

use std::ffi::{CStr, c_char};
use std::os::fd::{BorrowedFd, FromRawFd, OwnedFd};
use std::sync::{Mutex, PoisonError};

use crate::plan::Plan;
use crate::spawn::channel::Channel;
use crate::spawn::places::Places;
use crate::spawn::zygote::inside::{self, BecomeError, Built};
use crate::spawn::zygote::split::{Order, Split, split};

/// The plan is not one.
const BAD_PLAN: i32 = -1;
/// A canary of a required control got through.
const CANARY_THROUGH: i32 = -2;

/// Does what can be done before the first fork, so that it is done once.
#[unsafe(no_mangle)]
pub extern "C" fn windlass_warm() -> i32 {
    crate::seccomp::warm();
    0
}

/// Has what the forked write to in one place.
#[unsafe(no_mangle)]
pub extern "C" fn windlass_fill_gaps() {
    windlass_procs::memory::fill_gaps();
}

/// Enters namespaces of the process that `of` is a pidfd of, or the one that `of` is open on. For a
/// pid namespace it is the children that enter.
///
/// # Safety
/// `of` is an open descriptor.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn windlass_join(of: i32, spaces: i32) -> i32 {
    // SAFETY: the caller's promise.
    let of = unsafe { BorrowedFd::borrow_raw(of) };
    inside::join(of, spaces).map_or_else(|errno| errno, |()| 0)
}

/// Forks a worker that is in these namespaces of the process that `of` is a pidfd of, and tells its
/// keeper. Returns twice: 0 in the worker, and in the caller the number of a child that is to be waited
/// for, or an error's below 0 (`-ENOSYS` where this is not done so).
///
/// # Safety
/// The caller is an interpreter with one thread that holds its lock, and both descriptors are open.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn windlass_fork_worker(of: i32, spaces: i32, channel: i32) -> i32 {
    // SAFETY: the caller's promises.
    let (of, channel) =
        unsafe { (BorrowedFd::borrow_raw(of), Channel::of(OwnedFd::from_raw_fd(channel))) };
    // What an interpreter wants called around a fork that is not its own. Each is looked for before there
    // is a child, for which that takes longer.
    let names = [c"PyOS_BeforeFork", c"PyOS_AfterFork_Child", c"PyOS_AfterFork_Parent"];
    // SAFETY: each of them takes nothing and returns nothing.
    let [before, in_child, in_parent] = names.map(|name| unsafe { of_interpreter(name) });
    before();
    // SAFETY: as above.
    let split = unsafe { split(&Order { of, spaces, channel: &channel }) };
    match split {
        Ok(Split::Worker) => in_child(),
        Ok(Split::Zygote { .. }) | Err(_) => in_parent(),
    }
    // It is the caller's.
    std::mem::forget(channel);
    match split {
        Ok(Split::Worker) => 0,
        Ok(Split::Zygote { between }) => between,
        Err(error) => -error.raw_os_error().unwrap_or(libc::EINVAL),
    }
}

/// A function of the interpreter that this is loaded into; where it has none, one that does nothing.
///
/// # Safety
/// It takes nothing and returns nothing.
unsafe fn of_interpreter(name: &CStr) -> extern "C" fn() {
    extern "C" fn nothing() {}
    // SAFETY: a name that ends with 0; the rest is the caller's promise.
    unsafe {
        let found = libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr());
        match found.is_null() {
            true => nothing,
            false => std::mem::transmute::<*mut libc::c_void, extern "C" fn()>(found),
        }
    }
}

/// Tells the keeper the number of the worker that was forked for it.
///
/// # Safety
/// `channel` is an open descriptor, and is not used again.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn windlass_say_worker(channel: i32, worker: i32) -> i32 {
    // SAFETY: the caller's promise.
    let channel = Channel::of(unsafe { OwnedFd::from_raw_fd(channel) });
    inside::say_worker(&channel, worker);
    0
}

/// The view that this process has built, until it is a worker.
static BUILT: Mutex<Option<Built>> = Mutex::new(None);

/// Builds the view of the plan (JSON) in the calling process, which has one thread: it may then be
/// given a session whose view has more in its own directories, and is otherwise the same. On anything
/// but 0 the process must end.
///
/// # Safety
/// `plan` points to `length` readable bytes, and `channel` is an open descriptor.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn windlass_build_view(plan: *const u8, length: usize, channel: i32) -> i32 {
    // SAFETY: the caller's promises.
    let (bytes, channel) = unsafe {
        (std::slice::from_raw_parts(plan, length), Channel::of(OwnedFd::from_raw_fd(channel)))
    };
    let built = match serde_json::from_slice::<Plan>(bytes) {
        Ok(plan) => inside::build_ahead(&plan, &channel),
        Err(_) => Err(BecomeError::Unprepared),
    };
    // It is the caller's.
    std::mem::forget(channel);
    match built {
        Ok(built) => {
            *BUILT.lock().unwrap_or_else(PoisonError::into_inner) = Some(built);
            0
        }
        Err(error) => number(&error),
    }
}

/// Confines the calling process, which has one thread, as the plan (JSON) says, tests the sandbox,
/// tells the keeper, and enters the directory. Of a view that was built, the plan has the rest. On
/// anything but 0 the process must end: -1 is a plan that is not one, -2 a sandbox that does not hold.
///
/// # Safety
/// `plan` points to `length` readable bytes, `cwd` to a string that ends with 0, and the others are
/// four open descriptors, of which only `kept` is used again.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn windlass_become_worker(
    plan: *const u8,
    length: usize,
    cwd: *const c_char,
    channel: i32,
    kept: i32,
    stdout: i32,
    stderr: i32,
) -> i32 {
    // SAFETY: the caller's promises.
    let (bytes, cwd, channel, places) = unsafe {
        let borrow = |fd| BorrowedFd::borrow_raw(fd);
        (
            std::slice::from_raw_parts(plan, length),
            CStr::from_ptr(cwd),
            Channel::of(OwnedFd::from_raw_fd(channel)),
            Places {
                stdin: None,
                stdout: borrow(stdout),
                stderr: borrow(stderr),
                kept: borrow(kept),
            },
        )
    };
    let Ok(plan) = serde_json::from_slice::<Plan>(bytes) else { return BAD_PLAN };
    let built = BUILT.lock().unwrap_or_else(PoisonError::into_inner).take();
    let became = inside::become_worker(&plan, built, cwd, &places, &channel);
    // It is closed, or the process is about to end.
    std::mem::forget(channel);
    became.map_or_else(|error| number(&error), |()| 0)
}

fn number(error: &BecomeError) -> i32 {
    match error {
        BecomeError::Unprepared => BAD_PLAN,
        BecomeError::Confine(failed) => failed.errno,
        BecomeError::CanaryThrough => CANARY_THROUGH,
    }
}
