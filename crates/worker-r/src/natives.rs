//! The functions of the worker that R code calls with `.Call`. Each one copies its arguments, acts without R, and
//! then makes its result. An interrupt is raised last, when no value with a destructor lives.

use std::ffi::{c_int, c_void};

use serde_json::{Value, json};
use windlass_worker_kit::Display;

use crate::console::{self, with_session};
use crate::json::{self, first_text};
use crate::libr::{self, CallRoutine, Sexp, kind};
use crate::session::{LeaveCause, RInterrupt, RToolAnswer, RToolRequest, RaisedError, Waited};

/// Registers the functions under their names.
pub fn register() {
    let routine = |name: &'static std::ffi::CStr, function: *const c_void, arguments: c_int| {
        CallRoutine { name: name.as_ptr(), function, arguments }
    };
    let table = [
        routine(c"windlass_error", windlass_error as *const c_void, 3),
        routine(c"windlass_interrupt", windlass_interrupt as *const c_void, 0),
        routine(c"windlass_display", windlass_display as *const c_void, 4),
        routine(c"windlass_tools", windlass_tools as *const c_void, 1),
        routine(c"windlass_input", windlass_input as *const c_void, 2),
        routine(c"windlass_to_json", windlass_to_json as *const c_void, 1),
        routine(c"windlass_from_json", windlass_from_json as *const c_void, 1),
        routine(c"windlass_second_names", windlass_second_names as *const c_void, 1),
        CallRoutine { name: std::ptr::null(), function: std::ptr::null(), arguments: 0 },
    ];
    // SAFETY: R copies the table, which ends with an empty row.
    unsafe {
        let none = std::ptr::null();
        libr::register_routines(libr::embedding_library(), none, table.as_ptr(), none, none);
    }
}

/// R is about to report an error that no code has handled.
extern "C-unwind" fn windlass_error(name: Sexp, message: Sexp, traceback: Sexp) -> Sexp {
    let text = |value| first_text(value).unwrap_or_default();
    console::note_error(RaisedError {
        name: text(name),
        message: text(message),
        traceback: text(traceback),
    });
    console::expect_error_text();
    libr::nil()
}

/// R is about to return to its top level, because no code has handled an interrupt.
extern "C-unwind" fn windlass_interrupt() -> Sexp {
    with_session(|session| {
        if let Some(turn) = session.turn() {
            turn.interrupt = RInterrupt::Uncaught;
        }
    });
    libr::nil()
}

/// Returns NULL, or why nothing was shown.
extern "C-unwind" fn windlass_display(mime: Sexp, data: Sexp, id: Sexp, update: Sexp) -> Sexp {
    let mime = first_text(mime).unwrap_or_default();
    let id = first_text(id);
    // SAFETY: the caller in R passes a raw vector and a logical of length 1, which live during this call.
    let (body, update) = unsafe {
        let bytes = usize::try_from(libr::length(data)).unwrap_or_default();
        let body = std::slice::from_raw_parts(libr::raw_bytes(data), bytes);
        (body, *libr::logicals(update) == 1)
    };
    let display = Display { mime: &mime, id: id.as_deref(), update };
    let shown = with_session(|session| session.display(display, body));
    match shown.unwrap_or_else(|| Err("a forked process cannot show anything".to_owned())) {
        Ok(()) => libr::nil(),
        Err(reason) => json::text(&reason),
    }
}

/// Takes a list of requests (name, arguments, milliseconds or -1). Returns a list of `list(ok, value)`.
extern "C-unwind" fn windlass_tools(requests: Sexp) -> Sexp {
    match call_tools(requests) {
        Called::Value(value) => value,
        Called::Interrupted => {
            // SAFETY: nothing with a destructor lives here.
            unsafe { libr::raise_interrupt() };
            libr::nil()
        }
        Called::Exit(cause) => console::exit(cause),
    }
}

/// How a call that can wait has ended.
#[derive(Debug, Clone, Copy)]
enum Called {
    Value(Sexp),
    Interrupted,
    Exit(LeaveCause),
}

fn call_tools(requests: Sexp) -> Called {
    // SAFETY: the caller in R passes a list of lists of three.
    let read: Vec<Result<RToolRequest, Value>> = unsafe {
        (0..libr::length(requests))
            .map(|index| request(libr::element_at(requests, index)))
            .collect()
    };
    let (sent, mut failed) =
        (Vec::from_iter(read.iter().filter_map(|r| r.as_ref().ok())), Vec::new());
    if sent.len() < read.len() {
        failed.extend(
            read.iter().map(|request| Err(request.as_ref().err().cloned().unwrap_or_default())),
        );
        return Called::Value(answers(&failed));
    }
    let requests: Vec<RToolRequest> = read.into_iter().flatten().collect();
    let waited = with_session(|session| {
        if session.read_frames().interrupted {
            return Waited::Interrupted;
        }
        session.call_tools(&requests)
    });
    match waited {
        Some(Waited::Done(done)) => Called::Value(answers(&done)),
        Some(Waited::Interrupted) => Called::Interrupted,
        Some(Waited::Exit(cause)) => Called::Exit(cause),
        None => {
            let reason = "a forked process cannot call host tools";
            let error = json!({"message": reason, "code": "bad_request"});
            Called::Value(answers(&Vec::from_iter(requests.iter().map(|_| Err(error.clone())))))
        }
    }
}

