//! The shell code of the mechanism: the file that bash reads at its start, and the lines of a turn. All names
//! of the mechanism begin with `__windlass_`.

use std::fmt::Write as _;

/// The descriptors that bash has besides the standard streams, by number.
#[derive(Debug, Clone, Copy)]
pub struct BashDescriptors {
    /// The code of the turn, a file in memory.
    pub code: i32,
    /// The session's standard input.
    pub input: i32,
    /// Where bash reports the end of a turn.
    pub report: i32,
    /// Where bash writes its state when it ends, a file in memory.
    pub state: i32,
    /// The channel of `windlass-tool`. Absent if it could not be made.
    pub tools: Option<i32>,
    /// The standard error of the session, which bash does not have while it starts.
    pub stderr: i32,
    /// The file that bash reads at its start.
    pub start: i32,
}

/// Defines the functions of the mechanism. They use builtins by their full name, because the session's code may
/// define functions with the names of builtins. Only `exec` has to be alone, else its redirections do not stay.
///
/// - `__windlass_end STATUS TURN` reports the end of a turn. Then it switches off what would show between
///   turns: tracing, prompts.
/// - `__windlass_last STATUS TURN NUMBER` does the same and then reports that bash has come so far.
/// - `__windlass_status STATUS` sets `$?`.
/// - `__windlass_again` switches these on again. It is the first command of the next turn.
/// - `__windlass_save STATUS` runs when bash ends, for example after `set -e`, and writes the state.
/// - `__windlass_term` is the trap for SIGTERM while a program runs: it ends the program. It does nothing after the
///   program. `__windlass_term_off` removes it, unless the program has set another trap.
/// - `exit` unwinds to the top level by SIGINT, the only way that works in loops, functions and sourced files.
///   SIGINT makes bash print a line end, so standard error is away for that moment.
const FUNCTIONS: &str = r#"
PS1= PS2= PS4='+ '
builtin unset HISTFILE PROMPT_COMMAND BASH_ENV
builtin set +o history +o histexpand
__windlass_end() {
  if [[ ${__windlass_ended-} != "$2" ]]; then
    if [[ ${__windlass_exit-} ]]; then
      builtin set -- "$__windlass_exit" "$2"
      __windlass_exit=
      if [[ ${__windlass_err-} ]]; then
        if [[ /dev/fd/2 -ef /dev/null ]]; then builtin eval "exec 2>&$__windlass_err"; fi
        builtin eval "exec $__windlass_err>&-"
        __windlass_err=
      fi
      if [[ ${__windlass_int-} ]]; then builtin eval "$__windlass_int"; __windlass_int=; fi
    fi
    __windlass_program=
    if [[ $TERMINAL_MARK ]]; then builtin printf $TERMINAL_MARK "$2" >/dev/tty; fi
    __windlass_again=
    if [[ $- == *[xv]* ]]; then __windlass_again="builtin set -${-//[!xv]}"; fi
    if [[ ${PS1-}${PROMPT_COMMAND-} ]]; then __windlass_again+=' '; fi
    builtin printf 'E %s %s %s\n' "$2" "$1" "${__windlass_again:+again}" >&REPORT
    __windlass_ended=$2
    builtin set +xv
    if [[ $__windlass_again ]]; then
      if [[ ! ${PS1@a} == *r* ]]; then __windlass_ps1=${PS1-}; PS1=; fi
      if [[ ! ${PROMPT_COMMAND@a} == *r* ]]; then
        __windlass_prompt=("${PROMPT_COMMAND[@]}"); builtin unset PROMPT_COMMAND
      fi
    fi
  fi
  __windlass_status "$1"
}
__windlass_last() {
  __windlass_end "$@"
  builtin printf 'F %s %s\n' "$2" "$3" >&REPORT
  __windlass_status "$1"
}
__windlass_status() {
  if [[ $- == *e* ]]; then builtin return 0; fi
  builtin return "$1"
}
__windlass_again() {
  if [[ ! ${PS1@a} == *r* ]]; then PS1=${__windlass_ps1-}; fi
  if [[ ${__windlass_prompt+1} && ! ${PROMPT_COMMAND@a} == *r* ]]; then
    PROMPT_COMMAND=("${__windlass_prompt[@]}")
  fi
  builtin eval "$__windlass_again"
}
__windlass_save() {
  {
    __windlass_flags=$-
    builtin set +exvu
    {
      builtin declare -p
      builtin declare -f
      builtin alias -p
      builtin shopt -p
      builtin trap -p
      builtin umask -p
      builtin printf 'builtin cd -- %q\n' "$PWD"
      builtin set +o
      if [[ $__windlass_flags == *e* ]]; then builtin printf 'builtin set -e\n'; fi
      if [[ $__windlass_flags == *u* ]]; then builtin printf 'builtin set -u\n'; fi
      if [[ $__windlass_flags == *x* ]]; then builtin printf '__windlass_x=x\n'; fi
      builtin printf '__windlass_whole=1\n'
    } >|/dev/fd/STATE
    builtin printf 'X %s\n' "$1" >&REPORT
  } 2>/dev/null
}
__windlass_term() {
  if [[ ${__windlass_program-} ]]; then exit 143; fi
}
__windlass_term_off() {
  if [[ $(builtin trap -p TERM) == *__windlass_term* ]]; then builtin trap - TERM; fi
}
exit() {
  builtin local __windlass_status=$?
  if [[ $BASHPID != "$$" ]]; then builtin exit "${@:-$__windlass_status}"; fi
  if [[ ${1-} ]]; then
    if [[ $1 =~ ^-?[0-9]{1,9}$ ]]; then
      __windlass_status=$(($1 & 255))
    else
      builtin printf 'bash: exit: %s: numeric argument required\n' "$1" >&2
      __windlass_status=2
    fi
  fi
  builtin local __windlass_trap="$(builtin trap -p EXIT)"
  if [[ $__windlass_trap && $__windlass_trap != *__windlass_save* ]]; then
    builtin trap '__windlass_save "$?"' EXIT
    builtin eval "builtin set $__windlass_trap"
    (builtin exit "$__windlass_status") && builtin :
    builtin eval "$3"
  fi
  __windlass_exit=$__windlass_status
  __windlass_int=$(builtin trap -p INT)
  builtin trap - INT
  exec {__windlass_err}>&2 2>/dev/null
  builtin kill -INT "$$"
}
builtin readonly -f __windlass_end __windlass_last __windlass_status __windlass_again __windlass_save exit
builtin readonly -f __windlass_term __windlass_term_off
"#;

