//! R's callbacks: reads, writes, exits. Drives the turns from R's own top level.
//!
//! R's top level calls [`read_console`] for its next line. The callback takes a turn, parses its code and evaluates
//! one expression in the same way as the top level does. Then it returns a line that evaluates to the last value, so
//! that R itself prints the warnings, runs the task callbacks and resets its time limits. An error jumps over the
//! callback to the top level, which calls again.
//!
//! A call that comes from deeper in the stack than the top level's is for input: `readline`, `scan`, `browser`.
//!
//! No function here holds a value with a destructor while it calls R.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::ffi::{CStr, c_char, c_int, c_uchar};
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicUsize, Ordering};

use crate::libr::{self, Sexp, parsed};
use crate::session::{
    ConsoleStep, LeaveCause, Phase, RInterrupt, RSession, RTurn, RaisedError, Waited,
};
use crate::signals::{self, RawWrite};
use crate::{json, library, surroundings};

/// The line that makes R's top level close an expression. Its value is that of the expression.
const CLOSING_LINE: &[u8] = b"invisible(.Last.value)\n\0";

/// The address of a local variable of the top level's first call.
static TOP: AtomicUsize = AtomicUsize::new(0);

/// R has started.
static RUNNING: AtomicBool = AtomicBool::new(false);

thread_local! {
    static SESSION: RefCell<Option<RSession>> = const { RefCell::new(None) };
    static ERROR_TEXT: RefCell<ErrorText> = const { RefCell::new(ErrorText::Shown) };
    /// The expressions of the running turn, which R must not collect.
    static EXPRESSIONS: Cell<Sexp> = const { Cell::new(Sexp::NULL) };
    /// The last text that R wrote to the error stream in this turn.
    static LAST_REPORT: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
    static STAGES: RefCell<VecDeque<Stage>> = const { RefCell::new(VecDeque::new()) };
}

/// One step of the worker's start. All run at R's top level, and the last one sets the session.
pub type Stage = fn();

/// R prints an error that no code has handled. The worker sends that text as the traceback.
#[derive(Debug)]
enum ErrorText {
    /// Text on the error stream is shown.
    Shown,
    /// The next text is R's own report of the error.
    Expected,
    /// The report, in case the code continues after all.
    Held(Vec<u8>),
}

/// Adds steps that R's top level does before it serves the session.
pub fn add_stages(stages: &[Stage]) {
    STAGES.with_borrow_mut(|all| all.extend(stages));
}

/// R has started, and its top level begins.
pub fn begin_top_level() {
    RUNNING.store(true, Ordering::Relaxed);
}

/// Sets the session whose turns run from now on.
pub fn set_session(session: RSession) {
    SESSION.replace(Some(session));
}

/// Calls a function with the session. The function must not call R.
pub fn with_session<T>(act: impl FnOnce(&mut RSession) -> T) -> Option<T> {
    if signals::is_forked() {
        return None;
    }
    SESSION.with_borrow_mut(|session| session.as_mut().map(act))
}

/// Sets R's callbacks. Call this between `initialize` and the set-up of the main loop.
pub fn install() {
    // SAFETY: R is initialised and has no other thread; the callbacks have the types that R expects.
    unsafe {
        *libr::console_file() = std::ptr::null_mut();
        *libr::output_file() = std::ptr::null_mut();
        *libr::on_write_console() = std::ptr::null_mut();
        *libr::on_read_console() = Some(read_console);
        *libr::on_write_console_ex() = Some(write_console);
        *libr::on_show_message() = Some(show_message);
        *libr::on_suicide() = Some(suicide);
        *libr::on_busy() = Some(busy);
        *libr::on_clean_up() = Some(clean_up);
        *libr::polled_events() = Some(poll_events);
    }
}

fn pending() -> &'static AtomicI32 {
    // SAFETY: the variable is an aligned `int` that lives as long as R.
    unsafe { AtomicI32::from_ptr(libr::interrupts_pending()) }
}

/// R looks for interrupts.
unsafe extern "C-unwind" fn poll_events() {
    let Some(seen) = signals::take() else { return };
    let mut end = None;
    let own = with_session(|session| {
        let read = session.read_frames();
        end = read.end;
        let Some(turn) = session.turn() else { return false };
        if read.interrupted {
            let raised = !seen.sigint && signals::sigint_was_taken_by_r();
            if raised {
                turn.interrupt = RInterrupt::Presumed;
            }
            return !raised;
        }
        let is_requested = turn.interrupt >= RInterrupt::Requested;
        // A SIGINT without a frame comes from the code itself.
        seen.sigint && !session.takes_late_signal() && !is_requested
    });
    if let Some(cause) = end {
        exit(cause);
    }
    if own == Some(true) || signals::is_forked() && seen.sigint {
        pending().store(1, Ordering::Relaxed);
    }
}

