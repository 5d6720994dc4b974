//! The worker's signals, its raw output, and what a forked child does. Owns the flags that a signal handler may
//! touch.

use std::ffi::{c_int, c_void};
use std::os::fd::RawFd;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicI64, Ordering};

/// Linux's number for the command that chooses the signal of `O_ASYNC`.
const F_SETSIG: c_int = 10;

/// A signal has come, so frames may be there.
static LOOK: AtomicBool = AtomicBool::new(false);

/// A SIGINT was among the signals.
static SIGINT: AtomicBool = AtomicBool::new(false);

/// The worker's handler has seen a SIGINT in this turn.
static SIGINT_IN_TURN: AtomicBool = AtomicBool::new(false);

/// R has received an interrupt of this turn.
static DELIVERED: AtomicBool = AtomicBool::new(false);

/// Page faults of children that had ended when the current expression began.
static CHILD_FAULTS: AtomicI64 = AtomicI64::new(0);

/// This process is a forked child of the worker, and not the worker.
static FORKED: AtomicBool = AtomicBool::new(false);

/// The protocol socket, which a forked child closes.
static SOCKET: AtomicI32 = AtomicI32::new(-1);

/// Whether a signal came since the last call, and whether it was a SIGINT.
pub fn take() -> Option<SignalSeen> {
    if !LOOK.swap(false, Ordering::Relaxed) {
        return None;
    }
    let sigint = SIGINT.swap(false, Ordering::Relaxed);
    if sigint {
        DELIVERED.store(true, Ordering::Relaxed);
    }
    Some(SignalSeen { sigint })
}

/// What [`take`] found.
#[derive(Debug, Clone, Copy)]
pub struct SignalSeen {
    pub sigint: bool,
}

pub fn is_forked() -> bool {
    FORKED.load(Ordering::Relaxed)
}

/// Handles SIGINT. R replaces the handler while it waits in `select`, and restores it with other flags. So this is
/// called again for every expression.
fn handle_sigint() {
    handle(libc::SIGINT, on_sigint, 0);
}

/// A turn begins.
pub fn begin_turn() {
    SIGINT.store(false, Ordering::Relaxed);
    SIGINT_IN_TURN.store(false, Ordering::Relaxed);
    DELIVERED.store(false, Ordering::Relaxed);
    // Frames that came with the turn's code have sent their signal already.
    LOOK.store(true, Ordering::Relaxed);
}

/// An expression begins.
pub fn begin_expression() {
    handle_sigint();
    CHILD_FAULTS.store(child_faults(), Ordering::Relaxed);
}

/// Whether R may have received the SIGINT of an interrupt whose frame was read only now. R waits in `select` with a
/// handler of its own, and restores the worker's handler with the flag `SA_RESTART`. A child that ended means the
/// other case: `system` ignores SIGINT while it waits for its child.
pub fn sigint_was_taken_by_r() -> bool {
    if SIGINT_IN_TURN.load(Ordering::Relaxed) {
        return false;
    }
    // SAFETY: only reads the current action.
    let flags = unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        libc::sigaction(libc::SIGINT, std::ptr::null(), &raw mut action);
        action.sa_flags
    };
    flags & libc::SA_RESTART != 0 && child_faults() == CHILD_FAULTS.load(Ordering::Relaxed)
}

/// Page faults of all children that have ended. Every process has some.
fn child_faults() -> i64 {
    // SAFETY: the structure is plain numbers.
    unsafe {
        let mut usage: libc::rusage = std::mem::zeroed();
        libc::getrusage(libc::RUSAGE_CHILDREN, &raw mut usage);
        usage.ru_minflt
    }
}

/// Handles the signals of the protocol, and makes SIGPIPE harmless for this process but not for its children.
pub fn install() {
    handle_sigint();
    handle_sigurg();
    handle(libc::SIGPIPE, on_sigpipe, libc::SA_RESTART);
}

/// Handles SIGURG, with the information who sent it.
fn handle_sigurg() {
    // SAFETY: the handler only stores to atomics and makes system calls. An empty mask and no other field is valid.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = on_sigurg as *const () as usize;
        // Without `SA_RESTART`, R takes an interrupted read for the end of a child's output.
        action.sa_flags = libc::SA_SIGINFO | libc::SA_RESTART;
        libc::sigaction(libc::SIGURG, &raw const action, std::ptr::null_mut());
    }
}

