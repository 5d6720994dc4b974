//! Sets the scheduler slice of threads. The slice decides how soon a thread runs after it wakes while other
//! threads keep the processors busy.
//!
//! A thread with short slices gets no more processor time than others, but it is scheduled earlier. Node,
//! keepers and workers in a short turn use short slices, so they do not queue behind long computations.
//!
//! Linux 6.12 and newer support custom slices; older kernels ignore the request.

/// Length of a thread's scheduler slice.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SchedSlice {
    /// The thread runs soon after it wakes.
    Short,
    /// The thread runs after other threads that wake, and then for longer.
    Long,
}

/// The shortest slice that the kernel accepts.
const SHORT_SLICE_NS: u64 = 100_000;

/// Several times the kernel's default.
const LONG_SLICE_NS: u64 = 20_000_000;

/// The thread whose slice is set.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SliceTarget {
    /// The calling thread. Threads and processes that it starts have the default slice.
    CurrentThread,
    /// Another thread, by its id. Threads and processes that it starts inherit its slice.
    Thread(u32),
}

/// The first version of the kernel's `struct sched_attr`.
#[repr(C)]
struct SchedAttr {
    size: u32,
    policy: u32,
    flags: u64,
    nice: i32,
    priority: u32,
    runtime: u64,
    deadline: u64,
    period: u64,
}

/// Sets the slice of `target`. Errors are ignored: the slice only affects latency.
pub fn set_slice(target: SliceTarget, slice: SchedSlice) {
    let reset_on_fork = libc::SCHED_FLAG_RESET_ON_FORK.cast_unsigned().into();
    let (pid, flags) = match target {
        SliceTarget::CurrentThread => (0, reset_on_fork),
        SliceTarget::Thread(thread) => (thread.cast_signed(), 0),
    };
    let Some(mut attributes) = read(pid) else { return };
    if attributes.policy != libc::SCHED_OTHER.cast_unsigned() {
        return;
    }
    // An ordinary user cannot clear the reset-on-fork flag once it is set, so it is kept.
    attributes.flags = flags | (attributes.flags & reset_on_fork);
    attributes.runtime = match slice {
        SchedSlice::Short => SHORT_SLICE_NS,
        SchedSlice::Long => LONG_SLICE_NS,
    };
    // SAFETY: the pointer is to a live value, and the value's `size` field holds its size.
    unsafe { libc::syscall(libc::SYS_sched_setattr, pid, &raw const attributes, 0) };
}

/// The thread's current attributes. A change must keep them, the nice value above all.
fn read(pid: i32) -> Option<SchedAttr> {
    let size = size_of::<SchedAttr>() as u32;
    let mut attributes = SchedAttr {
        size,
        policy: 0,
        flags: 0,
        nice: 0,
        priority: 0,
        runtime: 0,
        deadline: 0,
        period: 0,
    };
    // SAFETY: the pointer is to a live value of the given size.
    let read = unsafe { libc::syscall(libc::SYS_sched_getattr, pid, &raw mut attributes, size, 0) };
    (read == 0).then_some(attributes)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn slice() -> u64 {
        read(0).unwrap().runtime
    }

    fn slice_of_new_thread() -> u64 {
        std::thread::spawn(slice).join().unwrap()
    }

    #[test]
    fn only_long_slices_are_inherited() {
        // A kernel without custom slices always reports the default.
        let usual = slice();
        let knows = move |asked: u64, found: u64| found == asked || found == usual;
        std::thread::spawn(move || {
            set_slice(SliceTarget::CurrentThread, SchedSlice::Short);
            assert!(knows(SHORT_SLICE_NS, slice()));
            assert_eq!(slice_of_new_thread(), usual);
        })
        .join()
        .unwrap();
        std::thread::spawn(move || {
            let own = rustix::thread::gettid().as_raw_nonzero().get().unsigned_abs();
            set_slice(SliceTarget::Thread(own), SchedSlice::Long);
            assert!(knows(LONG_SLICE_NS, slice()));
            assert_eq!(slice_of_new_thread(), slice());
        })
        .join()
        .unwrap();
    }
}
