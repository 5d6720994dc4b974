//! Compares the descriptor tables of threads: two threads of one process can have different tables.

/// What `kcmp` compares when it is asked for tables of descriptors.
const KCMP_FILES: libc::c_int = 2;

/// Whether two threads are known to have one table of descriptors. Where the kernel does not say, they
/// are taken to have two.
pub fn are_one(thread: u32, other: u32) -> bool {
    let [thread, other] = [thread, other].map(u32::cast_signed);
    // SAFETY: takes numbers alone.
    unsafe { libc::syscall(libc::SYS_kcmp, thread, other, KCMP_FILES, 0, 0) == 0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_share_their_table_and_processes_do_not() {
        let own = std::process::id();
        let thread = std::thread::spawn(move || {
            are_one(own, rustix::thread::gettid().as_raw_nonzero().get().unsigned_abs())
        });
        assert!(thread.join().unwrap());
        let mut child =
            std::process::Command::new("cat").stdin(std::process::Stdio::piped()).spawn().unwrap();
        assert!(!are_one(own, child.id()));
        drop(child.stdin.take());
        child.wait().unwrap();
    }
}
