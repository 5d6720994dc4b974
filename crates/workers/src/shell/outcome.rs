//! What the exit status of a turn says.

use std::os::unix::process::ExitStatusExt;
use std::process::{Command, ExitStatus};

use rustix::process::Signal;
use windlass_worker_kit::WorkerOutcome;

/// Maximum bytes of code that are checked for a syntax error a second time.
const CHECKED_BYTES_MAX: u64 = 1024 * 1024;

/// How a turn ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ShellTurnEnd {
    pub outcome: WorkerOutcome,
    /// Name and message.
    pub error: Option<(&'static str, String)>,
    /// The exit status of the code. Absent if the code did not run to an end.
    pub exit_code: Option<u8>,
}

impl ShellTurnEnd {
    pub const INTERRUPTED: Self =
        Self { outcome: WorkerOutcome::Interrupted, error: None, exit_code: None };
    pub const OK: Self = Self { outcome: WorkerOutcome::Ok, error: None, exit_code: Some(0) };

    pub fn error(name: &'static str, message: String) -> Self {
        Self { outcome: WorkerOutcome::Error, error: Some((name, message)), exit_code: None }
    }

    /// The end of a turn whose bash ended like this without saving its state.
    pub fn lost(ended: ExitStatus) -> Self {
        let cause = described_end(ended);
        let message = match ended.signal() {
            Some(_) => format!("bash ended ({cause}) and its state is lost"),
            None => format!("bash ended ({cause}) and its state is lost: exec replaced bash"),
        };
        Self { exit_code: signal_status(ended), ..Self::error("ShellLost", message) }
    }

    /// The end of a turn with this exit status.
    pub fn of_status(status: u8, was_interrupted: bool) -> Self {
        match status {
            0 => Self::OK,
            _ if was_interrupted => Self { exit_code: Some(status), ..Self::INTERRUPTED },
            _ => {
                let exit_code = Some(status);
                Self { exit_code, ..Self::error("ExitStatus", described(status)) }
            }
        }
    }
}

/// An exit status in words. Bash gives 128 and the signal's number for a program that a signal has ended.
pub fn described(status: u8) -> String {
    match status.checked_sub(128).and_then(signal_name) {
        Some(name) => format!("exit status {status} (killed by {name})"),
        None => format!("exit status {status}"),
    }
}

/// How bash ended, in words.
pub fn described_end(ended: ExitStatus) -> String {
    match (ended.code(), ended.signal()) {
        (Some(code), _) => format!("exit status {code}"),
        (_, Some(signal)) => match u8::try_from(signal).ok().and_then(signal_name) {
            Some(name) => format!("killed by {name}"),
            None => format!("killed by signal {signal}"),
        },
        _ => "no status".to_owned(),
    }
}

/// The exit status that a shell gives for a process that a signal has ended: 128 and the signal's number. `None`
/// if no signal has ended the process.
pub fn signal_status(ended: ExitStatus) -> Option<u8> {
    128_u8.checked_add(u8::try_from(ended.signal()?).ok()?)
}

pub fn signal_name(number: u8) -> Option<&'static str> {
    const NAMES: [(Signal, &str); 15] = [
        (Signal::HUP, "SIGHUP"),
        (Signal::INT, "SIGINT"),
        (Signal::QUIT, "SIGQUIT"),
        (Signal::ILL, "SIGILL"),
        (Signal::TRAP, "SIGTRAP"),
        (Signal::ABORT, "SIGABRT"),
        (Signal::BUS, "SIGBUS"),
        (Signal::FPE, "SIGFPE"),
        (Signal::KILL, "SIGKILL"),
        (Signal::SEGV, "SIGSEGV"),
        (Signal::PIPE, "SIGPIPE"),
        (Signal::ALARM, "SIGALRM"),
        (Signal::TERM, "SIGTERM"),
        (Signal::XCPU, "SIGXCPU"),
        (Signal::XFSZ, "SIGXFSZ"),
    ];
    NAMES.iter().find(|(signal, _)| signal.as_raw() == i32::from(number)).map(|(_, name)| *name)
}

/// The message of the syntax error in the code, if there is one. Bash gives the status 2 for it, which other
/// errors have too, so the code is parsed once more. `code` is the path of the code, which holds
/// `code_bytes`.
pub fn syntax_error(code: &str, code_bytes: u64) -> Option<String> {
    if code_bytes > CHECKED_BYTES_MAX {
        return None;
    }
    let mut bash = Command::new("bash");
    bash.args(["--noprofile", "--norc", "-O", "extglob", "-n", code]).env_clear();
    let checked = bash.stdin(std::process::Stdio::null()).output().ok()?;
    if checked.status.success() {
        return None;
    }
    let text = String::from_utf8_lossy(&checked.stderr);
    let line = text.lines().find(|line| line.contains("syntax error") || line.contains("EOF"))?;
    Some(line.strip_prefix(code).unwrap_or(line).trim_start_matches(": ").to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_status_is_described_with_its_signal() {
        for (status, text) in [
            (1, "exit status 1"),
            (127, "exit status 127"),
            (128, "exit status 128"),
            (139, "exit status 139 (killed by SIGSEGV)"),
            (137, "exit status 137 (killed by SIGKILL)"),
            (255, "exit status 255"),
        ] {
            assert_eq!(described(status), text);
        }
    }

    #[test]
    fn a_bash_that_a_signal_has_ended_has_the_status_of_the_signal() {
        for (raw, status, text) in [
            (0, None, "bash ended (exit status 0) and its state is lost: exec replaced bash"),
            (5 << 8, None, "bash ended (exit status 5) and its state is lost: exec replaced bash"),
            (9, Some(137), "bash ended (killed by SIGKILL) and its state is lost"),
            // With a core dump.
            (11 | 0x80, Some(139), "bash ended (killed by SIGSEGV) and its state is lost"),
            (34, Some(162), "bash ended (killed by signal 34) and its state is lost"),
        ] {
            let end = ShellTurnEnd::lost(ExitStatus::from_raw(raw));
            assert_eq!(end.exit_code, status, "{text}");
            assert_eq!(end.error, Some(("ShellLost", text.to_owned())));
        }
    }
}
