//! The init process of a session's pid namespace. It only reaps orphans. It has no open descriptor, blocks
//! all signals, and other processes of the session cannot read or trace it. When it ends, the kernel ends all
//! processes of the namespace.

use rustix::process::{DumpableBehavior, set_dumpable_behavior};

/// Prevents processes of the session from reading or tracing this process.
pub(super) fn close_to_others() {
    let _ = set_dumpable_behavior(DumpableBehavior::NotDumpable);
}

/// Never returns.
pub(super) fn run() -> ! {
    close_to_others();
    // SAFETY: the code below uses only values of this stack frame.
    unsafe { windlass_procs::memory::forget_heap() };
    // SAFETY: system calls on values of this stack frame; this process runs no other code.
    unsafe {
        libc::syscall(libc::SYS_close_range, 0, libc::c_uint::MAX, 0);
        libc::prctl(libc::PR_SET_NAME, windlass_procs::INIT_NAME.as_ptr());
        let mut all: libc::sigset_t = std::mem::zeroed();
        libc::sigfillset(&raw mut all);
        libc::sigprocmask(libc::SIG_SETMASK, &raw const all, std::ptr::null_mut());
        let mut ended: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&raw mut ended);
        libc::sigaddset(&raw mut ended, libc::SIGCHLD);
        loop {
            libc::sigwaitinfo(&raw const ended, std::ptr::null_mut());
            while libc::waitpid(-1, std::ptr::null_mut(), libc::WNOHANG) > 0 {}
        }
    }
}
