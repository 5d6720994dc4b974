//! The surroundings of a turn as shell code: arguments, `$0`, directory and variables. The code comes before that of the
//! turn, on the same line, so that line numbers stay.

use std::fmt::Write as _;
use std::path::Path;

use windlass_worker_kit::TurnContext;

/// Longest file that is compared with the code of the turn.
const COMPARED_BYTES_MAX: u64 = 16 * 1024 * 1024;

/// Why bash cannot have these surroundings.
#[derive(Debug, thiserror::Error)]
#[error("bash cannot set the variable {0:?}")]
pub struct NoVariable(String);

/// The code of a turn, and what bash runs before it on its first line.
#[derive(Debug, Default)]
pub struct TurnCode {
    pub before: String,
    pub code: Vec<u8>,
    /// Bash runs the code as it runs a file.
    pub program: bool,
}

impl TurnCode {
    pub fn of_cell(code: Vec<u8>) -> Self {
        Self { code, ..Self::default() }
    }

    /// The code with its surroundings. Where the turn changes something, it notes how the start of the next turn puts it
    /// back.
    pub fn new(context: &TurnContext, code: Vec<u8>) -> Result<Self, NoVariable> {
        let before = changes(context)?;
        if !context.program {
            return Ok(Self { before, code, program: false });
        }
        // A file that the session sees with the same content finds itself in `BASH_SOURCE`.
        let file = file_of(context).filter(|file| holds(Path::new(file), &code));
        let code = match file {
            Some(file) => format!("builtin . {}; exit \"$?\"", quoted(file)).into_bytes(),
            None => [&code[..], b"\nexit \"$?\"\n"].concat(),
        };
        Ok(Self { before, code, program: true })
    }
}

fn changes(context: &TurnContext) -> Result<String, NoVariable> {
    let mut code = String::new();
    for (name, value) in &context.env {
        if !is_name(name) {
            return Err(NoVariable(name.clone()));
        }
        let value = quoted(value);
        let _ = write!(
            code,
            "__windlass_surroundings+=\"builtin unset -v {name};$(builtin declare -p {name} 2>/dev/null || builtin echo :);\"; \
             builtin unset -v {name}; builtin export {name}={value}; "
        );
    }
    if let Some(cwd) = &context.cwd {
        let _ = write!(code, "{SAVE_DIRECTORY}builtin cd -- {} || exit 1; ", quoted(cwd));
    }
    if context.program || !context.args.is_empty() {
        code.push_str(SAVE_ARGUMENTS);
        for argument in &context.args {
            let _ = write!(code, " {}", quoted(argument));
        }
        code.push_str("; ");
    }
    if let Some(file) = file_of(context) {
        let _ = write!(code, "{SAVE_NAME}BASH_ARGV0={}; ", quoted(file));
    }
    if context.program {
        code.push_str(TRAP_SIGTERM);
    }
    if code.is_empty() {
        return Ok(code);
    }
    // Code that ran before may have ended in the middle.
    Ok(format!("__windlass_surroundings='__windlass_surroundings=;'; {code}"))
}

/// The path of the program.
fn file_of(context: &TurnContext) -> Option<&str> {
    let file = context.file.as_deref().filter(|_| context.program)?;
    Path::new(file).is_absolute().then_some(file)
}

const SAVE_DIRECTORY: &str = "__windlass_cwd=$PWD; __windlass_oldpwd=${OLDPWD-}; \
    __windlass_surroundings+='builtin cd -- \"$__windlass_cwd\"; OLDPWD=$__windlass_oldpwd;'; ";

const SAVE_ARGUMENTS: &str = "__windlass_args=(\"$@\"); \
    __windlass_surroundings+='builtin set -- \"${__windlass_args[@]}\";'; builtin set --";

const SAVE_NAME: &str =
    "__windlass_zero=$0; __windlass_surroundings+='BASH_ARGV0=$__windlass_zero;'; ";

/// An interactive bash ignores SIGTERM, but the signal ends a bash that runs a file. A trap that the session already has
/// stays.
const TRAP_SIGTERM: &str = "if [[ ! $(builtin trap -p TERM) ]]; then builtin trap __windlass_term TERM; \
    __windlass_program=1; __windlass_surroundings+='__windlass_term_off;'; fi; ";

fn is_name(name: &str) -> bool {
    let mut chars = name.chars();
    let starts = chars.next().is_some_and(|first| first.is_ascii_alphabetic() || first == '_');
    starts
        && chars.all(|char| char.is_ascii_alphanumeric() || char == '_')
        && !name.starts_with("__windlass_")
}

fn holds(file: &Path, code: &[u8]) -> bool {
    let is_small = std::fs::metadata(file)
        .is_ok_and(|facts| facts.is_file() && facts.len() <= COMPARED_BYTES_MAX);
    is_small && std::fs::read(file).is_ok_and(|bytes| bytes == code)
}

/// The text as one word on one line.
fn quoted(text: &str) -> String {
    let mut word = String::from("$'");
    for char in text.chars() {
        match char {
            '\\' | '\'' => word.extend(['\\', char]),
            '\n' => word.push_str("\\n"),
            '\r' => word.push_str("\\r"),
            char => word.push(char),
        }
    }
    word + "'"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_word_stays_one_word_on_one_line() {
        assert_eq!(quoted("a 'b'\n\\n$x"), "$'a \\'b\\'\\n\\\\n$x'");
    }

    #[test]
    fn only_names_of_variables_are_set() {
        for (name, expected) in [
            ("A_1", true),
            ("_", true),
            ("1A", false),
            ("A-B", false),
            ("", false),
            ("__windlass_x", false),
        ] {
            assert_eq!(is_name(name), expected, "{name}");
        }
    }
}
