//! `windlass run`: runs one file of code as a program, or code of the command line as a cell, and shows the
//! output live.

use std::ffi::OsString;
use std::io::{IsTerminal, Read};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, anyhow, bail};
use windlass_client::{Client, fresh_turn_id};
use windlass_protocol::api::{CreateSession, Session, SubmitTurn};
use windlass_protocol::kinds::WorkerKind;
use windlass_protocol::policy::PolicyRequest;
use windlass_protocol::turn::TurnContext;
use windlass_protocol::worker::CONTEXTS;
use windlass_protocol::{SessionId, kinds};

use crate::answers::AnswerReader;
use crate::duration::Timeout;
use crate::follow::{CtrlC, FollowEnd, Person, SessionFollower, Shown};
use crate::package_options::PackageOptions;
use crate::policy_options::PolicyOptions;
use crate::session_guard::{AfterCommand, SessionGuard};
use crate::session_options::NewSessionOptions;
use crate::terminal::Terminal;
use crate::tool_lines::ToolLines;
use crate::worker_choice::WorkerOptions;
use crate::workspace::WorkspaceChoice;
use crate::{duration, exit, node_access};

/// Idle timeout of a session that `run` or `repl` creates without --keep. Normally the command ends the
/// session; the timeout is for a command that was killed.
const IDLE: Duration = Duration::from_secs(60);

/// Run code and show its output
#[derive(Debug, clap::Args)]
#[command(override_usage = "windlass run [OPTIONS] (FILE | - | -c CODE) [ARGS]...")]
#[command(after_help = "\
The code runs in a new, confined session in the current directory; `windlass policy explain`
describes the confinement. If the current directory is a home or holds programs, the node creates
a separate directory for the session. Ctrl-C interrupts the code. A second Ctrl-C detaches and
leaves the code running.

If anything else ends the command (SIGTERM, a closed terminal, a closed pipe), its session ends
too. With --keep the session stays.

FILE runs as the interpreter runs it: with its arguments, `__file__`, imports beside it, its threads
and its `atexit` functions; values are not shown. That holds for Python, bash, R and Node.js; with
other workers FILE is a cell, and arguments are an error. Everything after FILE belongs to the
program, so the options of this command come before FILE. The code of -c and of standard input is
a cell: the value of its last expression is shown.

Exit code: that of the code; 124 deadline passed, 130 interrupted, 128 and the number of the signal
that ended the interpreter, 70 lost for another reason; 129, 143 and 141 when a closed terminal,
SIGTERM or a closed pipe ended the command.

Examples:
  windlass run --deadline 5m job.py
  windlass run convert.py --width 80 in.txt    the program gets --width 80 in.txt
  echo 'input(\"name? \")' | windlass run -
  windlass run build.sh                        the extension or the `#!` line selects the worker
  windlass run -c 'make test' --worker shell
  windlass run -c 'import sys; sys.argv' -- -x the code gets -x
  windlass run --keep setup.py                 keep the session for later commands
  windlass run --session SESSION more.py       run in that session
  windlass run --allow-packages setup.py       pip and uv work in that session
  windlass run --allow-host example.org --memory 1G get.py")]
pub struct Args {
    /// The file to run, or - for standard input, and the arguments of the program. With -c all of them are
    /// arguments
    #[arg(value_name = "FILE", num_args = 1.., trailing_var_arg = true)]
    words: Vec<OsString>,
    /// Run this code instead of a file
    #[arg(short = 'c', value_name = "CODE")]
    code: Option<String>,
    /// Run in this session instead of a new one
    #[arg(
        long,
        value_name = "ID",
        conflicts_with_all = [
            "workspace", "interpreter", "NewSessionOptions", "WorkerOptions", "PackageOptions", "PolicyOptions"
        ]
    )]
    session: Option<SessionId>,
    /// The workspace of the new session; default: the current directory, unless it is a home. With a tenant's token: a
    /// name, or by default a directory that the node makes
    #[arg(long, value_name = "DIR")]
    workspace: Option<PathBuf>,
    /// The interpreter, or the directory of a virtual environment
    #[arg(long, visible_alias = kinds::DEFAULT.name, value_name = "PATH")]
    interpreter: Option<PathBuf>,
    /// Stop the code after this long, for example 30s or 5m
    #[arg(long, value_name = "DURATION", value_parser = duration::parse)]
    deadline: Option<Duration>,
    #[command(flatten)]
    life: NewSessionOptions,
    /// Show each call of a host tool on standard error as it begins and ends: its name, sizes, duration and error.
    /// Arguments and results are shown by the program that offers the tool
    #[arg(long, short)]
    verbose: bool,
    #[command(flatten)]
    worker: WorkerOptions,
    #[command(flatten)]
    packages: PackageOptions,
    #[command(flatten)]
    policy: PolicyOptions,
}

