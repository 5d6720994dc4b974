//! `windlass run`: one piece of code as one turn, shown as it runs.

use std::io::{IsTerminal, Read};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context;
use windlass_client::{Client, fresh_turn_id};
use windlass_protocol::api::{CreateSession, Session, SubmitTurn};
use windlass_protocol::policy::PolicyRequest;
use windlass_protocol::{SessionId, kinds};

use crate::answers::Answers;
use crate::duration::Timeout;
use crate::follow::{CtrlC, Followed, Follower, Person};
use crate::leaving::{Afterwards, Leaving};
use crate::policy_options::PolicyOptions;
use crate::terminal::Terminal;
use crate::workspace::Workspace;
use crate::{duration, exit, node_access};

/// How long a session of `run` or `repl` that is not kept stays without its command and without a turn.
/// The command ends it, unless it is killed.
const IDLE: Duration = Duration::from_secs(60);

/// Run a file of code and show what it says
#[derive(Debug, clap::Args)]
#[command(after_help = "\
The code runs in a session of its own, in the current directory, confined: `windlass policy explain`
says how. In a home directory, or where programs are, the session gets a directory of its own. Ctrl-C
interrupts the code; a second Ctrl-C leaves it running and says how to come back.

Whatever else ends the command (SIGTERM, a closed terminal, a pipe that nobody reads any more) ends its
session too; with --keep it stays.

Exit code: 0 ok, 1 error, 130 interrupted, 124 deadline passed, 70 lost; 129, 143 and 141 when a closed
terminal, SIGTERM or a closed pipe ended the command.

Examples:
  windlass run job.py --deadline 5m
  echo 'input(\"name? \")' | windlass run -
  windlass run setup.py --keep             the session stays for more
  windlass run more.py --session SESSION   goes on in it
  windlass run get.py --allow-host pypi.org --memory 1G")]
pub struct Args {
    /// The file to run, or - for standard input
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// Run in this session instead of a new one
    #[arg(
        long,
        value_name = "ID",
        conflicts_with_all = ["workspace", "interpreter", "keep", "idle", "PolicyOptions"]
    )]
    session: Option<SessionId>,
    /// Where the new session works; default: the current directory, unless it is a home
    #[arg(long, value_name = "DIR")]
    workspace: Option<PathBuf>,
    /// The interpreter, or a virtual environment's directory
    #[arg(long, visible_alias = kinds::DEFAULT.name, value_name = "PATH")]
    interpreter: Option<PathBuf>,
    /// Stop the code after so long, like 30s or 5m
    #[arg(long, value_name = "DURATION", value_parser = duration::parse)]
    deadline: Option<Duration>,
    /// Keep the new session afterwards
    #[arg(long)]
    keep: bool,
    /// End the kept session when it has had no client and no turn for so long, or `never`; default: the
    /// node's, usually 24h
    #[arg(long, value_name = "DURATION", value_parser = duration::parse_timeout, requires = "keep")]
    idle: Option<Timeout>,
    #[command(flatten)]
    policy: PolicyOptions,
}

pub async fn run(args: Args, terminal: &mut Terminal) -> anyhow::Result<ExitCode> {
    let code = read_code(&args.file, args.is_from_stdin())?;
    let leaving = Leaving::start()?;
    let ran = leaving.unless_left(run_code(&args, code, &leaving, terminal)).await;
    leaving.end(ran).await
}

impl Args {
    fn is_from_stdin(&self) -> bool {
        self.file.as_os_str() == "-"
    }
}

