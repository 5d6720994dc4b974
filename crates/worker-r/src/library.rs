//! The worker's R code (`r/windlass.R`): loads it into a private environment, and calls its functions.
//!
//! Every function here can raise an R error, so no value with a destructor lives during its calls.

use std::cell::Cell;
use std::ffi::{CStr, c_int};

use crate::json;
use crate::libr::{self, Sexp, parsed};

const CODE: &str = include_str!("../r/windlass.R");

/// Makes the private environment. The name `self` in it is the environment itself.
const ENVIRONMENT: &str = "(function() { e <- new.env(parent = baseenv()); e$self <- e; e })()";

/// Sets the handlers for errors and interrupts that no code has handled. R accepts this at its top level only.
const HANDLERS: &str = "globalCallingHandlers(error = on_error, interrupt = on_interrupt)";

thread_local! {
    static LOADED: Cell<Sexp> = const { Cell::new(Sexp::NULL) };
}

/// Loads the R code. Call this at R's top level.
pub fn load() {
    let environment = evaluate_text(ENVIRONMENT, libr::base_environment());
    // SAFETY: the value was just made.
    unsafe { libr::preserve(environment) };
    LOADED.set(environment);
    evaluate_text(CODE, environment);
    evaluate_text("install(self)", environment);
    evaluate_text(HANDLERS, environment);
}

/// Sets the options of the session. `columns` is the width of its terminal, or 0.
pub fn set_options(columns: u16) {
    let value = json::from_json(&serde_json::Value::from(columns));
    call_with(c"set_options", value);
}

/// Parses and evaluates code of the worker itself. Returns the last value, which is not protected.
pub fn evaluate_text(code: &'static str, environment: Sexp) -> Sexp {
    let mut status: c_int = 0;
    // SAFETY: the values are protected while others are allocated.
    unsafe {
        let text = libr::protect(json::text(code));
        let expressions = libr::protect(libr::parse_vector(text, -1, &raw mut status, libr::nil()));
        let mut value = libr::nil();
        if status == parsed::OK {
            for index in 0..libr::length(expressions) {
                value = libr::eval(libr::element_at(expressions, index), environment);
            }
        }
        libr::unprotect(2);
        value
    }
}

/// The text of the last error that R has reported, which is forgotten.
pub fn last_error_text() -> Sexp {
    call(c"last_error_text")
}

/// Calls a function of the private environment without arguments.
pub fn call(name: &CStr) -> Sexp {
    // SAFETY: the call is protected while it is evaluated.
    unsafe {
        let call = libr::protect(libr::call_0(function(name)));
        let value = libr::eval(call, libr::base_environment());
        libr::unprotect(1);
        value
    }
}

fn function(name: &CStr) -> Sexp {
    // SAFETY: the environment is loaded and preserved.
    unsafe { libr::find_in_frame(LOADED.get(), libr::install(name)) }
}

pub fn call_with(name: &CStr, argument: Sexp) -> Sexp {
    // SAFETY: the values are protected while others are allocated.
    unsafe {
        libr::protect(argument);
        let call = libr::protect(libr::call_1(function(name), argument));
        let value = libr::eval(call, libr::base_environment());
        libr::unprotect(2);
        value
    }
}

/// The message of a syntax error.
pub fn parse_error(code: Sexp) -> Sexp {
    call_with(c"parse_error", code)
}

/// The source file of a turn, for code that may define functions. Without one, parsing is faster.
pub fn source_of(code: Sexp) -> Sexp {
    // SAFETY: the code is a character vector of length 1.
    let bytes = unsafe { CStr::from_ptr(libr::char_bytes(libr::string_at(code, 0))) }.to_bytes();
    let has = |word: &[u8]| bytes.windows(word.len()).any(|window| window == word);
    if has(b"function") || has(b"\\(") { call_with(c"source_of", code) } else { libr::nil() }
}

/// Shows the plots that the turn has changed.
pub fn show_plots() {
    // SAFETY: reads a variable of the private environment, and calls a function of it.
    unsafe {
        let plots = function(c"plots");
        let pages = libr::find_in_frame(plots, libr::install(c"pages"));
        if libr::length(pages) > 0 {
            call(c"end_turn");
        }
    }
}