unsafe extern "C-unwind" fn read_console(
    prompt: *const c_char,
    buffer: *mut c_uchar,
    length: c_int,
    _history: c_int,
) -> c_int {
    let local = 0_u8;
    let here = (&raw const local) as usize;
    if TOP.load(Ordering::Relaxed) == 0 {
        if !RUNNING.load(Ordering::Relaxed) {
            // R has not started: a profile asks for input, and gets its end.
            return 0;
        }
        TOP.store(here, Ordering::Relaxed);
    } else if here < TOP.load(Ordering::Relaxed) {
        // SAFETY: R's arguments are passed on.
        return unsafe { read_input(prompt, buffer, length) };
    }
    if signals::is_forked() {
        // An error has ended the code of a forked child.
        signals::leave(1);
    }
    // A stage that jumps is over, and the next one runs.
    while let Some(stage) = STAGES.with_borrow_mut(VecDeque::pop_front) {
        stage();
    }
    run_to_line();
    // SAFETY: R's buffer is longer than the line.
    unsafe { std::ptr::copy_nonoverlapping(CLOSING_LINE.as_ptr(), buffer, CLOSING_LINE.len()) };
    1
}

/// Runs turns until R's top level has to close an expression.
fn run_to_line() {
    show_held_error_text(KeptObject::IfTurnFailed);
    note_unhandled_error();
    loop {
        let is_pending = pending().load(Ordering::Relaxed) != 0;
        let raised = signals::sigint_was_taken_by_r();
        let step = with_session(|session| session.step(is_pending, raised));
        match step.unwrap_or(ConsoleStep::Exit(LeaveCause::Closed)) {
            ConsoleStep::Parse => {
                if parse() && evaluate(0) {
                    return;
                }
            }
            ConsoleStep::Evaluate(index) => {
                if evaluate(index) {
                    return;
                }
            }
            ConsoleStep::Show => {
                pending().store(0, Ordering::Relaxed);
                library::show_plots();
                surroundings::leave();
                flush_c_output();
            }
            ConsoleStep::Exit(cause) => exit(cause),
        }
    }
}

/// R does not call handlers when its stack is exhausted. It keeps the text of the error.
fn note_unhandled_error() {
    let jumped = with_session(|session| {
        let evaluating = |turn: &mut RTurn| {
            matches!(turn.phase, Phase::Evaluating(_))
                && turn.error.is_none()
                && turn.quit.is_none()
                && turn.interrupt == RInterrupt::None
        };
        session.turn().is_some_and(evaluating)
    });
    if jumped != Some(true) {
        return;
    }
    let text = json::first_text(library::last_error_text()).unwrap_or_default();
    // R keeps the texts of handled errors too. Only an unhandled one was just reported.
    let reported = LAST_REPORT.with_borrow(|last| last.as_slice() == text.as_bytes());
    if text.trim().is_empty() || !reported {
        return;
    }
    let message = text.trim().strip_prefix("Error: ").unwrap_or(text.trim()).to_owned();
    note_error(RaisedError { name: "simpleError".to_owned(), message, traceback: text });
}

/// Parses the code of the turn. Returns whether there is an expression to evaluate.
fn parse() -> bool {
    signals::begin_turn();
    LAST_REPORT.with_borrow_mut(Vec::clear);
    pending().store(0, Ordering::Relaxed);
    ERROR_TEXT.replace(ErrorText::Shown);
    // SAFETY: the callback calls nothing of R, unless the process ends.
    unsafe { poll_events() };
    let context = with_session(|session| session.turn().and_then(|turn| turn.context.take()));
    if let Some(message) = context.flatten().and_then(surroundings::enter) {
        let traceback = format!("ContextError: {message}\n");
        note_error(RaisedError { name: "ContextError".to_owned(), message, traceback });
        return false;
    }
    let mut status = 0;
    // SAFETY: all values are protected while others are allocated; nothing with a destructor lives here.
    let count = unsafe {
        let code = libr::protect(code_of_turn());
        let file = libr::protect(library::source_of(code));
        let expressions = libr::parse_vector(code, -1, &raw mut status, file);
        if status == parsed::OK {
            let before = EXPRESSIONS.replace(expressions);
            libr::preserve(expressions);
            if before != Sexp::NULL {
                libr::release(before);
            }
            libr::unprotect(2);
            usize::try_from(libr::length(expressions)).unwrap_or_default()
        } else {
            let message = libr::protect(library::parse_error(code));
            note_parse_error(message, status);
            libr::unprotect(3);
            return false;
        }
    };
    with_session(|session| {
        if let Some(turn) = session.turn() {
            turn.count = count;
            turn.phase = if count == 0 { Phase::Closing(0) } else { Phase::Evaluating(0) };
        }
    });
    count > 0
}