pub async fn run(args: Args, terminal: &mut Terminal) -> anyhow::Result<ExitCode> {
    let code = args.read_code()?;
    let guard = SessionGuard::start()?;
    let ran = guard.unless_exiting(run_code(&args, code, &guard, terminal)).await;
    guard.end(ran).await
}

impl Args {
    /// Whether the command line names no code at all.
    pub fn names_no_code(&self) -> bool {
        self.words.is_empty() && self.code.is_none()
    }

    /// The file to run. `-` is standard input.
    fn file(&self) -> Option<&Path> {
        let first = self.words.first().filter(|_| self.code.is_none());
        first.map(Path::new)
    }

    fn is_from_stdin(&self) -> bool {
        self.file().is_some_and(|file| file.as_os_str() == "-")
    }

    fn is_program(&self) -> bool {
        self.file().is_some() && !self.is_from_stdin()
    }

    /// The arguments of the code.
    fn arguments(&self) -> anyhow::Result<Vec<String>> {
        let words = &self.words[usize::from(self.code.is_none()).min(self.words.len())..];
        let text = |word: &OsString| {
            let text = word.to_str().with_context(|| format!("{word:?} is not UTF-8"))?;
            Ok(text.to_owned())
        };
        words.iter().map(text).collect()
    }

    /// What the code is given besides itself. `None`: its worker takes nothing else.
    fn context(&self, taken: bool, worker: &str) -> anyhow::Result<Option<Box<TurnContext>>> {
        let args = self.arguments()?;
        if !taken {
            let count = args.len();
            if count > 0 {
                bail!(
                    "the worker {worker} gives code no arguments, and there are {count}; options of \
                     `windlass run` come before FILE"
                );
            }
            return Ok(None);
        }
        let file = match self.file() {
            Some(file) if self.is_program() => Some(text(&std::path::absolute(file)?)?),
            Some(_) => Some("-".to_owned()),
            None => None,
        };
        let program = self.is_program();
        Ok(Some(Box::new(TurnContext { file, args, program, ..TurnContext::default() })))
    }

    fn read_code(&self) -> anyhow::Result<String> {
        match self.file() {
            None => Ok(self.code.clone().unwrap_or_default()),
            Some(_) if self.is_from_stdin() => {
                let mut code = String::new();
                std::io::stdin().read_to_string(&mut code).context("cannot read standard input")?;
                Ok(code)
            }
            Some(file) if file.as_os_str().is_empty() => {
                bail!("FILE is empty; give the path of a file, - for standard input, or -c CODE")
            }
            Some(file) => {
                let bytes = std::fs::read(file)
                    .with_context(|| format!("cannot read {}", file.display()))?;
                let text = String::from_utf8(bytes);
                text.map_err(|_| anyhow!("{} is not a text file in UTF-8", file.display()))
            }
        }
    }
}

async fn run_code(
    args: &Args,
    code: String,
    guard: &SessionGuard,
    terminal: &mut Terminal,
) -> anyhow::Result<ExitCode> {
    let policy = args.policy.request()?;
    args.policy.note_missing(terminal)?;
    let client = node_access::connect_or_start().await?;
    let (session, context) = match &args.session {
        Some(id) => {
            let session = client.session(id).await?;
            let context = args.context(takes_context(&session), &session.kind)?;
            (session, context)
        }
        None => {
            let workspace =
                WorkspaceChoice::choose(&client, args.workspace.as_deref(), terminal).await?;
            let worker = args.worker.choose(&client, args.file(), &code).await?;
            let kind = worker.as_deref().unwrap_or(kinds::DEFAULT.name);
            let taken = kinds::find(kind).is_some_and(WorkerKind::takes_context);
            let context = args.context(taken, kind)?;
            let draft = SessionDraft {
                workspace,
                worker,
                policy,
                interpreter: args.interpreter.as_deref(),
                life: &args.life,
                worker_options: &args.worker,
                packages: &args.packages,
            };
            (draft.create(&client, guard, terminal).await?, context)
        }
    };
    let submit = SubmitTurn {
        id: Some(fresh_turn_id()),
        code,
        context,
        deadline_ms: args.deadline.map(duration::millis),
        ..SubmitTurn::default()
    };
    let turn = client.submit_turn(&session.id, &submit).await?;
    let answers =
        answers(args.is_from_stdin())?.map(|answers| match session.kind == kinds::DEFAULT.name {
            true => answers.in_blocks(),
            false => answers,
        });
    let mut person = Person::new(terminal, answers)?;
    guard.leave_ctrl_c_to_turn();
    let shown = if args.is_program() { Shown::Program } else { Shown::Usual };
    let tools = args.verbose.then(ToolLines::default);
    let afterwards = match args.life.keep || args.session.is_some() {
        true => AfterCommand::KeepSession,
        false => AfterCommand::EndSession,
    };
    let mut follower = SessionFollower::new(&client, &session)
        .showing(shown)
        .with_afterwards(afterwards)
        .with_tool_lines(tools);
    let followed = follower.turn(&turn, CtrlC::InterruptThenDetach, &mut person).await?;
    finish(args, &client, &session.id, followed, guard, terminal).await
}

