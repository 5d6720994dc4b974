//! Compares the descriptor tables of threads: two threads of one process can have different tables.

/// Makes `kcmp` compare descriptor tables.
const KCMP_FILES: libc::c_int = 2;

/// Whether two threads share one descriptor table. If the kernel does not answer, the result is `false`.
pub fn are_shared(thread: u32, other: u32) -> bool {
    let [thread, other] = [thread, other].map(u32::cast_signed);
    // SAFETY: the call takes numbers only.
    unsafe { libc::syscall(libc::SYS_kcmp, thread, other, KCMP_FILES, 0, 0) == 0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_share_their_table_and_processes_do_not() {
        let own = std::process::id();
        let thread = std::thread::spawn(move || {
            are_shared(own, rustix::thread::gettid().as_raw_nonzero().get().unsigned_abs())
        });
        assert!(thread.join().unwrap());
        let mut child =
            std::process::Command::new("cat").stdin(std::process::Stdio::piped()).spawn().unwrap();
        assert!(!are_shared(own, child.id()));
        drop(child.stdin.take());
        child.wait().unwrap();
    }
}
