//! The code that runs an attack's program in a session, for each kind of worker that attacks run from. The last
//! line that it prints has the exit code of the program.

use super::program::{Attack, Judged, Language, Play, SessionKind, WorkspaceKind};
use super::verdict::ENDED;

/// How long one attack may take.
pub(super) const ATTACK_S: u64 = 20;

/// The kind of worker of the session that an attack runs in.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum AttackWorker {
    #[default]
    Python,
    Shell,
    R,
    Node,
}

impl AttackWorker {
    pub const ALL: [Self; 4] = [Self::Python, Self::Shell, Self::R, Self::Node];

    /// The name by which a session requests the kind.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Python => "python",
            Self::Shell => "shell",
            Self::R => "r",
            Self::Node => "node",
        }
    }

    pub fn parse(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|worker| worker.as_str() == text)
    }

    /// Whether an attack can run from this kind: a program of its own in one turn of one session. The others
    /// act within the Python worker, or take several sessions.
    pub fn can_play(self, attack: &Attack) -> bool {
        self == Self::Python
            || (attack.language != Language::PythonInWorker
                && attack.play == Play::Once
                && attack.session == SessionKind::Shared
                && attack.workspace == WorkspaceKind::Project
                && attack.judged != Judged::ByItsEnd
                && attack.limits.is_empty())
    }

    /// Code that does nothing.
    pub(super) fn nothing(self) -> &'static str {
        match self {
            Self::Python => "None",
            Self::Shell => ":",
            Self::R => "invisible(0)",
            Self::Node => "void 0",
        }
    }

    /// Code that runs the program at `path`, relative to the workspace.
    pub(super) fn code(self, attack: &Attack, path: &str) -> String {
        let words = match attack.language {
            Language::C => vec![format!("./{path}")],
            // The first that the session may run.
            _ => vec!["python3".to_owned(), path.to_owned()],
        };
        match self {
            Self::Python => python(attack, path),
            Self::Shell => shell(&words),
            Self::R => r(&words),
            Self::Node => node(&words),
        }
    }
}

fn shell(words: &[String]) -> String {
    let program = words.join(" ");
    format!(
        "timeout -s KILL {ATTACK_S} {program} </dev/null 2>&1; code=$?; echo\n\
         if [ $code -gt 128 ]; then code=$((128 - code)); fi; echo \"{ENDED}$code\""
    )
}

fn r(words: &[String]) -> String {
    let (program, arguments) = words.split_first().expect("an attack has a program");
    format!(
        r#"
local({{
    out <- suppressWarnings(system2({program:?}, c({arguments}), stdout = TRUE, stderr = TRUE,
                                    stdin = "/dev/null", timeout = {ATTACK_S}))
    code <- attr(out, "status")
    if (is.null(code)) code <- 0L
    if (code > 128L) code <- 128L - code
    cat(out, sep = "\n")
    cat("\n{ENDED}", code, "\n", sep = "")
}})
"#,
        arguments = quoted(arguments),
    )
}

fn node(words: &[String]) -> String {
    let (program, arguments) = words.split_first().expect("an attack has a program");
    format!(
        r#"
{{
    const ran = require('child_process').spawnSync({program:?}, [{arguments}], {{
        stdio: ['ignore', 'pipe', 'pipe'], timeout: {ATTACK_S}000, killSignal: 'SIGKILL' }});
    const code = ran.status ?? -require('os').constants.signals[ran.signal];
    console.log(`${{ran.stdout}}${{ran.stderr}}\n{ENDED}${{code}}`);
}}
"#,
        arguments = quoted(arguments),
    )
}

fn quoted(words: &[String]) -> String {
    words.iter().map(|word| format!("{word:?}")).collect::<Vec<_>>().join(", ")
}

/// Code that runs the program in the session's worker and prints its exit code.
fn python(attack: &Attack, path: &str) -> String {
    if attack.language == Language::PythonInWorker {
        return format!(
            r#"
import os, sys
sys.path.insert(0, os.path.abspath("attack"))
try:
    exec(compile(open("{path}").read(), "{path}", "exec"), {{"__name__": "__main__"}})
except SystemExit:
    pass
finally:
    del sys.path[0]
    sys.modules.pop("attack", None)
print("{ENDED}0")
"#
        );
    }
    let program = match attack.language {
        Language::C => format!("[{path:?}]"),
        _ => format!("[sys.executable, {path:?}]"),
    };
    // `close_fds=False`: the subprocess inherits every descriptor that it can.
    format!(
        r#"
import subprocess, sys
try:
    ran = subprocess.run({program}, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                         stderr=subprocess.STDOUT, close_fds=False, timeout={ATTACK_S})
    print(ran.stdout.decode(errors="replace"))
    print("{ENDED}" + str(ran.returncode))
except subprocess.TimeoutExpired as late:
    print((late.stdout or b"").decode(errors="replace"))
    print("{ENDED}after {ATTACK_S} s")
"#
    )
}
