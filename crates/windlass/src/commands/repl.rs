//! `windlass repl`: an interactive session. Uses line editing on a terminal, and plain reads on any other
//! input, so that a script can be piped in.

use std::io::IsTerminal;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use rustyline::error::ReadlineError;
use rustyline::history::FileHistory;
use rustyline::{CompletionType, Config, Editor};
use tokio::time::timeout;
use windlass_client::{Client, fresh_turn_id};
use windlass_protocol::api::{Session, SubmitTurn};
use windlass_protocol::kinds::{self, TypedInput};
use windlass_protocol::{EventKind, Seq, SessionId};

use crate::answers::{AnswerReader, Echo};
use crate::commands::run::SessionDraft;
use crate::follow::{CtrlC, FollowEnd, Person, SessionFollower};
use crate::package_options::PackageOptions;
use crate::policy_options::PolicyOptions;
use crate::repl_editor::ReplEditor;
use crate::session_guard::SessionGuard;
use crate::session_options::NewSessionOptions;
use crate::terminal::Terminal;
use crate::tool_lines::ToolLines;
use crate::typed_input::{Completeness, check};
use crate::worker_choice::WorkerOptions;
use crate::workspace::WorkspaceChoice;
use crate::{duration, exit, node_access, repl_banner};

/// Maximum number of entries in the history file.
const HISTORY_MAX: usize = 10_000;

/// How long the banner waits for the worker.
const READY_WAIT: Duration = Duration::from_secs(2);

/// Inputs that end the command, besides Ctrl-D.
const EXIT_WORDS: [&str; 4] = ["exit", "quit", "exit()", "quit()"];

/// Open an interactive session
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Input continues on the next line while a bracket, a quote or a block is open, by the rules of the
worker's language. Ctrl-C interrupts the running code; Ctrl-D exits. Images are saved to files, and the paths are printed.

When the command ends (Ctrl-D, a closed terminal, SIGTERM), the session that it created ends too.
With --keep the session stays.

Examples:
  windlass repl                      a new session in the current directory
  windlass repl --interpreter .venv  use the interpreter of a virtual environment
  windlass repl --worker r           R instead of Python; `windlass workers` lists all
  windlass repl --policy read-only   a session that can write only to a private /tmp
  windlass repl --session SESSION    continue in an existing session")]
pub struct Args {
    /// Use this session instead of a new one
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
    /// Stop each input after this long, for example 30s or 5m
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
    let guard = SessionGuard::start()?;
    let ended = guard.unless_exiting(interact(&args, &guard, terminal)).await;
    guard.end(ended).await
}

async fn interact(
    args: &Args,
    guard: &SessionGuard,
    terminal: &mut Terminal,
) -> anyhow::Result<ExitCode> {
    let policy = args.policy.request()?;
    args.policy.note_missing(terminal)?;
    let client = node_access::connect_or_start().await?;
    let session = match &args.session {
        Some(id) => client.session(id).await?,
        None => {
            let workspace =
                WorkspaceChoice::choose(&client, args.workspace.as_deref(), terminal).await?;
            let draft = SessionDraft {
                workspace,
                worker: args.worker.worker.clone(),
                policy,
                interpreter: args.interpreter.as_deref(),
                life: &args.life,
                worker_options: &args.worker,
                packages: &args.packages,
            };
            draft.create(&client, guard, terminal).await?
        }
    };
    guard.attend(&session.id);
    let tools = args.verbose.then(ToolLines::default);
    let mut follower = SessionFollower::new(&client, &session).with_tool_lines(tools);
    let rules = kinds::find(&session.kind).map_or(TypedInput::Lines, |kind| kind.typed);
    let mut source = CodeSource::new(&client, rules)?;
    let mut person = Person::new(terminal, Some(AnswerReader::from_stdin()?))?;
    guard.leave_ctrl_c_to_turn();
    if matches!(source, CodeSource::Editor { .. }) {
        let ready = once_ready(&client, &session.id).await?;
        for line in repl_banner::lines(&ready) {
            person.terminal.note(&line)?;
        }
    }
    while let Some(code) = source.next_input(rules, &mut person).await? {
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
        if let FollowEnd::SessionEnded(reason) = followed {
            terminal.note(&format!("session {} ended: {reason:?}", session.id))?;
            return Ok(ExitCode::from(exit::LOST));
        }
    }
    leave(args, &client, &session.id, guard, terminal).await
}

