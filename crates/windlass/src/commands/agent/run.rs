//! `windlass agent run`: gives an agent one prompt, shows its turn live, and answers its questions.

use std::collections::BTreeMap;
use std::io::Read as _;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context as _, bail};
use windlass_client::{Client, fresh_turn_id};
use windlass_protocol::SessionId;
use windlass_protocol::agent::{AgentRequest, PermissionPolicy, ResumeToken};
use windlass_protocol::api::{CopyScope, CreateSession, LeftOutDirectory, Session, SubmitTurn};
use windlass_protocol::kinds::agent::ENGINES;

use crate::answers::AnswerReader;
use crate::commands::run::{after_command, request_in};
use crate::follow::{CtrlC, FollowEnd, Person, SessionFollower, Shown};
use crate::policy_options::PolicyOptions;
use crate::session_guard::SessionGuard;
use crate::terminal::Terminal;
use crate::workspace::WorkspaceChoice;
use crate::{duration, exit, node_access};

/// Give an agent a prompt and show what it does
#[derive(Debug, clap::Args)]
#[command(after_help = "\
The agent runs in a new, confined session in the current directory (--in names another). A word
such as @plan.png in the prompt names a file of the workspace. Standard output has the agent's
messages; if it is no terminal, it has only the answer. Ctrl-C interrupts the agent, a second
Ctrl-C detaches.

The agent needs its model's API: allow the host, and keep the key outside the sandbox:
  windlass secret set OPENAI_API_KEY
  windlass agent run codex \"fix the failing test\" --secret OPENAI_API_KEY=https://api.openai.com/

Exit code: 0 ok, 1 error, 130 interrupted, 124 deadline passed, 70 lost.

Examples:
  windlass agent run claude \"explain this project\" --policy read-only
  windlass agent run codex \"fix the test\" --permissions ask
  windlass agent run codex \"try it with sqlite\" --branch
  windlass agent run codex \"now add a test\" --resume codex:0199a213-81c0-7800-8aa1-bbab2a035a53
  windlass agent run \"acp:my-agent --stdio\" \"hello\"
  git diff | windlass agent run claude - --json")]
pub struct Args {
    /// codex, claude, opencode, gemini, or acp:COMMAND for another agent that speaks ACP
    #[arg(value_name = "AGENT")]
    agent: String,
    /// The prompt, or - for standard input
    #[arg(value_name = "PROMPT")]
    prompt: String,
    /// Run in this session instead of a new one
    #[arg(
        long,
        value_name = "ID",
        conflicts_with_all = ["workspace", "branch", "program", "keep", "resume", "model", "permissions", "PolicyOptions"]
    )]
    session: Option<SessionId>,
    /// The workspace; default: the current directory, unless it is a home
    #[arg(long = "in", value_name = "DIR")]
    workspace: Option<PathBuf>,
    /// Work in a copy of the workspace, to try something; `all` also copies environments, packages and caches
    #[arg(long, value_name = "WHAT", num_args = 0..=1, default_missing_value = "needed", require_equals = true)]
    branch: Option<BranchScope>,
    /// Resume this conversation
    #[arg(long, value_name = "TOKEN", value_parser = |text: &str| ResumeToken::parse(text))]
    resume: Option<ResumeToken>,
    /// The model, by the agent's name for it
    #[arg(long, value_name = "NAME")]
    model: Option<String>,
    /// What happens when the agent asks for permission: allow (the session is confined), ask, refuse
    #[arg(long, value_name = "POLICY")]
    permissions: Option<PermissionPolicy>,
    /// Refuse a permission that nobody answers for this long; default: 10m
    #[arg(long, value_name = "DURATION", value_parser = duration::parse)]
    permission_deadline: Option<Duration>,
    /// Fail the turn if the agent makes no progress for this long; default: 5m
    #[arg(long, value_name = "DURATION", value_parser = duration::parse)]
    stall: Option<Duration>,
    /// Stop the agent after this long
    #[arg(long, value_name = "DURATION", value_parser = duration::parse)]
    deadline: Option<Duration>,
    /// The agent's program, if it is not on PATH
    #[arg(long, value_name = "PATH")]
    program: Option<PathBuf>,
    /// Set a variable in the agent's environment; can be repeated
    #[arg(long, value_name = "NAME=VALUE")]
    env: Vec<String>,
    /// Keep the session when the command ends
    #[arg(long)]
    keep: bool,
    /// Print the agent's events as JSON, one per line
    #[arg(long)]
    json: bool,
    /// More arguments for the agent's program, after --
    #[arg(last = true, value_name = "ARGUMENTS")]
    arguments: Vec<String>,
    #[command(flatten)]
    policy: PolicyOptions,
}

