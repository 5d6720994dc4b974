//! Adds a Landlock layer and a seccomp filter to every other thread of this process.
//!
//! Both belong to one thread, and the kernel lets no thread add them to another thread. So [`separate`] sends
//! each thread a signal, and the signal handler adds the layer and the filter to the thread that it
//! interrupts.
//!
//! The signal is one that libc reserves for itself. Libc does not let code block it or set a handler for it,
//! while thread pools often block all other signals. Glibc uses the same signal in the same way, when all
//! threads change their user id. The handler tells the two kinds apart by the way the signal was sent, and
//! passes libc's signals on to libc's handler.
//!
//! The handler only makes system calls and reads and writes atomics. The kernel restarts system calls that
//! the signal interrupts (`SA_RESTART`), except waits with a timeout, which it never restarts.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicI32, AtomicPtr, AtomicU32, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use crate::enter::landlock::threads_may_signal;
use crate::enter::{TwinLayer, add_twin_layer};
use crate::seccomp::FilterProgram;

/// `SIGSETXID` of glibc, `SIGCANCEL` of musl.
const SIGNAL: libc::c_int = 33;

/// Maximum number of threads that one call of [`separate`] signals.
const THREADS_MAX: usize = 4096;

/// How often [`separate`] lists the threads: a signalled thread may start new threads before it adds the
/// layer.
const ROUNDS_MAX: usize = 8;

/// How long one call of [`separate`] waits for all threads together.
const ANSWER_WAIT: Duration = Duration::from_secs(5);

/// After this time without an answer, [`separate`] gives up threads that have ended or that block the signal.
const RECHECK_WAIT: Duration = Duration::from_millis(10);

/// The number of the current call of [`separate`]; 0 between calls. A thread that runs the handler late finds
/// another number here and does nothing.
static CALL: AtomicU32 = AtomicU32::new(0);
static LAST_CALL: AtomicU32 = AtomicU32::new(0);

/// The layer and the filter that the handler adds.
static RULESET: AtomicI32 = AtomicI32::new(-1);
static FILTER: AtomicPtr<FilterProgram> = AtomicPtr::new(std::ptr::null_mut());

/// The number of answers so far. [`separate`] waits for it to change.
static ANSWERS: AtomicU32 = AtomicU32::new(0);

/// For each signalled thread, the number of the last call that it answered.
static ANSWERED: [AtomicU32; THREADS_MAX] = [const { AtomicU32::new(0) }; THREADS_MAX];

/// Libc's handler of the signal.
static LIBC_HANDLER: AtomicUsize = AtomicUsize::new(0);

/// Adds the layer to every thread of this process except the calling one: to the `known` threads, and to the
/// threads that `/proc` lists, if the process may read it. A thread that does not answer in time, or that
/// blocks the signal, does not get the layer.
///
/// Does nothing while another thread is in this function.
pub(crate) fn separate(layer: &TwinLayer, known: impl Iterator<Item = i32>) {
    // Not `libc::gettid`: a C library before 2.30 has no such function, and a release is for older ones.
    let own = rustix::thread::gettid().as_raw_pid();
    let mut found: Vec<i32> = known.chain(listed()).filter(|thread| *thread != own).collect();
    if found.is_empty() || !threads_may_signal() {
        return;
    }
    let mut signalled = SignalledThreads::new(own);
    if CALL.compare_exchange(0, signalled.call, Ordering::AcqRel, Ordering::Relaxed).is_err() {
        return;
    }
    let (ruleset, filter) = layer.parts();
    RULESET.store(ruleset, Ordering::Relaxed);
    FILTER.store(std::ptr::from_ref(filter).cast_mut(), Ordering::Release);
    if let Ok(previous) = KernelSigaction::ours().set() {
        previous.remember();
        let until = Instant::now() + ANSWER_WAIT;
        for _ in 0..ROUNDS_MAX {
            if !signalled.signal_new(&found) {
                break;
            }
            signalled.wait(until);
            found = listed();
        }
        // A pending signal must find a handler: without one it ends the process.
        if signalled.none_pending() {
            let _ = previous.set();
        }
    }
    CALL.store(0, Ordering::Release);
}

/// The threads of this process. Empty where the process may not read its own `/proc` entry, as in a twin
/// without a view.
fn listed() -> Vec<i32> {
    let Ok(tasks) = std::fs::read_dir("/proc/self/task") else { return Vec::new() };
    tasks.flatten().filter_map(|task| task.file_name().to_str()?.parse().ok()).collect()
}

