//! How soon a process runs when it wakes while others keep the processors busy. A process that asks
//! for short slices gets no more time than others, but gets it at once: what hands turns on, or
//! answers brief ones, does not stand in line behind what computes for long.
//!
//! Linux 6.12 and newer know it; older ones take no notice.

/// How a process wants its time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SchedSlice {
    /// At once and briefly.
    Short,
    /// In its turn and for long: whatever else wakes goes first.
    Long,
}

/// The slice of a prompt process: the shortest that the kernel takes.
const SHORT_SLICE_NS: u64 = 100_000;

/// The slice of a patient one: several times the usual.
const LONG_SLICE_NS: u64 = 20_000_000;

/// What a pace is set for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SliceTarget {
    /// The calling thread. What it starts has the usual pace.
    CurrentThread,
    /// Another. What it starts has the same pace.
    Thread(u32),
}

/// The kernel's `struct sched_attr`, as far as its first version goes.
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

/// Sets the pace of `whom`. Nothing depends on it, so a refusal is not told.
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
    // Once set, an ordinary user cannot take it back.
    attributes.flags = flags | (attributes.flags & reset_on_fork);
    attributes.runtime = match slice {
        SchedSlice::Short => SHORT_SLICE_NS,
        SchedSlice::Long => LONG_SLICE_NS,
    };
    // SAFETY: the pointer is to a live value whose size it says itself.
    unsafe { libc::syscall(libc::SYS_sched_setattr, pid, &raw const attributes, 0) };
}

/// What it has now, its niceness above all.
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
    // SAFETY: the pointer is to a live value of the size that is said.
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
    fn what_a_prompt_thread_starts_is_usual_and_what_a_patient_one_starts_is_patient() {
        // A kernel that does not know slices says the same whatever was asked for.
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