fn handle(signal: c_int, handler: extern "C" fn(c_int), flags: c_int) {
    // SAFETY: the handlers only store to atomics. An empty mask and no other field is valid.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = handler as *const () as usize;
        action.sa_flags = flags;
        libc::sigaction(signal, &raw const action, std::ptr::null_mut());
    }
}

extern "C" fn on_sigint(_: c_int) {
    SIGINT_IN_TURN.store(true, Ordering::Relaxed);
    SIGINT.store(true, Ordering::Relaxed);
    LOOK.store(true, Ordering::Relaxed);
}

/// The keeper repeats SIGURG while a turn is being interrupted. `system` ignores SIGINT while it waits for its child.
/// If the keeper's SIGINT came just before the child was started, the child must still end.
extern "C" fn on_sigurg(_: c_int, info: *mut libc::siginfo_t, _: *mut c_void) {
    LOOK.store(true, Ordering::Relaxed);
    // SAFETY: the kernel passes a valid structure. The calls are allowed in a signal handler.
    unsafe {
        let is_from_process = (*info).si_code == libc::SI_USER;
        if !is_from_process || DELIVERED.load(Ordering::Relaxed) {
            return;
        }
        let mut action: libc::sigaction = std::mem::zeroed();
        libc::sigaction(libc::SIGINT, std::ptr::null(), &raw mut action);
        if action.sa_sigaction == libc::SIG_IGN {
            libc::kill(0, libc::SIGINT);
        }
    }
}

extern "C" fn on_sigpipe(_: c_int) {}

/// Makes the kernel send SIGURG to this process when something comes on the protocol socket. So code that never waits
/// sees an interrupt, a shutdown and the end of the keeper at R's next check. Without it, the keeper's own signals do.
pub fn watch(socket: RawFd) {
    // SAFETY: no memory is passed.
    unsafe {
        libc::fcntl(socket, libc::F_SETOWN, libc::getpid());
        libc::fcntl(socket, F_SETSIG, libc::SIGURG);
        let flags = libc::fcntl(socket, libc::F_GETFL);
        libc::fcntl(socket, libc::F_SETFL, flags | libc::O_ASYNC);
    }
}

/// Makes forked children close the protocol socket.
pub fn close_in_children(socket: RawFd) {
    SOCKET.store(socket, Ordering::Relaxed);
    // SAFETY: the handler only stores to an atomic and closes a descriptor.
    unsafe { libc::pthread_atfork(None, None, Some(enter_child)) };
}

unsafe extern "C" fn enter_child() {
    FORKED.store(true, Ordering::Relaxed);
    // SAFETY: the descriptor is the socket. The child does not use its copy of the link.
    unsafe { libc::close(SOCKET.load(Ordering::Relaxed)) };
}

/// Ends this process without any clean-up.
pub fn leave(status: c_int) -> ! {
    // SAFETY: ends the process.
    unsafe { libc::_exit(status) }
}

/// How a write to a raw pipe ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RawWrite {
    Done,
    /// A signal came after this many bytes.
    Signal(usize),
}

/// Writes to a raw pipe. A pipe that nobody reads swallows the bytes.
pub fn write_raw(descriptor: RawFd, bytes: &[u8]) -> RawWrite {
    let mut written = 0;
    while written < bytes.len() {
        let rest = &bytes[written..];
        // SAFETY: the pointer and the length are of one slice.
        let count = unsafe { libc::write(descriptor, rest.as_ptr().cast(), rest.len()) };
        match usize::try_from(count) {
            Ok(count) => written += count,
            Err(_) => match std::io::Error::last_os_error().kind() {
                std::io::ErrorKind::Interrupted => return RawWrite::Signal(written),
                std::io::ErrorKind::WouldBlock => wait_to_write(descriptor),
                _ => return RawWrite::Done,
            },
        }
    }
    RawWrite::Done
}

/// The code may have made the shared pipe non-blocking.
fn wait_to_write(descriptor: RawFd) {
    let mut watched = libc::pollfd { fd: descriptor, events: libc::POLLOUT, revents: 0 };
    // SAFETY: one descriptor is passed.
    unsafe { libc::poll(&raw mut watched, 1, -1) };
}
