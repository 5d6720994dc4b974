//! How soon a process runs when it wakes while others keep the processors busy. A process that asks
//! for short slices gets no more time than others, but gets it at once: what hands turns on, or
//! answers brief ones, does not stand in line behind what computes for long.
//!
//! Linux 6.12 and newer know it; older ones take no notice.

/// How a process wants its time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pace {
    /// At once and briefly.
    Prompt,
    /// In its turn and for long: whatever else wakes goes first.
    Patient,
}

/// The slice of a prompt process: the shortest that the kernel takes.
const PROMPT_SLICE_NS: u64 = 100_000;

/// The slice of a patient one: several times the usual.
const PATIENT_SLICE_NS: u64 = 20_000_000;

/// What a pace is set for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Whom {
    /// The calling thread. What it starts has the usual pace.
    This,
    /// Another. What it starts has the same pace.
    Thread(u32),
}

/// The kernel's `struct sched_attr`, as far as its first version goes.
#[repr(C)]
struct Attributes {
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
pub fn set_pace(whom: Whom, pace: Pace) {
    let reset_on_fork = libc::SCHED_FLAG_RESET_ON_FORK.cast_unsigned().into();
    let (pid, flags) = match whom {
        Whom::This => (0, reset_on_fork),
        Whom::Thread(thread) => (thread.cast_signed(), 0),
    };
    let Some(mut attributes) = read(pid) else { return };
    if attributes.policy != libc::SCHED_OTHER.cast_unsigned() {
        return;
    }
    // Once set, an ordinary user cannot take it back.
    attributes.flags = flags | (attributes.flags & reset_on_fork);
    attributes.runtime = match pace {
        Pace::Prompt => PROMPT_SLICE_NS,
        Pace::Patient => PATIENT_SLICE_NS,
    };
    // SAFETY: the pointer is to a live value whose size it says itself.
    unsafe { libc::syscall(libc::SYS_sched_setattr, pid, &raw const attributes, 0) };
}

/// What it has now, its niceness above all.
fn read(pid: i32) -> Option<Attributes> {
    let size = size_of::<Attributes>() as u32;
    let mut attributes = Attributes {
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

    fn below() -> u64 {
        std::thread::spawn(slice).join().unwrap()
    }

    #[test]
    fn what_a_prompt_thread_starts_is_usual_and_what_a_patient_one_starts_is_patient() {
        // A kernel that does not know slices says the same whatever was asked for.
        let usual = slice();
        let knows = move |asked: u64, found: u64| found == asked || found == usual;
        std::thread::spawn(move || {
            set_pace(Whom::This, Pace::Prompt);
            assert!(knows(PROMPT_SLICE_NS, slice()));
            assert_eq!(below(), usual);
        })
        .join()
        .unwrap();
        std::thread::spawn(move || {
            let own = rustix::thread::gettid().as_raw_nonzero().get().unsigned_abs();
            set_pace(Whom::Thread(own), Pace::Patient);
            assert!(knows(PATIENT_SLICE_NS, slice()));
            assert_eq!(below(), slice());
        })
        .join()
        .unwrap();
    }
}