pub async fn run(args: Args, terminal: &mut Terminal) -> anyhow::Result<ExitCode> {
    let prompt = args.read_prompt()?;
    let guard = SessionGuard::start()?;
    let ran = guard.unless_exiting(run_prompt(&args, prompt, &guard, terminal)).await;
    guard.end(ran).await
}

async fn run_prompt(
    args: &Args,
    prompt: String,
    guard: &SessionGuard,
    terminal: &mut Terminal,
) -> anyhow::Result<ExitCode> {
    let wanted = args.wanted()?;
    let policy = args.policy.request()?;
    let client = node_access::connect_or_start().await?;
    let (afterwards, idle_s) = after_command(args.keep, None);
    let session = match &args.session {
        Some(id) => {
            let session = client.session(id).await?;
            if Some(&session.kind) != wanted.worker.as_ref() {
                bail!("session {id} is of the kind {}, not {}", session.kind, args.agent);
            }
            session
        }
        None => {
            let named = args.workspace.as_deref();
            let workspace = WorkspaceChoice::choose_by(named, "--in", terminal)?;
            let copy_workspace = args.branch.map(BranchScope::scope);
            if copy_workspace.is_some() && workspace.directory().is_none() {
                bail!("--branch copies a directory; choose one with --in DIR");
            }
            let wanted = CreateSession { idle_s, copy_workspace, ..wanted };
            let create = request_in(&workspace, args.program.as_deref(), policy, wanted)?;
            let mut left_out = None;
            let made = async {
                let created = client.create_session(&create).await?;
                left_out = Some((created.left_out, created.left_out_more));
                Ok(created.session)
            };
            let session = guard.create(afterwards, made).await?;
            tell_branch(&session, left_out, terminal)?;
            session
        }
    };
    let submit = SubmitTurn {
        id: Some(fresh_turn_id()),
        code: prompt,
        deadline_ms: args.deadline.map(duration::millis),
        ..SubmitTurn::default()
    };
    let turn = client.submit_turn(&session.id, &submit).await?;
    let answers = match args.is_from_stdin() {
        true => AnswerReader::from_controlling_terminal().ok(),
        false => Some(AnswerReader::from_stdin()?),
    };
    let mut person = Person::new(terminal, answers)?;
    guard.leave_ctrl_c_to_turn();
    let shown = if args.json { Shown::AgentJson } else { Shown::Usual };
    let mut follower = SessionFollower::new(&client, &session).showing(shown);
    let followed = follower.turn(&turn, CtrlC::InterruptThenDetach, &mut person).await?;
    finish(args, &client, &session, followed, guard, terminal).await
}

impl Args {
    fn is_from_stdin(&self) -> bool {
        self.prompt == "-"
    }

    fn read_prompt(&self) -> anyhow::Result<String> {
        let mut prompt = self.prompt.clone();
        if self.is_from_stdin() {
            prompt.clear();
            std::io::stdin().read_to_string(&mut prompt).context("cannot read standard input")?;
        }
        if prompt.trim().is_empty() {
            bail!("the prompt is empty");
        }
        Ok(prompt)
    }

    /// The session to request, without its policy and workspace.
    fn wanted(&self) -> anyhow::Result<CreateSession> {
        let worker = match &*self.agent {
            known if ENGINES.contains(&known) => format!("agent:{known}"),
            other if other.starts_with("acp:") => other.to_owned(),
            other => bail!(
                "{other:?} is not an agent: use one of {}, or acp:COMMAND",
                ENGINES.join(", ")
            ),
        };
        let mut env = BTreeMap::new();
        for variable in &self.env {
            let parts = variable.split_once('=').filter(|(name, _)| !name.is_empty());
            let (name, value) = parts.with_context(|| format!("{variable:?} is not NAME=VALUE"))?;
            env.insert(name.to_owned(), value.to_owned());
        }
        let agent = AgentRequest {
            resume: self.resume.clone(),
            model: self.model.clone(),
            permissions: self.permissions,
            permission_deadline_ms: self.permission_deadline.map(duration::millis),
            stall_ms: self.stall.map(duration::millis),
            arguments: self.arguments.clone(),
        };
        // The agent is found on this command's PATH, as in a shell.
        if let Ok(path) = std::env::var("PATH") {
            env.entry("PATH".to_owned()).or_insert(path);
        }
        Ok(CreateSession {
            worker: Some(worker),
            agent: Some(agent),
            env,
            ..CreateSession::default()
        })
    }
}

