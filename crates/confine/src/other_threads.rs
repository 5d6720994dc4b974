//! Adding a Landlock layer and a filter to every other thread of the calling process. Both belong to a
//! thread, and the kernel lets no thread add them to another: each thread is sent a signal, and adds
//! them to itself in the handler, wherever it is and whatever it waits for.
//!
//! The signal is one of those that libc keeps for itself. Code cannot block it through libc, as thread
//! pools often block all signals, and has no handler for it. glibc uses it for the same purpose, when
//! all threads change their user. What libc sends is passed on to libc's handler: it is told apart by
//! the way it was sent.
//!
//! The handler makes system calls and touches atomics, nothing else. Calls that it interrupts are
//! restarted by the kernel (`SA_RESTART`), but for those that never are: waits with a time limit.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicI32, AtomicPtr, AtomicU32, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use crate::enter::landlock::threads_may_signal;
use crate::enter::{TwinLayer, add_twin_layer};
use crate::seccomp::Program;

/// `SIGSETXID` of glibc, `SIGCANCEL` of musl.
const SIGNAL: libc::c_int = 33;

/// Threads that are asked at one fork.
const THREADS_MAX: usize = 4096;

/// Threads that an asked thread started before it answered are found by looking again: so often.
const ROUNDS_MAX: usize = 8;

/// How long all threads together may take.
const ANSWER_WAIT: Duration = Duration::from_secs(5);

/// After this time without an answer, threads that have ended or that block the signal are given up.
const LOOK_AGAIN: Duration = Duration::from_millis(10);

/// The call of [`separate`] that is under way; 0 between calls. A thread that answers late finds
/// another number, and does nothing.
static CALL: AtomicU32 = AtomicU32::new(0);
static LAST_CALL: AtomicU32 = AtomicU32::new(0);

static RULESET: AtomicI32 = AtomicI32::new(-1);
static FILTER: AtomicPtr<Program> = AtomicPtr::new(std::ptr::null_mut());

/// The number of answers, which [`separate`] waits on.
static ANSWERS: AtomicU32 = AtomicU32::new(0);

/// For each thread that was asked, the call that it has answered.
static ANSWERED: [AtomicU32; THREADS_MAX] = [const { AtomicU32::new(0) }; THREADS_MAX];

/// Libc's own handler of the signal.
static PREVIOUS: AtomicUsize = AtomicUsize::new(0);

/// Adds the layer to every thread of this process but the calling one: to the `known`, and to those
/// that `/proc` shows, if the process may look there. Threads that do not answer in time, or that
/// block the signal, stay as they are.
///
/// While another thread is in this function, nothing is done.
pub(crate) fn separate(layer: &TwinLayer, known: impl Iterator<Item = i32>) {
    // SAFETY: takes nothing.
    let own = unsafe { libc::gettid() };
    let mut found: Vec<i32> = known.chain(listed()).filter(|thread| *thread != own).collect();
    if found.is_empty() || !threads_may_signal() {
        return;
    }
    let mut asked = Asked::new(own);
    if CALL.compare_exchange(0, asked.call, Ordering::AcqRel, Ordering::Relaxed).is_err() {
        return;
    }
    let (ruleset, filter) = layer.parts();
    RULESET.store(ruleset, Ordering::Relaxed);
    FILTER.store(std::ptr::from_ref(filter).cast_mut(), Ordering::Release);
    if let Ok(previous) = Action::ours().set() {
        previous.remember();
        let until = Instant::now() + ANSWER_WAIT;
        for _ in 0..ROUNDS_MAX {
            if !asked.ask(&found) {
                break;
            }
            asked.wait(until);
            found = listed();
        }
        // A signal that is still on its way must find a handler: without one it ends the process.
        if asked.all_over() {
            let _ = previous.set();
        }
    }
    CALL.store(0, Ordering::Release);
}

/// The threads of this process; none where it may not look at itself, as a twin without a view of its
/// own.
fn listed() -> Vec<i32> {
    let Ok(tasks) = std::fs::read_dir("/proc/self/task") else { return Vec::new() };
    tasks.flatten().filter_map(|task| task.file_name().to_str()?.parse().ok()).collect()
}

/// The threads that were asked to add the layer, in one call of [`separate`].
#[derive(Debug)]
struct Asked {
    call: u32,
    own: i32,
    own_filters: u32,
    /// The place of each in [`ANSWERED`], and what is known of it.
    threads: BTreeMap<i32, (usize, State)>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// The signal is on its way.
    Waiting,
    /// The thread has answered or ended, or had the layer from the thread that started it.
    Over,
    /// The thread blocks the signal, which stays on its way.
    Deaf,
}

impl Asked {
    fn new(own: i32) -> Self {
        // Zero is no call.
        let call = LAST_CALL.fetch_add(1, Ordering::Relaxed).wrapping_add(1).max(1);
        let own_filters = Status::of(own).map_or(0, |status| status.filters);
        Self { call, own, own_filters, threads: BTreeMap::new() }
    }

