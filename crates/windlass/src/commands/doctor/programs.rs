//! Checks the programs that sessions may use: which are installed, and whether a session can read them.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use windlass_confine::{Depth, SurveyInput, survey};
use windlass_protocol::kinds;
use windlass_protocol::policy::Policy;

use super::report::ProgramCheck;

/// Languages and tools besides the interpreters of the workers, with the arguments that print the version.
const TOOLS: [(&str, &[&str]); 2] = [("git", &["--version"]), ("uv", &["--version"])];

/// Agents to look for. They are never run: some of them log in or update themselves.
const AGENTS: [&str; 4] = ["codex", "claude", "gemini", "opencode"];

/// How long a program may take to print its version.
const VERSION_WAIT: Duration = Duration::from_secs(5);

pub fn find(site: &SurveyInput) -> Vec<ProgramCheck> {
    let policy = Policy::of(windlass_protocol::policy::Preset::default());
    let hidden = survey(&policy, site, Depth::View).hidden;
    let hides = |path: &Path| {
        let real = std::fs::canonicalize(path).ok()?;
        hidden.keys().find(|hidden| real.starts_with(hidden)).cloned()
    };
    // An interpreter on PATH may be a wrapper script. It prints the path of the real interpreter itself.
    let mut seen: Vec<&str> = vec![""];
    let with_interpreter = kinds::ALL.iter().filter(|kind| {
        let is_new = !seen.contains(&kind.interpreter);
        seen.push(kind.interpreter);
        is_new
    });
    let interpreters = with_interpreter.map(|kind| {
        let found = on_path(kind.interpreter);
        let said = found.as_deref().and_then(|path| first_line(path, kind.version_arguments));
        let (version, path) = match said.as_deref().and_then(|said| said.split_once(' ')) {
            Some((version, real)) => (Some(version.to_owned()), Some(PathBuf::from(real))),
            None => (said, found),
        };
        let hidden_by = path.as_deref().and_then(hides);
        let needed = kind.name == kinds::DEFAULT.name;
        ProgramCheck { name: kind.interpreter, path, version, hidden_by, needed }
    });
    let tools = TOOLS.into_iter().map(|(name, args)| {
        let path = on_path(name);
        let said = path.as_deref().and_then(|path| first_line(path, args));
        let (version, hidden_by) = (said.as_deref().map(number), path.as_deref().and_then(hides));
        ProgramCheck { name, path, version, hidden_by, needed: false }
    });
    let agents = AGENTS.into_iter().map(|name| {
        let path = on_path(name);
        let hidden_by = path.as_deref().and_then(hides);
        ProgramCheck { name, path, version: None, hidden_by, needed: false }
    });
    interpreters.chain(tools).chain(agents).collect()
}

/// The default interpreter of sessions.
pub fn interpreter(programs: &[ProgramCheck]) -> Option<PathBuf> {
    programs.iter().find(|program| program.name == kinds::DEFAULT.interpreter)?.path.clone()
}

fn on_path(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path).map(|dir| dir.join(name)).find(|file| {
        file.metadata().is_ok_and(|meta| meta.is_file() && meta.permissions().mode() & 0o111 != 0)
    })
}

/// The first line that a program prints, if it exits in time and with status 0.
fn first_line(program: &Path, args: &[&str]) -> Option<String> {
    let mut child = Command::new(program)
        .args(args)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .ok()?;
    if !ends(Pid::from_child(&child)) {
        let _ = child.kill();
    }
    // A version fits into the pipe. A program that prints more blocks, and was killed above.
    let output = child.wait_with_output().ok()?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    output.status.success().then(|| text.lines().next().map(str::to_owned)).flatten()
}

fn ends(pid: Pid) -> bool {
    let Ok(process) = pidfd_open(pid, PidfdFlags::empty()) else { return false };
    let Ok(timeout) = Timespec::try_from(VERSION_WAIT) else { return false };
    poll(&mut [PollFd::new(&process, PollFlags::IN)], Some(&timeout)).is_ok_and(|ready| ready > 0)
}

/// The first word that looks like a version, or the whole line.
fn number(line: &str) -> String {
    let is_version = |word: &&str| {
        word.trim_start_matches('v').starts_with(|c: char| c.is_ascii_digit()) && word.contains('.')
    };
    let word = line.split_whitespace().find(is_version).unwrap_or(line);
    word.trim_start_matches('v').split(['(', ',']).next().unwrap_or(word).to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_found_in_the_output_of_programs() {
        for (line, expected) in [
            ("git version 2.43.0", "2.43.0"),
            ("v22.1.0", "22.1.0"),
            ("GNU bash, version 5.2.21(1)-release (x86_64-pc-linux-gnu)", "5.2.21"),
            ("uv 0.5.1 (abc)", "0.5.1"),
            ("something else", "something else"),
        ] {
            assert_eq!(number(line), expected);
        }
    }
}