/// What a branch has of the workspace.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum BranchScope {
    /// All except virtual environments, installed packages and caches
    Needed,
    All,
}

impl BranchScope {
    fn scope(self) -> CopyScope {
        match self {
            Self::Needed => CopyScope::Needed,
            Self::All => CopyScope::All,
        }
    }
}

/// Says where the agent works, if that is a copy, and what the copy does not have.
fn tell_branch(
    session: &Session,
    left_out: Option<(Vec<LeftOutDirectory>, u64)>,
    terminal: &mut Terminal,
) -> anyhow::Result<()> {
    let Some(from) = &session.copied_from else { return Ok(()) };
    terminal.note(&format!("branch of {from}: {}", session.workspace))?;
    let (left_out, more) = left_out.unwrap_or_default();
    let mut names: Vec<String> = left_out.into_iter().map(|left| left.path).collect();
    if more > 0 {
        names.push(format!("{more} more"));
    }
    if !names.is_empty() {
        terminal.note(&format!(
            "the branch is without {}; --branch=all copies all",
            names.join(", ")
        ))?;
    }
    Ok(())
}

async fn finish(
    args: &Args,
    client: &Client,
    session: &Session,
    followed: FollowEnd,
    guard: &SessionGuard,
    terminal: &mut Terminal,
) -> anyhow::Result<ExitCode> {
    let id = &session.id;
    let outcome = match followed {
        FollowEnd::TurnEnded { outcome, .. } => outcome,
        FollowEnd::Detached => {
            guard.keep_session();
            terminal.note(&format!(
                "detached; the agent keeps running. Follow it with: windlass attach {id}; \
                 end it with: windlass kill {id}"
            ))?;
            return Ok(ExitCode::from(exit::DETACHED));
        }
        FollowEnd::SessionEnded(reason) => {
            terminal.note(&format!("session {id} ended: {reason:?}"))?;
            return Ok(ExitCode::from(exit::LOST));
        }
    };
    if !args.json
        && let Some(token) = client.session(id).await?.resume
    {
        let quote = if args.agent.contains(' ') { "'" } else { "" };
        let agent = format!("{quote}{}{quote}", args.agent);
        terminal
            .note(&format!("resume with: windlass agent run {agent} PROMPT --resume {token}"))?;
    }
    if let Some(from) = &session.copied_from {
        let branch = &session.workspace;
        terminal.note(&format!("compare with: git diff --no-index {from} {branch}"))?;
    }
    if args.keep {
        terminal.note(&format!("session {id} stays; end it with: windlass kill {id}"))?;
    } else if args.session.is_none() {
        guard.close(client).await?;
    }
    Ok(exit::code(outcome))
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Debug, Parser)]
    struct Whole {
        #[command(flatten)]
        args: Args,
    }

    fn wanted(line: &str) -> Result<CreateSession, String> {
        let words = ["run"].into_iter().chain(line.split(' '));
        let parsed = Whole::try_parse_from(words).map_err(|error| error.to_string())?;
        parsed.args.wanted().map_err(|error| error.to_string())
    }

    #[test]
    fn the_command_line_becomes_a_session() {
        let made = wanted(
            "codex fix --resume codex:a --model m --permissions ask --stall 2m --env A=b=c -- -c x=1",
        )
        .unwrap();
        assert_eq!(made.worker.as_deref(), Some("agent:codex"));
        assert_eq!(made.env.get("A").map(String::as_str), Some("b=c"));
        let agent = made.agent.unwrap();
        assert_eq!(agent.resume.unwrap().as_str(), "codex:a");
        assert_eq!(agent.permissions, Some(PermissionPolicy::Ask));
        assert_eq!((agent.stall_ms, agent.arguments.len()), (Some(120_000), 2));
        assert_eq!(wanted("acp:x hi").unwrap().worker.as_deref(), Some("acp:x"));
        for (line, why) in [
            ("cursor hi", "is not an agent"),
            ("codex hi --env A", "is not NAME=VALUE"),
            ("codex hi --resume nothing", "ENGINE:ID"),
            ("codex hi --permissions maybe", "allow, ask, refuse"),
        ] {
            let said = wanted(line).unwrap_err();
            assert!(said.contains(why), "{said}");
        }
    }
}