    /// Sends the signal to those that were not asked yet; whether there were any.
    fn ask(&mut self, found: &[i32]) -> bool {
        let is_first = self.threads.is_empty();
        let mut any = false;
        for thread in found {
            let place = self.threads.len();
            if *thread == self.own || self.threads.contains_key(thread) || place == THREADS_MAX {
                continue;
            }
            // Started meanwhile, by a thread that had the layer already.
            let has_layer = |status: Status| status.filters > self.own_filters;
            let inherits = !is_first && Status::of(*thread).is_some_and(has_layer);
            let state = match inherits || send(*thread, value(self.call, place)).is_err() {
                true => State::Over,
                false => State::Waiting,
            };
            self.threads.insert(*thread, (place, state));
            any = true;
        }
        any
    }

    /// Waits for the answers.
    fn wait(&mut self, until: Instant) {
        loop {
            let seen = ANSWERS.load(Ordering::Acquire);
            let mut waiting = false;
            for (place, state) in self.threads.values_mut() {
                if *state == State::Waiting && ANSWERED[*place].load(Ordering::Acquire) == self.call
                {
                    *state = State::Over;
                }
                waiting |= *state == State::Waiting;
            }
            let left = until.saturating_duration_since(Instant::now());
            if !waiting || left.is_zero() {
                return;
            }
            if wait_for_change(&ANSWERS, seen, left.min(LOOK_AGAIN)) == Waited::InVain {
                self.look_again();
            }
        }
    }

    /// Gives up threads that will not answer.
    fn look_again(&mut self) {
        for (thread, (_, state)) in &mut self.threads {
            if *state != State::Waiting {
                continue;
            }
            if !is_alive(*thread) {
                *state = State::Over;
            } else if Status::of(*thread).is_some_and(|status| status.holds_signal_back) {
                *state = State::Deaf;
            }
        }
    }

    /// Whether no signal is on its way any more.
    fn all_over(&self) -> bool {
        self.threads.values().all(|(_, state)| *state == State::Over)
    }
}

/// What `/proc` says of a thread of this process.
#[derive(Debug, Clone, Copy)]
struct Status {
    filters: u32,
    /// The signal is pending and blocked. A thread in the handler blocks it too, but has it no longer
    /// pending.
    holds_signal_back: bool,
}

impl Status {
    fn of(thread: i32) -> Option<Self> {
        // The thread's name is in it, and need not be text.
        let bytes = std::fs::read(format!("/proc/self/task/{thread}/status")).ok()?;
        let text = String::from_utf8_lossy(&bytes);
        let field =
            |name: &str| text.lines().find_map(|line| line.strip_prefix(name)).map(str::trim);
        let signals = |name| u64::from_str_radix(field(name)?, 16).ok();
        let held_back = signals("SigBlk:")? & signals("SigPnd:")?;
        Some(Self {
            filters: field("Seccomp_filters:")?.parse().ok()?,
            holds_signal_back: held_back & 1 << (SIGNAL - 1) != 0,
        })
    }
}

/// What a thread is sent with the signal: which call it answers, and where.
fn value(call: u32, place: usize) -> u64 {
    u64::from(call) << 32 | place as u64
}

/// As the kernel has it.
#[repr(C)]
struct Info {
    signal: i32,
    errno: i32,
    code: i32,
    unused: i32,
    pid: i32,
    uid: u32,
    value: u64,
    rest: [u64; 12],
}

const _: () = assert!(size_of::<Info>() == size_of::<libc::siginfo_t>());

/// Sends the signal to a thread of this process. libc sends its own by `tgkill`, which has another code.
fn send(thread: i32, value: u64) -> Result<(), ()> {
    // SAFETY: take nothing.
    let (pid, uid) = unsafe { (libc::getpid(), libc::getuid()) };
    let code = libc::SI_QUEUE;
    let info = Info { signal: SIGNAL, errno: 0, code, unused: 0, pid, uid, value, rest: [0; 12] };
    // SAFETY: the pointer is to a live value of the kernel's layout.
    let sent =
        unsafe { libc::syscall(libc::SYS_rt_tgsigqueueinfo, pid, thread, SIGNAL, &raw const info) };
    if sent == 0 { Ok(()) } else { Err(()) }
}

fn is_alive(thread: i32) -> bool {
    // SAFETY: no memory is passed.
    unsafe { libc::syscall(libc::SYS_tgkill, libc::getpid(), thread, 0) == 0 }
}

/// How waiting for a change ended.
#[derive(Debug, PartialEq, Eq)]
enum Waited {
    Changed,
    InVain,
}

