//! `windlass repl`: a session to type into. Reads with line editing from a terminal, and plainly
//! from anything else, so that a script can be piped in.

use std::io::IsTerminal;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use rustyline::error::ReadlineError;
use rustyline::history::FileHistory;
use rustyline::{Config, Editor};
use windlass_client::{Client, fresh_turn_id};
use windlass_protocol::SessionId;
use windlass_protocol::api::SubmitTurn;
use windlass_protocol::kinds::{self, TypedInput};

use crate::answers::{Answers, Echo};
use crate::commands::run::{after_command, create_in};
use crate::duration::Timeout;
use crate::follow::{CtrlC, Followed, Follower, Person};
use crate::leaving::Leaving;
use crate::policy_options::PolicyOptions;
use crate::terminal::Terminal;
use crate::typed_input::{Input, check};
use crate::workspace::Workspace;
use crate::{duration, exit, node_access};

/// Entries of the history file.
const HISTORY_MAX: usize = 10_000;

/// What leaves, besides Ctrl-D.
const LEAVING: [&str; 4] = ["exit", "quit", "exit()", "quit()"];

/// Type into a session
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Input goes on over several lines while a bracket, a quote or an indented block is open. Ctrl-C
interrupts what runs; Ctrl-D leaves. Images are saved, and their paths shown.

However it ends (Ctrl-D, a closed terminal, SIGTERM), the session that it made ends too; with --keep it
stays.

Examples:
  windlass repl                      a new session in the current directory
  windlass repl --interpreter .venv  with the interpreter of a virtual environment
  windlass repl --policy read-only   that can write nothing but a private /tmp
  windlass repl --session SESSION    go on in one that is there")]
pub struct Args {
    /// Go on in this session
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
    /// Stop what was typed after so long, like 30s or 5m
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
    let leaving = Leaving::start()?;
    let typed = leaving.unless_left(type_into(&args, &leaving, terminal)).await;
    leaving.end(typed).await
}

async fn type_into(
    args: &Args,
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
    leaving.attends(&session.id);
    let mut follower = Follower::new(&client, &session);
    let mut keys = Keys::new(&client)?;
    let rules = kinds::find(&session.kind).unwrap_or(kinds::DEFAULT).typed;
    let mut person = Person::new(terminal, Some(Answers::from_stdin()?))?;
    leaving.follows();
    if matches!(keys, Keys::Editor { .. }) {
        person.terminal.note(&format!("session {}; Ctrl-D leaves", session.id))?;
    }
    while let Some(code) = keys.input(rules, &mut person).await? {
        if code.trim().is_empty() {
            continue;
        }
        let submit = SubmitTurn {
            id: Some(fresh_turn_id()),
            code,
            deadline_ms: args.deadline.map(duration::millis),
            ..SubmitTurn::default()
        };
        let turn = client.submit_turn(&session.id, &submit).await?;
        let followed = follower.turn(&turn, CtrlC::Interrupt, &mut person).await?;
        if let Followed::SessionEnded(reason) = followed {
            terminal.note(&format!("session {} ended: {reason:?}", session.id))?;
            return Ok(ExitCode::from(exit::LOST));
        }
    }
    leave(args, &client, &session.id, leaving, terminal).await
}

async fn leave(
    args: &Args,
    client: &Client,
    session: &SessionId,
    leaving: &Leaving,
    terminal: &mut Terminal,
) -> anyhow::Result<ExitCode> {
    if args.keep || args.session.is_some() {
        terminal.note(&format!(
            "session {session} stays; come back with: windlass repl --session {session}"
        ))?;
    } else {
        leaving.close(client).await?;
        terminal.note(&format!("session {session} is closed (--keep would have kept it)"))?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Where the code comes from.
enum Keys {
    Editor { editor: Box<Editor<(), FileHistory>>, history: PathBuf },
    Plain,
}

impl Keys {
    fn new(client: &Client) -> anyhow::Result<Self> {
        if !std::io::stdin().is_terminal() {
            return Ok(Self::Plain);
        }
        let config = Config::builder().max_history_size(HISTORY_MAX)?.auto_add_history(false);
        let mut editor = Box::new(Editor::with_config(config.build())?);
        let history = client.dirs().state.join("repl_history");
        // The first time there is none.
        let _ = editor.load_history(&history);
        Ok(Self::Editor { editor, history })
    }

    /// The next whole input; `None` when the person leaves.
    async fn input(
        &mut self,
        rules: TypedInput,
        person: &mut Person<'_>,
    ) -> anyhow::Result<Option<String>> {
        let mut source = String::new();
        loop {
            let prompt = if source.is_empty() { ">>> " } else { "... " };
            let line = match self {
                Self::Editor { editor, .. } => match editor.readline(prompt) {
                    Ok(line) => Some(line),
                    Err(ReadlineError::Eof) => None,
                    // Ctrl-C at the prompt drops what was typed.
                    Err(ReadlineError::Interrupted) => {
                        source.clear();
                        continue;
                    }
                    Err(fault) => return Err(fault.into()),
                },
                Self::Plain => plain_line(person).await?,
            };
            let Some(line) = line else {
                // What was piped in without a last line end still counts.
                return Ok((!source.trim().is_empty()).then_some(source));
            };
            if source.is_empty() && LEAVING.contains(&line.trim()) {
                return Ok(None);
            }
            if !source.is_empty() {
                source.push('\n');
            }
            source.push_str(&line);
            if check(rules, &source) == Input::Complete {
                self.remember(&source);
                return Ok(Some(source));
            }
        }
    }

    fn remember(&mut self, source: &str) {
        if let Self::Editor { editor, history } = self
            && !source.trim().is_empty()
        {
            // A history that cannot be written is no reason to stop a session.
            let _ = editor.add_history_entry(source.trim_end());
            let _ = editor.append_history(history);
        }
    }
}

/// The same standard input that answers the code's questions: neither takes the other's lines.
async fn plain_line(person: &mut Person<'_>) -> anyhow::Result<Option<String>> {
    let Some(answers) = &mut person.answers else { return Ok(None) };
    let line = answers.line(Echo::Shown).await?;
    if line.is_empty() {
        return Ok(None);
    }
    let text = String::from_utf8(line)?;
    Ok(Some(text.trim_end_matches(['\n', '\r']).to_owned()))
}
