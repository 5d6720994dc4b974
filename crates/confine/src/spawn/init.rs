//! The first process of a session's pid namespace: reaps orphans, and does nothing else. It holds
//! no descriptor, hears no signal, and cannot be looked into; when it ends, all in it end.

use rustix::process::{DumpableBehavior, set_dumpable_behavior};

/// No process of a session can look into this one from now on, nor change it.
pub(super) fn close_to_others() {
    let _ = set_dumpable_behavior(DumpableBehavior::NotDumpable);
}

/// Never returns.
pub(super) fn run() -> ! {
    close_to_others();
    // SAFETY: what follows has its values in this frame.
    unsafe { windlass_procs::memory::forget_heap() };
    // SAFETY: system calls on values of this frame only; nothing else runs in this process.
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