/// The session once its worker has said which interpreter it is, or after a time limit as it is.
async fn once_ready(client: &Client, session: &SessionId) -> anyhow::Result<Session> {
    let mut events = client.events(session, Seq(0));
    let ready = async {
        while let Ok(Some(item)) = events.next().await {
            if matches!(item.event.kind, EventKind::WorkerReady { .. }) {
                return;
            }
        }
    };
    // Without the interpreter's version the banner names the kind of worker.
    let _ = timeout(READY_WAIT, ready).await;
    Ok(client.session(session).await?)
}

async fn leave(
    args: &Args,
    client: &Client,
    session: &SessionId,
    guard: &SessionGuard,
    terminal: &mut Terminal,
) -> anyhow::Result<ExitCode> {
    if args.life.keep || args.session.is_some() {
        terminal.note(&format!(
            "session {session} stays; continue with: windlass repl --session {session}"
        ))?;
    } else {
        guard.close(client).await?;
        terminal.note(&format!("session {session} is closed; use --keep to keep a session"))?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Where the typed code comes from.
enum CodeSource {
    Editor { editor: Box<Editor<ReplEditor, FileHistory>>, history: PathBuf },
    Plain,
}

impl CodeSource {
    fn new(client: &Client, rules: TypedInput) -> anyhow::Result<Self> {
        if !std::io::stdin().is_terminal() {
            return Ok(Self::Plain);
        }
        let config = Config::builder().max_history_size(HISTORY_MAX)?.auto_add_history(false);
        let config = config.completion_type(CompletionType::List);
        let mut editor = Box::new(Editor::with_config(config.build())?);
        editor.set_helper(Some(ReplEditor::new(rules)));
        let history = client.dirs().state.join("repl_history");
        // A missing history file is normal: the first use creates it.
        let _ = editor.load_history(&history);
        Ok(Self::Editor { editor, history })
    }

    /// The next complete input; `None` when the user exits.
    async fn next_input(
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
                    // Ctrl-C at the prompt discards the typed lines.
                    Err(ReadlineError::Interrupted) => {
                        source.clear();
                        continue;
                    }
                    Err(fault) => return Err(fault.into()),
                },
                Self::Plain => plain_line(person).await?,
            };
            let Some(line) = line else {
                // Piped input counts even if its last line has no newline.
                return Ok((!source.trim().is_empty()).then_some(source));
            };
            if source.is_empty() && EXIT_WORDS.contains(&line.trim()) {
                return Ok(None);
            }
            if !source.is_empty() {
                source.push('\n');
            }
            source.push_str(&line);
            if check(rules, &source) == Completeness::Complete {
                self.remember(&source);
                return Ok(Some(source));
            }
        }
    }

    fn remember(&mut self, source: &str) {
        if let Self::Editor { editor, history } = self
            && !source.trim().is_empty()
        {
            if let Some(helper) = editor.helper_mut() {
                helper.remember(source);
            }
            // A history that cannot be written does not stop the session.
            let _ = editor.add_history_entry(source.trim_end());
            let _ = editor.append_history(history);
        }
    }
}

/// Reads one line of code from the `AnswerReader` that also answers prompts, so that neither consumer takes
/// buffered lines of the other.
async fn plain_line(person: &mut Person<'_>) -> anyhow::Result<Option<String>> {
    let Some(answers) = &mut person.answers else { return Ok(None) };
    let line = answers.line(Echo::Shown).await?;
    if line.is_empty() {
        return Ok(None);
    }
    let text = String::from_utf8(line)?;
    Ok(Some(text.trim_end_matches(['\n', '\r']).to_owned()))
}