fn code_of_turn() -> Sexp {
    SESSION.with_borrow_mut(|session| {
        let code = session.as_mut().and_then(RSession::turn).map(|turn| turn.code.as_str());
        json::text(code.unwrap_or_default())
    })
}

fn note_parse_error(message: Sexp, status: c_int) {
    let incomplete = status == parsed::INCOMPLETE;
    let name = if incomplete { "IncompleteCode" } else { "ParseError" };
    let message =
        json::first_text(message).unwrap_or_else(|| "the code has a syntax error".to_owned());
    note_error(RaisedError {
        name: name.to_owned(),
        traceback: format!("{name}: {message}\n"),
        message,
    });
}

/// Evaluates and prints one expression, as R's top level does. Returns whether the top level has to close it.
fn evaluate(index: usize) -> bool {
    ERROR_TEXT.replace(ErrorText::Shown);
    signals::begin_expression();
    // SAFETY: the expressions are preserved, the index is below their number, and nothing with a destructor lives
    // here when R jumps.
    unsafe {
        let expression = libr::element_at(EXPRESSIONS.get(), index.cast_signed());
        let value = libr::protect(libr::eval(expression, libr::global_environment()));
        let visible = *libr::visible() != 0;
        libr::set_symbol_value(libr::last_value_symbol(), value);
        if visible {
            begin_printing(index);
            libr::print_value(value);
            with_session(RSession::end_result);
        }
        libr::unprotect(1);
    }
    if signals::is_forked() {
        finish_child(index + 1);
    }
    show_held_error_text(KeptObject::Nothing);
    with_session(|session| {
        if let Some(turn) = session.turn() {
            turn.phase = Phase::Closing(index);
        }
    });
    true
}

/// The code has forked, and this is the child. It evaluates the rest of the code and ends, as a program would.
fn finish_child(next: usize) -> ! {
    // SAFETY: as in `evaluate`. An error jumps to the top level, which ends the child.
    unsafe {
        let expressions = EXPRESSIONS.get();
        for index in next.cast_signed()..libr::length(expressions) {
            let expression = libr::element_at(expressions, index);
            let value = libr::protect(libr::eval(expression, libr::global_environment()));
            if *libr::visible() != 0 {
                libr::print_value(value);
            }
            libr::unprotect(1);
        }
    }
    flush_c_output();
    signals::leave(0);
}

/// The value of the last expression is the turn's result.
fn begin_printing(index: usize) {
    with_session(|session| {
        if session.turn().is_some_and(|turn| index + 1 == turn.count) {
            session.begin_result();
        }
    });
}

/// Reads a line of input for the code.
unsafe fn read_input(prompt: *const c_char, buffer: *mut c_uchar, length: c_int) -> c_int {
    show_held_error_text(KeptObject::Nothing);
    forget_error();
    let most = usize::try_from(length).unwrap_or_default().saturating_sub(2);
    let is_pending = pending().load(Ordering::Relaxed) != 0;
    // SAFETY: R's prompt ends with NUL, and its buffer has room for `length` bytes.
    let read = unsafe {
        let prompt = CStr::from_ptr(prompt);
        if is_pending { InputRead::Interrupted } else { ask(prompt, buffer, most) }
    };
    match read {
        InputRead::Line => 1,
        InputRead::End => 0,
        InputRead::Interrupted => {
            // SAFETY: nothing with a destructor lives here. If the code resumes, it gets the end of input.
            unsafe { libr::raise_interrupt() };
            0
        }
        InputRead::Exit(cause) => exit(cause),
    }
}

/// How a read of input ended.
#[derive(Debug, Clone, Copy)]
enum InputRead {
    Line,
    End,
    Interrupted,
    Exit(LeaveCause),
}

/// Asks for a line and stores it with a NUL.
unsafe fn ask(prompt: &CStr, buffer: *mut c_uchar, most: usize) -> InputRead {
    let prompt = prompt.to_string_lossy();
    let read = with_session(|session| {
        if session.read_frames().interrupted {
            return Waited::Interrupted;
        }
        session.read_line(&prompt, false, most)
    });
    match read.unwrap_or(Waited::Done(Vec::new())) {
        Waited::Done(line) if line.is_empty() => InputRead::End,
        Waited::Done(line) => {
            // SAFETY: the line has at most `most` bytes, and the buffer has two more.
            unsafe {
                std::ptr::copy_nonoverlapping(line.as_ptr(), buffer, line.len());
                *buffer.add(line.len()) = 0;
            }
            InputRead::Line
        }
        Waited::Interrupted => InputRead::Interrupted,
        Waited::Exit(cause) => InputRead::Exit(cause),
    }
}