/// Whether a session's worker takes the context of a turn. Until the worker is ready, its kind tells.
fn takes_context(session: &Session) -> bool {
    match &session.capabilities {
        Some(capabilities) => capabilities.iter().any(|capability| capability == CONTEXTS),
        None => kinds::find(&session.kind).is_some_and(WorkerKind::takes_context),
    }
}

/// Whether to keep the new session after the command, and the idle timeout to create it with.
pub fn after_command(keep: bool, idle: Option<Timeout>) -> (AfterCommand, Option<u64>) {
    match keep {
        true => (AfterCommand::KeepSession, idle.map(Timeout::seconds)),
        false => (AfterCommand::EndSession, Some(IDLE.as_secs())),
    }
}

/// What `run` and `repl` create a session from.
#[derive(Debug)]
pub struct SessionDraft<'a> {
    pub workspace: WorkspaceChoice,
    /// The kind of worker; absent: the node's default.
    pub worker: Option<String>,
    pub policy: Option<PolicyRequest>,
    pub interpreter: Option<&'a Path>,
    pub life: &'a NewSessionOptions,
    pub worker_options: &'a WorkerOptions,
    pub packages: &'a PackageOptions,
}

impl SessionDraft<'_> {
    /// Creates the session. It ends with the command, unless an option keeps it.
    pub async fn create(
        self,
        client: &Client,
        guard: &SessionGuard,
        terminal: &mut Terminal,
    ) -> anyhow::Result<Session> {
        let environment = self.packages.environment(client, self.interpreter, terminal).await?;
        let named = self.interpreter.filter(|_| environment.is_none());
        let (afterwards, idle_s) = after_command(self.life.keep, self.life.idle);
        let wanted = CreateSession {
            terminal: self.worker_options.terminal(self.worker.as_deref()),
            worker: self.worker,
            environment,
            allow_packages: self.packages.allow_packages,
            idle_s,
            durability: self.life.durability(),
            ..CreateSession::default()
        };
        let create = request_in(&self.workspace, named, self.policy, wanted)?;
        let made = async { Ok(client.create_session(&create).await?.session) };
        guard.create(afterwards, made).await
    }
}

/// The request for a session in a workspace.
pub fn request_in(
    workspace: &WorkspaceChoice,
    named: Option<&Path>,
    policy: Option<PolicyRequest>,
    wanted: CreateSession,
) -> anyhow::Result<CreateSession> {
    Ok(CreateSession {
        interpreter: named.map(interpreter).transpose()?,
        policy: workspace.required(policy)?,
        workspace: workspace.directory().map(text).transpose()?,
        ..wanted
    })
}

/// Makes a relative path absolute, because the node has another working directory. Leaves a bare name for
/// the node to look up on its PATH.
fn interpreter(named: &Path) -> anyhow::Result<String> {
    let bare = named.components().count() == 1 && !named.is_dir();
    if bare { text(named) } else { text(&std::path::absolute(named)?) }
}

fn text(path: &Path) -> anyhow::Result<String> {
    let text = path.to_str().with_context(|| format!("{} is not UTF-8", path.display()))?;
    Ok(text.to_owned())
}

/// Where answers to prompts come from: standard input, unless it delivers the code.
fn answers(code_from_stdin: bool) -> anyhow::Result<Option<AnswerReader>> {
    if !code_from_stdin {
        return Ok(Some(AnswerReader::from_stdin()?));
    }
    // Without a terminal that shows the prompt, there are no answers.
    let visible = std::io::stderr().is_terminal();
    Ok(if visible { AnswerReader::from_controlling_terminal().ok() } else { None })
}

