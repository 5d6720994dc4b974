//! C functions with which an interpreter confines itself, for a zygote and the workers that it forks. This
//! crate is built as the shared object `libwindlass_confine.so`. Each function returns 0 or an error number,
//! unless its comment says otherwise.

use std::ffi::{CStr, c_char};
use std::os::fd::{BorrowedFd, FromRawFd, OwnedFd};
use std::sync::{Mutex, PoisonError};

use crate::plan::Plan;
use crate::spawn::channel::Channel;
use crate::spawn::descriptors::WorkerDescriptors;
use crate::spawn::zygote::inside::{self, BecomeError, PrebuiltView};
use crate::spawn::zygote::split::{SplitSide, WorkerForkOrder, split};

/// The plan cannot be parsed or prepared.
const BAD_PLAN: i32 = -1;
/// A canary of a required control succeeded.
const CANARY_THROUGH: i32 = -2;

/// Compiles the system call filters, so that the forked workers need not do it.
#[unsafe(no_mangle)]
pub extern "C" fn windlass_warm() -> i32 {
    crate::seccomp::warm();
    0
}

/// Fills the gaps of the heap, so that the forked workers write to fewer pages.
#[unsafe(no_mangle)]
pub extern "C" fn windlass_fill_gaps() {
    windlass_procs::memory::fill_gaps();
}

/// Enters namespaces. `of` is the pidfd of a process, or a descriptor of a namespace. A pid namespace is
/// entered by the children of the calling process.
///
/// # Safety
/// `of` is an open descriptor.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn windlass_join(of: i32, spaces: i32) -> i32 {
    // SAFETY: the caller's promise.
    let of = unsafe { BorrowedFd::borrow_raw(of) };
    inside::join(of, spaces).map_or_else(|errno| errno, |()| 0)
}

/// Forks a worker into these namespaces of the process with the pidfd `of`, and sends its pid to the keeper.
/// Returns twice: 0 in the worker; in the caller the pid of a child to wait for, or a negative error number
/// (`-ENOSYS` where this way of forking is not supported).
///
/// # Safety
/// The caller is an interpreter with one thread that holds its lock, and both descriptors are open.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn windlass_fork_worker(of: i32, spaces: i32, channel: i32) -> i32 {
    // SAFETY: the caller's promises.
    let (of, channel) =
        unsafe { (BorrowedFd::borrow_raw(of), Channel::of(OwnedFd::from_raw_fd(channel))) };
    // An interpreter needs these calls around a fork that it does not make itself. They are looked up before
    // the fork, because the lookup takes longer in the child.
    let names = [c"PyOS_BeforeFork", c"PyOS_AfterFork_Child", c"PyOS_AfterFork_Parent"];
    // SAFETY: each of these functions takes no arguments and returns nothing.
    let [before, in_child, in_parent] = names.map(|name| unsafe { interpreter_function(name) });
    before();
    // SAFETY: as above.
    let split = unsafe { split(&WorkerForkOrder { of, spaces, channel: &channel }) };
    match split {
        Ok(SplitSide::Worker) => in_child(),
        Ok(SplitSide::Zygote { .. }) | Err(_) => in_parent(),
    }
    // The descriptor belongs to the caller.
    std::mem::forget(channel);
    match split {
        Ok(SplitSide::Worker) => 0,
        Ok(SplitSide::Zygote { intermediate }) => intermediate,
        Err(error) => -error.raw_os_error().unwrap_or(libc::EINVAL),
    }
}

/// A function of the interpreter that has loaded this library. If the interpreter lacks it, a function that
/// does nothing.
///
/// # Safety
/// The function takes no arguments and returns nothing.
unsafe fn interpreter_function(name: &CStr) -> extern "C" fn() {
    extern "C" fn nothing() {}
    // SAFETY: the name ends with NUL; the rest is the caller's promise.
    unsafe {
        let found = libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr());
        match found.is_null() {
            true => nothing,
            false => std::mem::transmute::<*mut libc::c_void, extern "C" fn()>(found),
        }
    }
}

/// Sends the keeper the pid of the worker that was forked for it.
///
/// # Safety
/// `channel` is an open descriptor, and is not used again.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn windlass_say_worker(channel: i32, worker: i32) -> i32 {
    // SAFETY: the caller's promise.
    let channel = Channel::of(unsafe { OwnedFd::from_raw_fd(channel) });
    inside::send_worker_pid(&channel, worker);
    0
}

/// The view that this process has built, until it becomes a worker.
static BUILT: Mutex<Option<PrebuiltView>> = Mutex::new(None);

/// Builds the view of the plan (JSON) in the calling process, which has one thread. Later the process can get
/// a session whose view is the same except for mounts in the session's own directories. If the result is not
/// 0, the process must exit.
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
    // The descriptor belongs to the caller.
    std::mem::forget(channel);
    match built {
        Ok(built) => {
            *BUILT.lock().unwrap_or_else(PoisonError::into_inner) = Some(built);
            0
        }
        Err(error) => number(&error),
    }
}

/// Confines the calling process, which has one thread, by the plan (JSON); runs the canaries, reports to the
/// keeper and enters the directory. If the process has already built its view, the plan contains only the
/// remaining mounts. If the result is not 0, the process must exit. -1: the plan is invalid; -2: a canary of
/// a required control succeeded.
///
/// # Safety `plan` points to `length` readable bytes, `cwd` to a string that ends with NUL. The others are
/// four open descriptors; the caller uses only `kept` again.
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
    let (bytes, cwd, channel, descriptors) = unsafe {
        let borrow = |fd| BorrowedFd::borrow_raw(fd);
        (
            std::slice::from_raw_parts(plan, length),
            CStr::from_ptr(cwd),
            Channel::of(OwnedFd::from_raw_fd(channel)),
            WorkerDescriptors {
                stdin: None,
                stdout: borrow(stdout),
                stderr: borrow(stderr),
                kept: borrow(kept),
            },
        )
    };
    let Ok(plan) = serde_json::from_slice::<Plan>(bytes) else { return BAD_PLAN };
    let built = BUILT.lock().unwrap_or_else(PoisonError::into_inner).take();
    let became = inside::become_worker(&plan, built, cwd, &descriptors, &channel);
    // The channel is closed, or the process is about to exit.
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
