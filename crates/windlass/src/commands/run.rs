//! `windlass run`: runs one file of code as one turn and shows its output live.

use std::io::{IsTerminal, Read};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context;
use windlass_client::{Client, fresh_turn_id};
use windlass_protocol::api::{CreateSession, Session, SubmitTurn};
use windlass_protocol::policy::PolicyRequest;
use windlass_protocol::{SessionId, kinds};

use crate::answers::AnswerReader;
use crate::duration::Timeout;
use crate::follow::{CtrlC, FollowEnd, Person, SessionFollower};
use crate::package_options::PackageOptions;
use crate::policy_options::PolicyOptions;
use crate::session_guard::{AfterCommand, SessionGuard};
use crate::terminal::Terminal;
use crate::worker_choice::WorkerOptions;
use crate::workspace::WorkspaceChoice;
use crate::{duration, exit, node_access};

/// Idle timeout of a session that `run` or `repl` creates without --keep. Normally the command ends the
/// session; the timeout is for a command that was killed.
const IDLE: Duration = Duration::from_secs(60);

/// Run code and show its output
#[derive(Debug, clap::Args)]
#[command(after_help = "\
The code runs in a new, confined session in the current directory; `windlass policy explain`
describes the confinement. If the current directory is a home or holds programs, the node creates
a separate directory for the session. Ctrl-C interrupts the code. A second Ctrl-C detaches and
leaves the code running.

If anything else ends the command (SIGTERM, a closed terminal, a closed pipe), its session ends
too. With --keep the session stays.

Exit code: 0 ok, 1 error, 130 interrupted, 124 deadline passed, 70 lost; 129, 143 and 141 when a
closed terminal, SIGTERM or a closed pipe ended the command.

Examples:
  windlass run job.py --deadline 5m
  echo 'input(\"name? \")' | windlass run -
  windlass run build.sh                    the extension or the `#!` line selects the worker
  windlass run -c 'make test' --worker shell
  windlass run setup.py --keep             keep the session for later commands
  windlass run more.py --session SESSION   run in that session
  windlass run get.py --allow-host pypi.org --memory 1G")]
pub struct Args {
    /// The file to run, or - for standard input
    #[arg(value_name = "FILE", required_unless_present = "code")]
    file: Option<PathBuf>,
    /// Run this code instead of a file
    #[arg(short = 'c', value_name = "CODE", conflicts_with = "file")]
    code: Option<String>,
    /// Run in this session instead of a new one
    #[arg(
        long,
        value_name = "ID",
        conflicts_with_all = [
            "workspace", "interpreter", "keep", "idle", "WorkerOptions", "PackageOptions", "PolicyOptions"
        ]
    )]
    session: Option<SessionId>,
    /// The workspace of the new session; default: the current directory, unless it is a home
    #[arg(long, value_name = "DIR")]
    workspace: Option<PathBuf>,
    /// The interpreter, or the directory of a virtual environment
    #[arg(long, visible_alias = kinds::DEFAULT.name, value_name = "PATH")]
    interpreter: Option<PathBuf>,
    /// Stop the code after this long, for example 30s or 5m
    #[arg(long, value_name = "DURATION", value_parser = duration::parse)]
    deadline: Option<Duration>,
    /// Keep the new session when the command ends
    #[arg(long)]
    keep: bool,
    /// End the kept session after this long without a client and without a turn, or `never`; default: the
    /// node's setting, usually 24h
    #[arg(long, value_name = "DURATION", value_parser = duration::parse_timeout, requires = "keep")]
    idle: Option<Timeout>,
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
    fn is_from_stdin(&self) -> bool {
        self.file.as_ref().is_some_and(|file| file.as_os_str() == "-")
    }

    fn read_code(&self) -> anyhow::Result<String> {
        match &self.file {
            None => Ok(self.code.clone().unwrap_or_default()),
            Some(_) if self.is_from_stdin() => {
                let mut code = String::new();
                std::io::stdin().read_to_string(&mut code).context("cannot read standard input")?;
                Ok(code)
            }
            Some(file) => std::fs::read_to_string(file)
                .with_context(|| format!("cannot read {}", file.display())),
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
    let client = node_access::connect_or_start().await?;
    let session = match &args.session {
        Some(id) => client.session(id).await?,
        None => {
            let workspace = WorkspaceChoice::choose(args.workspace.as_deref(), terminal)?;
            let (afterwards, idle_s) = after_command(args.keep, args.idle);
            let worker = args.worker.choose(&client, args.file.as_deref(), &code).await?;
            let named = args.interpreter.as_deref();
            let environment = args.packages.environment(&client, named, terminal).await?;
            let named = named.filter(|_| environment.is_none());
            let terminal = args.worker.terminal(worker.as_deref());
            let wanted =
                CreateSession { worker, environment, terminal, idle_s, ..CreateSession::default() };
            let made = create_in(&client, workspace, named, policy, wanted);
            guard.create(afterwards, made).await?
        }
    };
    let submit = SubmitTurn {
        id: Some(fresh_turn_id()),
        code,
        deadline_ms: args.deadline.map(duration::millis),
        ..SubmitTurn::default()
    };
    let turn = client.submit_turn(&session.id, &submit).await?;
    let mut person = Person::new(terminal, answers(args.is_from_stdin())?)?;
    guard.leave_ctrl_c_to_turn();
    let mut follower = SessionFollower::new(&client, &session);
    let followed = follower.turn(&turn, CtrlC::InterruptThenDetach, &mut person).await?;
    finish(args, &client, &session.id, followed, guard, terminal).await
}

/// Whether to keep the new session after the command, and the idle timeout to create it with.
pub fn after_command(keep: bool, idle: Option<Timeout>) -> (AfterCommand, Option<u64>) {
    match keep {
        true => (AfterCommand::KeepSession, idle.map(Timeout::seconds)),
        false => (AfterCommand::EndSession, Some(IDLE.as_secs())),
    }
}

/// Creates a session in the workspace. `wanted` has its other settings.
pub async fn create_in(
    client: &Client,
    workspace: WorkspaceChoice,
    named: Option<&Path>,
    policy: Option<PolicyRequest>,
    wanted: CreateSession,
) -> anyhow::Result<Session> {
    let create = request_in(&workspace, named, policy, wanted)?;
    Ok(client.create_session(&create).await?.session)
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
    let outcome = match followed {
        FollowEnd::TurnEnded(outcome) => outcome,
        FollowEnd::Detached => {
            guard.keep_session();
            terminal.note(&format!(
                "detached; the turn keeps running. Follow it with: windlass attach {session}; \
                 end it with: windlass kill {session}"
            ))?;
            if !args.keep && args.session.is_none() {
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
    if args.keep {
        terminal.note(&format!(
            "session {session} stays; continue with: windlass repl --session {session}"
        ))?;
    } else {
        guard.close(client).await?;
    }
    Ok(exit::code(outcome))
}

#[cfg(test)]
mod tests {
    use super::*;

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