const TOOL_FUNCTION: &str = r#"
windlass-tool() { WINDLASS_TOOL_FD=TOOLS builtin command PROGRAM tool "$@"; }
builtin export WINDLASS_TOOL_FD=TOOLS
"#;

/// The end of the file: restores the state that an earlier bash has saved, and reports that bash is ready.
const READY: &str = r#"
builtin trap '__windlass_save "$?"' EXIT
builtin . /dev/fd/STATE >/dev/null 2>&1
exec 2>&STDERR STDERR>&- START>&-
builtin printf 'R %s %s\n' "$BASH_VERSION" "${__windlass_whole-}" >&REPORT
"#;

/// The file that bash reads at its start.
pub fn start_file(fds: BashDescriptors, program: &str, terminal_mark: &str) -> String {
    let terminal_mark = if terminal_mark.is_empty() { "''" } else { terminal_mark };
    let tool_function = match fds.tools {
        Some(tools) => TOOL_FUNCTION.replace("TOOLS", &tools.to_string()),
        None => String::new(),
    };
    format!("{FUNCTIONS}{tool_function}{READY}")
        .replace("$TERMINAL_MARK", terminal_mark)
        .replace("REPORT", &fds.report.to_string())
        .replace("STATE", &fds.state.to_string())
        .replace("STDERR", &fds.stderr.to_string())
        .replace("START", &fds.start.to_string())
        .replace("PROGRAM", &quoted(program))
}

/// The lines that run one turn. The first line puts back what the last turn noted about its surroundings, and runs the
/// code. The second line counts if the first was left by SIGINT or by an error that returns to the top level.
pub fn turn_lines(fds: BashDescriptors, mark: &str, last_status: u8) -> String {
    let BashDescriptors { code, input, .. } = fds;
    // Putting back leaves the status 0.
    let status = match last_status {
        0 => String::new(),
        other => format!("{{ __windlass_status {other}; }} 2>/dev/null; "),
    };
    let mut lines = String::new();
    let _ = writeln!(
        lines,
        "if [[ -r /dev/fd/{code} && -e /dev/fd/{input} ]]; then builtin eval \
         \"${{__windlass_surroundings-}}\" 2>/dev/null || builtin :; {status}builtin . /dev/fd/{code} \
         <&{input}; {{ __windlass_end \"$?\" {mark}; }} 2>/dev/null; else builtin kill -KILL \"$$\"; fi"
    );
    lines + &last_line(mark, 0)[1..]
}

/// A line that ends the turn unless it has ended. It begins with an empty line and has no reserved word: after
/// SIGINT in the middle of a line, bash's parser may not expect one.
pub fn last_line(mark: &str, number: u32) -> String {
    format!("\n__windlass_last \"$?\" {mark} {number} 2>/dev/null\n")
}

/// The commands before the code of a turn, on its first line.
pub const AGAIN: &str = "__windlass_again 2>/dev/null;";

/// The code that runs a file that the session's environment names.
pub fn startup_code(path: &str) -> String {
    format!("builtin . {} </dev/null\n", quoted(path))
}

/// The text as one word of shell code.
fn quoted(text: &str) -> String {
    format!("'{}'", text.replace('\'', r"'\''"))
}