/// # Safety
/// The value is a list of a name, arguments and a number.
unsafe fn request(value: Sexp) -> Result<RToolRequest, Value> {
    // SAFETY: the caller's promise.
    let (name, arguments, deadline) = unsafe {
        let deadline = *libr::reals(libr::element_at(value, 2));
        (first_text(libr::element_at(value, 0)), libr::element_at(value, 1), deadline)
    };
    let bad = |message: String| json!({"message": message, "code": "bad_request"});
    let object = json::to_object(arguments).map_err(|error| bad(error.to_string()))?;
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "the number is not negative"
    )]
    let deadline_ms = (deadline >= 0.0).then_some(deadline as u64);
    let arguments = serde_json::to_vec(&object).map_err(|error| bad(error.to_string()))?;
    Ok(RToolRequest { name: name.unwrap_or_default(), arguments, deadline_ms })
}

fn answers(answers: &[RToolAnswer]) -> Sexp {
    // SAFETY: the list is protected while its elements are allocated.
    unsafe {
        let list = libr::protect(libr::allocate(kind::LIST, answers.len().cast_signed()));
        for (index, answer) in answers.iter().enumerate() {
            let pair = match answer {
                Ok(value) => ok_and(true, value),
                Err(error) => ok_and(false, error),
            };
            libr::set_element(list, index.cast_signed(), pair);
        }
        libr::unprotect(1);
        list
    }
}

/// `list(ok, value)`
fn ok_and(ok: bool, value: &Value) -> Sexp {
    // SAFETY: the list is protected while its elements are allocated.
    unsafe {
        let list = libr::protect(libr::allocate(kind::LIST, 2));
        libr::set_element(list, 0, json::from_json(&Value::Bool(ok)));
        libr::set_element(list, 1, json::from_json(value));
        libr::unprotect(1);
        list
    }
}

/// Asks for one line. Returns it without its line feed, or NULL at the end of input.
extern "C-unwind" fn windlass_input(prompt: Sexp, secret: Sexp) -> Sexp {
    match ask(prompt, secret) {
        Called::Value(value) => value,
        Called::Interrupted => {
            // SAFETY: nothing with a destructor lives here.
            unsafe { libr::raise_interrupt() };
            libr::nil()
        }
        Called::Exit(cause) => console::exit(cause),
    }
}

fn ask(prompt: Sexp, secret: Sexp) -> Called {
    let prompt = first_text(prompt).unwrap_or_default();
    // SAFETY: the caller in R passes a logical of length 1.
    let secret = unsafe { *libr::logicals(secret) == 1 };
    let read = with_session(|session| {
        if session.read_frames().interrupted {
            return Waited::Interrupted;
        }
        session.read_line(&prompt, secret, usize::MAX)
    });
    match read.unwrap_or(Waited::Done(Vec::new())) {
        Waited::Done(line) if line.is_empty() => Called::Value(libr::nil()),
        Waited::Done(line) => {
            let text = String::from_utf8_lossy(&line);
            Called::Value(json::text(text.strip_suffix('\n').unwrap_or(&text)))
        }
        Waited::Interrupted => Called::Interrupted,
        Waited::Exit(cause) => Called::Exit(cause),
    }
}

/// Returns the text, or a list with the reason why there is none.
extern "C-unwind" fn windlass_to_json(value: Sexp) -> Sexp {
    match json::to_json(value) {
        Ok(value) => json::text(&value.to_string()),
        Err(error) => json::from_json(&json!([[error.to_string()]])),
    }
}

/// Returns `list(ok, value or reason)`.
extern "C-unwind" fn windlass_from_json(text: Sexp) -> Sexp {
    match serde_json::from_str::<Value>(&first_text(text).unwrap_or_default()) {
        Ok(value) => ok_and(true, &value),
        Err(error) => ok_and(false, &Value::String(error.to_string())),
    }
}

/// Whether code of a package has another hard link by which a session could change it.
extern "C-unwind" fn windlass_second_names(package: Sexp) -> Sexp {
    let package = std::path::PathBuf::from(first_text(package).unwrap_or_default());
    let linked = ["R", "libs", "Meta"].iter().any(|part| has_second_name(&package.join(part)));
    json::from_json(&Value::Bool(linked))
}

/// Whether a file in a directory has a second hard link and can be changed by this user.
fn has_second_name(directory: &std::path::Path) -> bool {
    use std::os::unix::fs::MetadataExt;
    let Ok(entries) = std::fs::read_dir(directory) else { return false };
    entries.flatten().any(|entry| {
        let Ok(found) = entry.metadata() else { return false };
        let linked = found.is_file() && found.nlink() > 1;
        linked && std::fs::OpenOptions::new().append(true).open(entry.path()).is_ok()
    })
}