async fn finish(
    args: &Args,
    client: &Client,
    session: &SessionId,
    followed: FollowEnd,
    guard: &SessionGuard,
    terminal: &mut Terminal,
) -> anyhow::Result<ExitCode> {
    let code = match followed {
        FollowEnd::TurnEnded { outcome, exit_code } => exit::of_turn(outcome, exit_code),
        FollowEnd::Detached => {
            guard.keep_session();
            terminal.note(&format!(
                "detached; the turn keeps running. Follow it with: windlass attach {session}; \
                 end it with: windlass kill {session}"
            ))?;
            if !args.life.keep && args.session.is_none() {
                let idle = duration::show(IDLE);
                terminal.note(&format!(
                    "the session ends {idle} after the turn, unless a client attaches; \
                     its output stays: windlass logs {session}"
                ))?;
            }
            return Ok(ExitCode::from(exit::DETACHED));
        }
        FollowEnd::SessionEnded(reason) => {
            terminal.note(&format!("session {session} ended: {reason:?}"))?;
            return Ok(ExitCode::from(exit::LOST));
        }
    };
    if args.life.keep {
        terminal.note(&format!(
            "session {session} stays; continue with: windlass repl --session {session}"
        ))?;
    } else {
        guard.close(client).await?;
    }
    Ok(ExitCode::from(code))
}

#[cfg(test)]
mod tests {
    use clap::Parser;
    use windlass_protocol::api::Durability;

    use super::*;

    #[derive(Debug, clap::Parser)]
    struct Line {
        #[command(flatten)]
        args: Args,
    }

    /// The file, the arguments, the deadline in seconds and the code of a command line.
    fn parsed(line: &[&str]) -> Option<(String, String, u64, String)> {
        let args = Line::try_parse_from(line).ok()?.args;
        let file = args.file().map(|file| file.display().to_string()).unwrap_or_default();
        let deadline = args.deadline.map_or(0, |deadline| deadline.as_secs());
        Some((file, args.arguments().ok()?.join(","), deadline, args.code.unwrap_or_default()))
    }

    #[test]
    fn what_follows_the_file_belongs_to_the_program() {
        for (line, file, args, deadline, code) in [
            (&["run", "a.py"][..], "a.py", "", 0, ""),
            (
                &["run", "a.py", "x", "--deadline", "5m", "-c", "-"],
                "a.py",
                "x,--deadline,5m,-c,-",
                0,
                "",
            ),
            (&["run", "--deadline", "5m", "a.py", "--help"], "a.py", "--help", 300, ""),
            (&["run", "-", "--x", "y"], "-", "--x,y", 0, ""),
            (&["run", "a.py", "--", "x"], "a.py", "--,x", 0, ""),
            (&["run", "-c", "1", "--deadline", "1s"], "", "", 1, "1"),
            (&["run", "-c", "1", "x", "--y"], "", "x,--y", 0, "1"),
            (&["run", "-c", "1", "--", "-y"], "", "-y", 0, "1"),
        ] {
            let expected = (file.into(), args.into(), deadline, code.into());
            assert_eq!(parsed(line), Some(expected), "{line:?}");
        }
        let names_no_code =
            |line: &[&str]| Line::try_parse_from(line).unwrap().args.names_no_code();
        assert!(names_no_code(&["run"]) && names_no_code(&["run", "--keep"]));
        assert!(!names_no_code(&["run", "-c", ""]) && !names_no_code(&["run", ""]));
        assert_eq!(parsed(&["run", "--nonsense", "a.py"]), None);
        assert_eq!(parsed(&["run", "--session", "s", "--durability", "local", "a.py"]), None);
    }

    #[test]
    fn turns_are_told_once_the_journal_has_them_unless_the_option_says_otherwise() {
        for (line, expected) in [
            (&["run", "a.py"][..], Durability::Local),
            (&["run", "--durability", "local", "a.py"], Durability::Local),
            (&["run", "--durability", "replicated", "a.py"], Durability::Replicated),
        ] {
            let args = Line::try_parse_from(line).unwrap().args;
            assert_eq!(args.life.durability(), expected, "{line:?}");
        }
    }

    #[test]
    fn an_interpreter_path_is_made_absolute_and_a_bare_name_is_not() {
        assert_eq!(interpreter(Path::new("python3")).unwrap(), "python3");
        assert_eq!(interpreter(Path::new("/usr/bin/python3")).unwrap(), "/usr/bin/python3");
        let here = std::env::current_dir().unwrap();
        let expected = here.join("venv/bin/python");
        assert_eq!(interpreter(Path::new("venv/bin/python")).unwrap(), expected.to_str().unwrap());
        assert_eq!(interpreter(Path::new("src")).unwrap(), here.join("src").to_str().unwrap());
    }
}
