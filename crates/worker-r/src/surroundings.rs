//! The surroundings of a turn: arguments, directory and variables. R code of the worker (`enter`, `leave`) changes and
//! restores the directory and the variables; `commandArgs()` is set here.

use std::cell::Cell;
use std::ffi::{CString, c_char, c_int};
use std::path::Path;

use serde_json::json;
use windlass_worker_kit::TurnContext;

use crate::libr::{self, Sexp};
use crate::{json, library};

/// What `commandArgs()` begins with.
const PROGRAM: &str = "R";

thread_local! {
    /// The running turn has surroundings, which its end puts back.
    static ENTERED: Cell<bool> = const { Cell::new(false) };
}

/// Applies the context of the turn. Returns why it cannot be applied. Can raise an R error.
pub fn enter(context: Box<TurnContext>) -> Option<String> {
    ENTERED.set(true);
    set_command_line(words(&context));
    if context.cwd.is_none() && context.env.is_empty() {
        return None;
    }
    let argument = as_argument(&context);
    // Nothing with a destructor lives during the call.
    drop(context);
    json::first_text(library::call_with(c"enter", argument))
}

/// The directory and the variables as an R list, which is not protected.
fn as_argument(context: &TurnContext) -> Sexp {
    let names: Vec<&String> = context.env.keys().collect();
    let values: Vec<&String> = context.env.values().collect();
    json::from_json(&json!({"cwd": context.cwd, "names": names, "values": values}))
}

/// Puts everything back, if the turn has a context. Can raise an R error.
pub fn leave() {
    if ENTERED.replace(false) {
        set_command_line(vec![PROGRAM.to_owned()]);
        library::call(c"leave");
    }
}

/// The command line as `Rscript` makes it.
fn words(context: &TurnContext) -> Vec<String> {
    let mut words: Vec<String> = [PROGRAM, "--no-echo", "--no-restore"].map(str::to_owned).to_vec();
    let file = context.file.as_deref().filter(|_| context.program);
    words.extend(
        file.filter(|file| Path::new(file).is_absolute()).map(|file| format!("--file={file}")),
    );
    if !context.args.is_empty() {
        words.push("--args".to_owned());
        words.extend(context.args.iter().cloned());
    }
    words
}

fn set_command_line(words: Vec<String>) {
    let words: Vec<CString> =
        words.into_iter().filter_map(|word| CString::new(word).ok()).collect();
    let mut pointers: Vec<*mut c_char> =
        words.iter().map(|word| word.as_ptr().cast_mut()).collect();
    let count = c_int::try_from(pointers.len()).unwrap_or_default();
    // SAFETY: R is initialised and this is its main thread. R copies the words, which live until then, and raises no error.
    unsafe { libr::set_command_line(count, pointers.as_mut_ptr()) };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_that_of_rscript() {
        let context = |file: &str, program: bool, args: &[&str]| {
            let args = args.iter().map(|&arg| arg.to_owned()).collect();
            let file = Some(file.to_owned());
            words(&TurnContext { file, args, program, ..TurnContext::default() }).join(" ")
        };
        let all = "R --no-echo --no-restore";
        assert_eq!(
            context("/a/b.R", true, &["-x", "y"]),
            format!("{all} --file=/a/b.R --args -x y")
        );
        assert_eq!(context("/a/b.R", true, &[]), format!("{all} --file=/a/b.R"));
        assert_eq!(context("-", true, &["x"]), format!("{all} --args x"));
        assert_eq!(context("/a/b.R", false, &[]), all);
    }
}