/// The threads that one call of [`separate`] has signalled.
#[derive(Debug)]
struct SignalledThreads {
    call: u32,
    /// The calling thread, and how many filters it has.
    own: i32,
    own_filters: u32,
    /// For each thread: its index in [`ANSWERED`], and its state.
    threads: BTreeMap<i32, (usize, ThreadState)>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ThreadState {
    /// The signal is sent, and the thread has not answered.
    Pending,
    /// The thread has answered or ended, or inherited the layer from the thread that started it.
    Done,
    /// The thread blocks the signal, so the signal stays pending.
    Blocking,
}

impl SignalledThreads {
    fn new(own: i32) -> Self {
        // Call numbers wrap around and skip 0, which means that no call is running.
        let call = LAST_CALL.fetch_add(1, Ordering::Relaxed).wrapping_add(1).max(1);
        let own_filters = ThreadProcStatus::of(own).map_or(0, |status| status.filters);
        Self { call, own, own_filters, threads: BTreeMap::new() }
    }

    /// Sends the signal to each found thread that was not signalled before. Returns whether there was such a
    /// thread.
    fn signal_new(&mut self, found: &[i32]) -> bool {
        let is_first_round = self.threads.is_empty();
        let mut any = false;
        for thread in found {
            let index = self.threads.len();
            if *thread == self.own || self.threads.contains_key(thread) || index == THREADS_MAX {
                continue;
            }
            // A thread that already had the layer may have started this one.
            let has_layer = |status: ThreadProcStatus| status.filters > self.own_filters;
            let inherits = !is_first_round && ThreadProcStatus::of(*thread).is_some_and(has_layer);
            let state = match inherits || send(*thread, payload(self.call, index)).is_err() {
                true => ThreadState::Done,
                false => ThreadState::Pending,
            };
            self.threads.insert(*thread, (index, state));
            any = true;
        }
        any
    }

    /// Waits until every signalled thread has answered or is given up, at most until `until`.
    fn wait(&mut self, until: Instant) {
        loop {
            let seen = ANSWERS.load(Ordering::Acquire);
            let mut is_pending = false;
            for (index, state) in self.threads.values_mut() {
                let has_answered = ANSWERED[*index].load(Ordering::Acquire) == self.call;
                if *state == ThreadState::Pending && has_answered {
                    *state = ThreadState::Done;
                }
                is_pending |= *state == ThreadState::Pending;
            }
            let left = until.saturating_duration_since(Instant::now());
            if !is_pending || left.is_zero() {
                return;
            }
            if wait_for_change(&ANSWERS, seen, left.min(RECHECK_WAIT)) == FutexWait::TimedOut {
                self.give_up_silent();
            }
        }
    }

    /// Stops waiting for threads that have ended or that block the signal.
    fn give_up_silent(&mut self) {
        for (thread, (_, state)) in &mut self.threads {
            if *state != ThreadState::Pending {
                continue;
            }
            if !is_alive(*thread) {
                *state = ThreadState::Done;
            } else if ThreadProcStatus::of(*thread).is_some_and(|status| status.blocks_signal) {
                *state = ThreadState::Blocking;
            }
        }
    }

    /// Whether no thread has a pending signal.
    fn none_pending(&self) -> bool {
        self.threads.values().all(|(_, state)| *state == ThreadState::Done)
    }
}

/// The status of a thread of this process, from `/proc`.
#[derive(Debug, Clone, Copy)]
struct ThreadProcStatus {
    filters: u32,
    /// The signal is pending and blocked. A thread that runs the handler also blocks the signal, but then the
    /// signal is no longer pending.
    blocks_signal: bool,
}

impl ThreadProcStatus {
    fn of(thread: i32) -> Option<Self> {
        // The file contains the name of the thread, which need not be UTF-8.
        let bytes = std::fs::read(format!("/proc/self/task/{thread}/status")).ok()?;
        let text = String::from_utf8_lossy(&bytes);
        let field =
            |name: &str| text.lines().find_map(|line| line.strip_prefix(name)).map(str::trim);
        let signals = |name| u64::from_str_radix(field(name)?, 16).ok();
        let blocked = signals("SigBlk:")? & signals("SigPnd:")?;
        Some(Self {
            filters: field("Seccomp_filters:")?.parse().ok()?,
            blocks_signal: blocked & 1 << (SIGNAL - 1) != 0,
        })
    }
}

/// What the signal carries: the call that the thread answers, and the thread's index in [`ANSWERED`].
fn payload(call: u32, index: usize) -> u64 {
    u64::from(call) << 32 | index as u64
}

/// The kernel's `siginfo_t`, as `rt_tgsigqueueinfo` takes it.
#[repr(C)]
struct KernelSiginfo {
    signal: i32,
    errno: i32,
    code: i32,
    unused: i32,
    pid: i32,
    uid: u32,
    value: u64,
    rest: [u64; 12],
}

const _: () = assert!(size_of::<KernelSiginfo>() == size_of::<libc::siginfo_t>());

/// Sends the signal to a thread of this process. Libc sends the same signal by `tgkill`, which sets another
/// code.
fn send(thread: i32, value: u64) -> Result<(), ()> {
    // SAFETY: both take no arguments.
    let (pid, uid) = unsafe { (libc::getpid(), libc::getuid()) };
    let code = libc::SI_QUEUE;
    let info =
        KernelSiginfo { signal: SIGNAL, errno: 0, code, unused: 0, pid, uid, value, rest: [0; 12] };
    // SAFETY: the pointer is to a live value of the kernel's layout.
    let sent =
        unsafe { libc::syscall(libc::SYS_rt_tgsigqueueinfo, pid, thread, SIGNAL, &raw const info) };
    if sent == 0 { Ok(()) } else { Err(()) }
}

fn is_alive(thread: i32) -> bool {
    // SAFETY: no memory is passed.
    unsafe { libc::syscall(libc::SYS_tgkill, libc::getpid(), thread, 0) == 0 }
}

/// How a wait ended.
#[derive(Debug, PartialEq, Eq)]
enum FutexWait {
    Woken,
    TimedOut,
}

fn wait_for_change(word: &AtomicU32, seen: u32, time: Duration) -> FutexWait {
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
    if timed_out { FutexWait::TimedOut } else { FutexWait::Woken }
}

/// The kernel's `struct sigaction`. Libc's `sigaction` refuses the signals that libc reserves.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
struct KernelSigaction {
    handler: usize,
    flags: libc::c_ulong,
    restorer: usize,
    mask: u64,
}

impl KernelSigaction {
    /// Our handler. It blocks all signals while it runs, and uses the thread's alternate signal stack, if the
    /// thread has one.
    fn ours() -> Self {
        let flags = libc::SA_SIGINFO | libc::SA_RESTART | libc::SA_ONSTACK;
        let flags = libc::c_ulong::from(flags.cast_unsigned());
        let handler = on_signal as *const () as usize;
        Self { handler, flags: flags | RESTORER_FLAG, restorer: restorer(), mask: u64::MAX }
    }