async fn run_code(
    args: &Args,
    code: String,
    leaving: &Leaving,
    terminal: &mut Terminal,
) -> anyhow::Result<ExitCode> {
    let policy = args.policy.request()?;
    let client = node_access::started().await?;
    let session = match &args.session {
        Some(id) => client.session(id).await?,
        None => {
            let workspace = Workspace::choose(args.workspace.as_deref(), terminal)?;
            let (afterwards, idle_s) = after_command(args.keep, args.idle);
            let made = create_in(&client, workspace, args.interpreter.as_deref(), policy, idle_s);
            leaving.make(afterwards, made).await?
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
    leaving.follows();
    let mut follower = Follower::new(&client, &session);
    let followed = follower.turn(&turn, CtrlC::InterruptThenDetach, &mut person).await?;
    finish(args, &client, &session.id, followed, leaving, terminal).await
}

/// What becomes of a new session after its command, and the idle timeout that it is made with.
pub fn after_command(keep: bool, idle: Option<Timeout>) -> (Afterwards, Option<u64>) {
    match keep {
        true => (Afterwards::Stays, idle.map(Timeout::seconds)),
        false => (Afterwards::Ends, Some(IDLE.as_secs())),
    }
}

/// A new session that works there.
pub async fn create_in(
    client: &Client,
    workspace: Workspace,
    named: Option<&Path>,
    policy: Option<PolicyRequest>,
    idle_s: Option<u64>,
) -> anyhow::Result<Session> {
    let create = CreateSession {
        interpreter: named.map(interpreter).transpose()?,
        policy: workspace.required(policy)?,
        workspace: workspace.directory().map(text).transpose()?,
        idle_s,
        ..CreateSession::default()
    };
    Ok(client.create_session(&create).await?.session)
}

/// The node runs elsewhere: what names a place from here is made absolute. A bare name is left
/// for the node to find on its PATH.
fn interpreter(named: &Path) -> anyhow::Result<String> {
    let bare = named.components().count() == 1 && !named.is_dir();
    if bare { text(named) } else { text(&std::path::absolute(named)?) }
}

fn text(path: &Path) -> anyhow::Result<String> {
    let text = path.to_str().with_context(|| format!("{} is not UTF-8", path.display()))?;
    Ok(text.to_owned())
}

fn read_code(file: &Path, from_stdin: bool) -> anyhow::Result<String> {
    if !from_stdin {
        return std::fs::read_to_string(file)
            .with_context(|| format!("cannot read {}", file.display()));
    }
    let mut code = String::new();
    std::io::stdin().read_to_string(&mut code).context("cannot read standard input")?;
    Ok(code)
}

/// Who answers: standard input, unless the code came from there.
fn answers(code_from_stdin: bool) -> anyhow::Result<Option<Answers>> {
    if !code_from_stdin {
        return Ok(Some(Answers::from_stdin()?));
    }
    // Without a terminal to see the question on, nobody answers.
    let visible = std::io::stderr().is_terminal();
    Ok(if visible { Answers::from_controlling_terminal().ok() } else { None })
}

async fn finish(
    args: &Args,
    client: &Client,
    session: &SessionId,
    followed: Followed,
    leaving: &Leaving,
    terminal: &mut Terminal,
) -> anyhow::Result<ExitCode> {
    let outcome = match followed {
        Followed::TurnEnded(outcome) => outcome,
        Followed::Detached => {
            leaving.stays();
            terminal.note(&format!(
                "the turn goes on; come back with: windlass attach {session}; \
                 end it with: windlass kill {session}"
            ))?;
            if !args.keep && args.session.is_none() {
                let idle = duration::show(IDLE);
                terminal.note(&format!(
                    "when the turn has ended and nobody is there for {idle}, the session ends; \
                     its output stays: windlass logs {session}"
                ))?;
            }
            return Ok(ExitCode::from(exit::DETACHED));
        }
        Followed::SessionEnded(reason) => {
            terminal.note(&format!("session {session} ended: {reason:?}"))?;
            return Ok(ExitCode::from(exit::LOST));
        }
    };
    if args.keep {
        terminal.note(&format!(
            "session {session} stays; go on with: windlass repl --session {session}"
        ))?;
    } else {
        leaving.close(client).await?;
    }
    Ok(exit::code(outcome))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_interpreter_that_names_a_place_is_made_absolute() {
        assert_eq!(interpreter(Path::new("python3")).unwrap(), "python3");
        assert_eq!(interpreter(Path::new("/usr/bin/python3")).unwrap(), "/usr/bin/python3");
        let here = std::env::current_dir().unwrap();
        let expected = here.join("venv/bin/python");
        assert_eq!(interpreter(Path::new("venv/bin/python")).unwrap(), expected.to_str().unwrap());
        assert_eq!(interpreter(Path::new("src")).unwrap(), here.join("src").to_str().unwrap());
    }
}