fn wait_for_change(word: &AtomicU32, seen: u32, time: Duration) -> Waited {
    let time = libc::timespec {
        tv_sec: time.as_secs().cast_signed(),
        tv_nsec: time.subsec_nanos().into(),
    };
    const WAIT: libc::c_int = libc::FUTEX_WAIT | libc::FUTEX_PRIVATE_FLAG;
    // SAFETY: both pointers are to live values of the kernel's layout.
    let waited =
        unsafe { libc::syscall(libc::SYS_futex, word.as_ptr(), WAIT, seen, &raw const time) };
    let timed_out =
        waited != 0 && std::io::Error::last_os_error().raw_os_error() == Some(libc::ETIMEDOUT);
    if timed_out { Waited::InVain } else { Waited::Changed }
}

/// What happens on the signal, as the kernel has it: libc does not let its own signals be set.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
struct Action {
    handler: usize,
    flags: libc::c_ulong,
    restorer: usize,
    mask: u64,
}

impl Action {
    /// All signals wait while the handler runs. It runs on the thread's own stack for signals, if the
    /// thread has one.
    fn ours() -> Self {
        let flags = libc::SA_SIGINFO | libc::SA_RESTART | libc::SA_ONSTACK;
        let flags = libc::c_ulong::from(flags.cast_unsigned());
        let handler = on_signal as *const () as usize;
        Self { handler, flags: flags | RESTORER_FLAG, restorer: restorer(), mask: u64::MAX }
    }

    /// Sets the action; the one that was set before.
    fn set(&self) -> Result<Self, ()> {
        let mut previous = Self { handler: 0, flags: 0, restorer: 0, mask: 0 };
        // SAFETY: both pointers are to live values of the kernel's layout, whose last field is 8 bytes
        // long.
        let set = unsafe {
            libc::syscall(
                libc::SYS_rt_sigaction,
                SIGNAL,
                std::ptr::from_ref(self),
                &raw mut previous,
                size_of::<u64>(),
            )
        };
        if set == 0 { Ok(previous) } else { Err(()) }
    }

    /// Keeps the handler for signals that are not from here.
    fn remember(&self) {
        let takes_info = self.flags & libc::c_ulong::from(libc::SA_SIGINFO.cast_unsigned()) != 0;
        if self.handler != on_signal as *const () as usize {
            PREVIOUS.store(if takes_info { self.handler } else { 0 }, Ordering::Release);
        }
    }
}

/// On x86-64 the process itself says how a handler returns.
#[cfg(target_arch = "x86_64")]
const RESTORER_FLAG: libc::c_ulong = 0x0400_0000;
#[cfg(not(target_arch = "x86_64"))]
const RESTORER_FLAG: libc::c_ulong = 0;

#[cfg(target_arch = "x86_64")]
fn restorer() -> usize {
    #[unsafe(naked)]
    unsafe extern "C" fn return_from_signal() -> ! {
        std::arch::naked_asm!("mov eax, {call}", "syscall", call = const libc::SYS_rt_sigreturn)
    }
    return_from_signal as *const () as usize
}

#[cfg(not(target_arch = "x86_64"))]
fn restorer() -> usize {
    0
}

type Handler = extern "C" fn(libc::c_int, *mut Info, *mut libc::c_void);

/// Runs in any thread, at any time.
extern "C" fn on_signal(signal: libc::c_int, info: *mut Info, context: *mut libc::c_void) {
    // SAFETY: the kernel passes a live value; errno is the thread's own.
    let (about, errno) = unsafe { (&*info, libc::__errno_location()) };
    // SAFETY: as above. The code that was interrupted may be about to read it.
    let kept = unsafe { *errno };
    // SAFETY: takes nothing.
    let from_here = about.code == libc::SI_QUEUE && about.pid == unsafe { libc::getpid() };
    let previous = PREVIOUS.load(Ordering::Acquire);
    if from_here {
        answer(about.value);
    } else if previous > libc::SIG_IGN {
        // SAFETY: it was set as a handler with these arguments.
        let previous = unsafe { std::mem::transmute::<usize, Handler>(previous) };
        previous(signal, info, context);
    }
    // SAFETY: as above.
    unsafe { *errno = kept };
}

/// Adds the layer to the calling thread, which was sent `value`.
fn answer(value: u64) {
    let (call, place) = ((value >> 32) as u32, value as u32 as usize);
    let filter = FILTER.load(Ordering::Acquire);
    let Some(answered) = ANSWERED.get(place) else { return };
    if call != CALL.load(Ordering::Acquire) || filter.is_null() {
        return;
    }
    // SAFETY: set from a reference that is good for ever.
    let filter = unsafe { &*filter };
    // Should the call have ended meanwhile, its ruleset is closed and nothing is added.
    let _ = add_twin_layer(RULESET.load(Ordering::Relaxed), filter);
    answered.store(call, Ordering::Release);
    ANSWERS.fetch_add(1, Ordering::Release);
    const WAKE: libc::c_int = libc::FUTEX_WAKE | libc::FUTEX_PRIVATE_FLAG;
    // SAFETY: the pointer is to a value that lives for ever.
    unsafe { libc::syscall(libc::SYS_futex, ANSWERS.as_ptr(), WAKE, 1) };
}