    /// Sets the action and returns the previous one.
    fn set(&self) -> Result<Self, ()> {
        let mut previous = Self { handler: 0, flags: 0, restorer: 0, mask: 0 };
        // SAFETY: both pointers are to live values of the kernel's layout. The last argument is the size of
        // the mask.
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

    /// Stores the handler, which gets the signals that this module did not send.
    fn remember(&self) {
        let takes_info = self.flags & libc::c_ulong::from(libc::SA_SIGINFO.cast_unsigned()) != 0;
        if self.handler != on_signal as *const () as usize {
            LIBC_HANDLER.store(if takes_info { self.handler } else { 0 }, Ordering::Release);
        }
    }
}

/// On x86-64 the process must provide the code that returns from a handler (`SA_RESTORER`).
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

type Handler = extern "C" fn(libc::c_int, *mut KernelSiginfo, *mut libc::c_void);

/// The signal handler. It runs in any thread, at any time.
extern "C" fn on_signal(signal: libc::c_int, info: *mut KernelSiginfo, context: *mut libc::c_void) {
    // SAFETY: the kernel passes a live value; errno belongs to this thread.
    let (about, errno) = unsafe { (&*info, libc::__errno_location()) };
    // The interrupted code may be about to read errno, so its value is restored at the end.
    // SAFETY: as above.
    let saved_errno = unsafe { *errno };
    // SAFETY: takes no arguments.
    let is_ours = about.code == libc::SI_QUEUE && about.pid == unsafe { libc::getpid() };
    let libc_handler = LIBC_HANDLER.load(Ordering::Acquire);
    if is_ours {
        answer(about.value);
    } else if libc_handler > libc::SIG_IGN {
        // SAFETY: libc set it as a handler with these arguments.
        let libc_handler = unsafe { std::mem::transmute::<usize, Handler>(libc_handler) };
        libc_handler(signal, info, context);
    }
    // SAFETY: as above.
    unsafe { *errno = saved_errno };
}

/// Adds the layer and the filter to the calling thread, which got a signal with this payload.
fn answer(value: u64) {
    let (call, index) = ((value >> 32) as u32, value as u32 as usize);
    let filter = FILTER.load(Ordering::Acquire);
    let Some(answered) = ANSWERED.get(index) else { return };
    if call != CALL.load(Ordering::Acquire) || filter.is_null() {
        return;
    }
    // SAFETY: the pointer comes from a `&'static` reference.
    let filter = unsafe { &*filter };
    // If the call has ended meanwhile, its ruleset is closed and the kernel adds nothing.
    let _ = add_twin_layer(RULESET.load(Ordering::Relaxed), filter);
    answered.store(call, Ordering::Release);
    ANSWERS.fetch_add(1, Ordering::Release);
    const WAKE: libc::c_int = libc::FUTEX_WAKE | libc::FUTEX_PRIVATE_FLAG;
    // SAFETY: the pointer is to a static.
    unsafe { libc::syscall(libc::SYS_futex, ANSWERS.as_ptr(), WAKE, 1) };
}