/// R has raised an error that no code has handled.
pub fn note_error(error: RaisedError) {
    with_session(|session| {
        let Some(turn) = session.turn() else { return };
        let parsing = turn.phase == Phase::Parsing && error.name == "simpleError";
        let name = if parsing { "ParseError".to_owned() } else { error.name };
        turn.error = Some(RaisedError { name, ..error });
    });
}

/// R's own report of an error comes next on the error stream.
pub fn expect_error_text() {
    ERROR_TEXT.replace(ErrorText::Expected);
}

fn forget_error() {
    with_session(|session| {
        if let Some(turn) = session.turn() {
            turn.error = None;
        }
    });
}

/// When a held report stays unshown.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum KeptObject {
    /// The turn ends with this error, and its traceback has the report.
    IfTurnFailed,
    Nothing,
}

/// Shows a report of R that was held back, because the code continues after the error.
fn show_held_error_text(keep: KeptObject) {
    if let ErrorText::Held(text) = ERROR_TEXT.replace(ErrorText::Shown)
        && keep == KeptObject::Nothing
    {
        signals::write_raw(libc::STDERR_FILENO, &text);
        forget_error();
    }
}

unsafe extern "C-unwind" fn write_console(text: *const c_char, length: c_int, stream: c_int) {
    let length = usize::try_from(length).unwrap_or_default();
    // SAFETY: R's text has this many bytes.
    let bytes = unsafe { std::slice::from_raw_parts(text.cast::<u8>(), length) };
    if stream == 0 {
        if with_session(|session| session.take_printed(bytes)) != Some(true) {
            write_out(libc::STDOUT_FILENO, bytes);
        }
    } else if !is_held(bytes) {
        LAST_REPORT.with_borrow_mut(|last| {
            last.clear();
            last.extend_from_slice(bytes);
        });
        write_out(libc::STDERR_FILENO, bytes);
    }
}

/// Holds back R's report of an error, and the line feed that R prints for an interrupt.
fn is_held(bytes: &[u8]) -> bool {
    if with_session(|_| ()).is_none() {
        // A forked child, or a start without a session yet: nothing else reports the error.
        return false;
    }
    let expected = ERROR_TEXT.with_borrow_mut(|held| {
        let expected = matches!(held, ErrorText::Expected);
        if expected {
            *held = ErrorText::Held(bytes.to_vec());
        }
        expected
    });
    let uncaught = |session: &mut RSession| {
        session.turn().is_some_and(|turn| turn.interrupt == RInterrupt::Uncaught)
    };
    expected || bytes == b"\n" && with_session(uncaught) == Some(true)
}

/// Writes to a raw pipe. An interrupt ends a write that waits for its reader.
fn write_out(descriptor: c_int, bytes: &[u8]) {
    let mut rest = bytes;
    while let RawWrite::Signal(count) = signals::write_raw(descriptor, rest) {
        rest = &rest[count..];
        // SAFETY: the callback takes no arguments and calls nothing of R.
        unsafe { poll_events() };
        if pending().load(Ordering::Relaxed) != 0 {
            return;
        }
    }
}

unsafe extern "C-unwind" fn show_message(text: *const c_char) {
    // SAFETY: R's text ends with NUL.
    let bytes = unsafe { CStr::from_ptr(text) }.to_bytes();
    write_out(libc::STDERR_FILENO, bytes);
    write_out(libc::STDERR_FILENO, b"\n");
}

/// R cannot continue.
unsafe extern "C-unwind" fn suicide(text: *const c_char) {
    // SAFETY: R's text is passed on.
    unsafe { show_message(text) };
    signals::leave(2);
}

unsafe extern "C-unwind" fn busy(_: c_int) {}

/// The code has called `quit`. The turn ends, and the session lives.
unsafe extern "C-unwind" fn clean_up(_save: c_int, status: c_int, _run_last: c_int) {
    if signals::is_forked() {
        signals::leave(status);
    }
    with_session(|session| {
        if let Some(turn) = session.turn() {
            turn.quit = Some(status);
        }
    });
    // SAFETY: nothing with a destructor lives here.
    unsafe { libr::jump_to_top_level() };
}

/// Flushes what C code has left in its buffers.
fn flush_c_output() {
    // SAFETY: a null pointer means all streams.
    unsafe { libc::fflush(std::ptr::null_mut()) };
}

/// Ends the process, from any depth of the stack.
pub fn exit(cause: LeaveCause) -> ! {
    let in_turn = with_session(|session| session.turn().is_some()) == Some(true);
    if !in_turn {
        // SAFETY: R is at its top level. R catches the errors of finalizers.
        unsafe {
            libr::run_exit_finalizers();
            libr::close_devices();
        }
    }
    // SAFETY: R removes its own directory.
    unsafe { libr::remove_temporary_directory() };
    flush_c_output();
    if cause == LeaveCause::Shutdown {
        with_session(|session| session.end("shutdown"));
    }
    signals::leave(0);
}
