//! Follows a session for a user: shows the output of its turns live, and sends answers and interrupts back.
//! Owns the position in the session's events; borrows the terminal.

use std::collections::HashMap;
use std::pin::Pin;
use std::time::Duration;

use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::time::{Sleep, sleep};
use windlass_client::{Client, ClientError, EventStream};
use windlass_protocol::agent;
use windlass_protocol::api::{EventItem, Session, StdinWait, Turn, TurnState};
use windlass_protocol::event::{EndReason, Event, Receipt, TurnError};
use windlass_protocol::kinds::agent::is_agent;
use windlass_protocol::refusal::PolicyRefusal;
use windlass_protocol::{ErrorCode, EventKind, Outcome, SessionId, Stream, TurnId, TurnNo};

use crate::agent_view::{self, AgentView};
use crate::answers::{AnswerReader, Echo, as_input};
use crate::counted::{OUTPUT_BYTE_DROPPED, OUTPUT_BYTES_DROPPED, counted};
use crate::displays::DisplayFiles;
use crate::output_bytes::{self, OutputOffset};
use crate::session_guard::AfterCommand;
use crate::terminal::Terminal;
use crate::tool_lines::ToolLines;

/// Number of turn ids to remember. A session has at most 65 unfinished turns.
const TURN_IDS_MAX: usize = 128;

/// How long a turn waits behind another one before the user is told.
const WAIT_NOTICE_AFTER: Duration = Duration::from_secs(1);

/// The user at the terminal.
pub struct Person<'a> {
    pub terminal: &'a mut Terminal,
    /// `None` if the user cannot answer. Then every prompt gets end of input.
    pub answers: Option<AnswerReader>,
    interrupts: Signal,
}

impl<'a> Person<'a> {
    pub fn new(terminal: &'a mut Terminal, answers: Option<AnswerReader>) -> anyhow::Result<Self> {
        Ok(Self { terminal, answers, interrupts: signal(SignalKind::interrupt())? })
    }
}

/// What Ctrl-C does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CtrlC {
    /// The first Ctrl-C interrupts the turn, the second detaches.
    InterruptThenDetach,
    Interrupt,
    Detach,
}

/// Why the follower stopped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FollowEnd {
    TurnEnded { outcome: Outcome, exit_code: Option<i32> },
    SessionEnded(EndReason),
    Detached,
}

/// Which events of the session to show.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum EventFilter {
    /// Events of one turn, and output of background processes that earlier turns started.
    Turn(TurnNo),
    All,
}

impl EventFilter {
    fn covers(self, item: &EventItem) -> bool {
        let background = matches!(item.event.kind, EventKind::Output { background: true, .. });
        match self {
            Self::All => true,
            Self::Turn(number) => background || item.event.turn == Some(number),
        }
    }
}

/// An open prompt that waits for an answer.
struct PendingPrompt {
    turn: TurnId,
    echo: Echo,
    /// Whether the code named no question, so that it reads a stream rather than asks a person.
    is_bare: bool,
    /// The permission that an agent asks for. Its answer names it.
    permission: Option<String>,
}

/// What an event changes for the follower.
enum EventEffect {
    Nothing,
    PromptOpened(PendingPrompt),
    /// A client answered the prompt, or its turn ended.
    PromptClosed,
    Stop(FollowEnd),
}

/// What a follower prints.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Shown {
    /// Text for people.
    Usual,
    /// What a program prints, and nothing else unless something went wrong.
    Program,
    /// The events of an agent, as JSON.
    AgentJson,
}

pub struct SessionFollower {
    client: Client,
    session: SessionId,
    events: EventStream,
    displays: DisplayFiles,
    asker: Asker,
    agent: AgentView,
    shown: Shown,
    /// Whether the user can go on in the session.
    afterwards: AfterCommand,
    /// Present if the calls of host tools are shown.
    tools: Option<ToolLines>,
    offset: OutputOffset,
    turn_ids: HashMap<TurnNo, TurnId>,
}

impl SessionFollower {
    /// Starts at the position where `session` was read.
    pub fn new(client: &Client, session: &Session) -> Self {
        Self {
            client: client.clone(),
            session: session.id.clone(),
            events: client.events(&session.id, session.seq),
            displays: DisplayFiles::new(&client.dirs().state, &session.id),
            asker: if is_agent(&session.kind) { Asker::Agent } else { Asker::Code },
            agent: AgentView::new(),
            shown: Shown::Usual,
            afterwards: AfterCommand::KeepSession,
            tools: None,
            offset: OutputOffset::at(session.output_bytes),
            turn_ids: HashMap::new(),
        }
    }

    /// The same follower, which prints something else.
    pub fn showing(self, shown: Shown) -> Self {
        Self { shown, ..self }
    }

    /// The same follower, for a command that does this with the session afterwards.
    pub fn with_afterwards(self, afterwards: AfterCommand) -> Self {
        Self { afterwards, ..self }
    }

    /// The same follower, which also prints `tools`.
    pub fn with_tool_lines(self, tools: Option<ToolLines>) -> Self {
        Self { tools, ..self }
    }

    /// Shows one turn until it ends.
    pub async fn turn(
        &mut self,
        turn: &Turn,
        ctrl_c: CtrlC,
        person: &mut Person<'_>,
    ) -> anyhow::Result<FollowEnd> {
        self.remember(turn.number, turn.id.clone());
        self.follow(EventFilter::Turn(turn.number), Some(turn), None, ctrl_c, person).await
    }

    /// Shows everything until the session ends. The `running` turn may already wait for input.
    pub async fn session(
        &mut self,
        running: Option<&Turn>,
        person: &mut Person<'_>,
    ) -> anyhow::Result<FollowEnd> {
        let mut prompt = None;
        if let Some(turn) = running {
            self.remember(turn.number, turn.id.clone());
            if let Some(wait) = &turn.stdin_wait {
                prompt = Some(open_prompt(turn.id.clone(), wait, self.asker, person)?);
            }
        }
        self.follow(EventFilter::All, None, prompt, CtrlC::Detach, person).await
    }

    async fn follow(
        &mut self,
        filter: EventFilter,
        interruptible: Option<&Turn>,
        mut prompt: Option<PendingPrompt>,
        mut ctrl_c: CtrlC,
        person: &mut Person<'_>,
    ) -> anyhow::Result<FollowEnd> {
        let waiting = interruptible.filter(|turn| turn.state == TurnState::Waiting);
        let mut notice = waiting.map(|_| Box::pin(sleep(WAIT_NOTICE_AFTER)));
        loop {
            tokio::select! {
                item = self.events.next() => {
                    let Some(item) = item? else {
                        return Ok(FollowEnd::SessionEnded(self.reason_of_end().await?));
                    };
                    match self.show(item, filter, person).await? {
                        EventEffect::Nothing => {}
                        EventEffect::PromptOpened(opened) => prompt = Some(opened),
                        EventEffect::PromptClosed => prompt = None,
                        EventEffect::Stop(end) => return Ok(end),
                    }
                }
                line = next_answer(&mut person.answers, prompt.as_ref(), self.asker) => {
                    let line = line?;
                    if self.asker == Asker::Agent && line.is_empty() {
                        // No answers come from here any more. Another client may answer.
                        person.answers = None;
                        prompt = None;
                        continue;
                    }
                    if let Some(PendingPrompt { turn, permission, .. }) = prompt.take() {
                        let input = as_input(agent_view::named(permission.as_deref(), line));
                        let sent = self.client.send_input(&self.session, &turn, &input).await;
                        ignore_ended_turn(sent)?;
                    }
                }
                () = passed(&mut notice) => {
                    notice = None;
                    if let Some(turn) = waiting {
                        self.note_wait(&turn.id, person.terminal).await?;
                    }
                }
                _ = person.interrupts.recv() => {
                    let Some(turn) = interruptible.filter(|_| ctrl_c != CtrlC::Detach) else {
                        return Ok(FollowEnd::Detached);
                    };
                    if ctrl_c == CtrlC::InterruptThenDetach {
                        ctrl_c = CtrlC::Detach;
                        person.terminal.note(
                            "Interrupting. Press Ctrl-C again to detach; the turn keeps running",
                        )?;
                    }
                    let sent = self.client.interrupt_turn(&self.session, &turn.id).await;
                    ignore_ended_turn(sent)?;
                }
            }
        }
    }

    /// Why the session ended, if no event says so: a session that was lost with its node has no last event.
    async fn reason_of_end(&self) -> anyhow::Result<EndReason> {
        let ended = self.client.session(&self.session).await?.ended;
        Ok(ended.map_or(EndReason::Closed, |ended| ended.reason))
    }

    /// Says that a turn waits behind another one, if it still does.
    async fn note_wait(&self, turn: &TurnId, terminal: &mut Terminal) -> anyhow::Result<()> {
        // A failure here is also one of the events, which the caller reports.
        let Ok(session) = self.client.session(&self.session).await else { return Ok(()) };
        if session.turn.is_some_and(|running| running != *turn) {
            let id = &self.session;
            terminal.note(&format!(
                "waiting: session {id} runs another turn (windlass interrupt {id} stops it)"
            ))?;
        }
        Ok(())
    }

    /// Shows one event if `filter` covers it.
    async fn show(
        &mut self,
        item: EventItem,
        filter: EventFilter,
        person: &mut Person<'_>,
    ) -> anyhow::Result<EventEffect> {
        // Output advances the offset whether it is shown or not.
        let from = self.offset.advance(&item);
        match &item.event.kind {
            EventKind::TurnAccepted { id, .. } => {
                if let Some(number) = item.event.turn {
                    self.remember(number, id.clone());
                }
            }
            EventKind::SessionEnded { reason, message, receipt } => {
                if let Some(message) = message {
                    person.terminal.note(message)?;
                }
                show_receipt(receipt.as_ref(), &self.session, self.afterwards, person.terminal)?;
                return Ok(EventEffect::Stop(FollowEnd::SessionEnded(*reason)));
            }
            _ => {}
        }
        if !filter.covers(&item) {
            return Ok(EventEffect::Nothing);
        }
        self.show_call(&item.event, person.terminal)?;
        match item.event.kind {
            EventKind::Output { stream, .. } if !self.is_shown_already(stream) => {
                let bytes = output_bytes::fetch(&self.client, &self.session, &item, from).await?;
                match stream {
                    Stream::Result if self.asker == Asker::Agent => {
                        let text = agent_view::clean(&String::from_utf8_lossy(&bytes));
                        person.terminal.out(text.as_bytes())?;
                    }
                    Stream::Stdout | Stream::Result => person.terminal.out(&bytes)?,
                    Stream::Stderr | Stream::Traceback => person.terminal.err(&bytes)?,
                }
            }
            EventKind::Display { ref mime, more: false, .. } if mime == agent::MIME => {
                self.show_agent(&item, person.terminal).await?;
            }
            EventKind::Display { ref mime, ref id, more: false, .. } => {
                self.show_display(&item, mime, id.as_deref(), person.terminal).await?;
            }
            EventKind::StdinWait { prompt, secret } => {
                let turn = self.turn_id(item.event.turn);
                let wait = StdinWait { prompt, secret };
                return Ok(EventEffect::PromptOpened(open_prompt(
                    turn, &wait, self.asker, person,
                )?));
            }
            EventKind::InputTaken { .. } => return Ok(EventEffect::PromptClosed),
            EventKind::OutputDropped { bytes, .. } => {
                let note = counted(bytes, OUTPUT_BYTE_DROPPED, OUTPUT_BYTES_DROPPED);
                person.terminal.note(&note)?;
            }
            EventKind::TurnEnded { outcome, error, receipt, refusal, exit_code, .. } => {
                if self.shown != Shown::Program {
                    person.terminal.end_line()?;
                }
                let (error, afterwards) = (error.as_ref(), self.afterwards);
                show_end(outcome, error, afterwards, person.terminal)?;
                show_receipt(receipt.as_ref(), &self.session, afterwards, person.terminal)?;
                show_refusal(refusal.as_deref(), person.terminal)?;
                return Ok(match filter {
                    EventFilter::Turn(_) => {
                        EventEffect::Stop(FollowEnd::TurnEnded { outcome, exit_code })
                    }
                    EventFilter::All => EventEffect::PromptClosed,
                });
            }
            _ => {}
        }
        Ok(EventEffect::Nothing)
    }

    /// Shows that a call of a host tool has begun or ended.
    fn show_call(&mut self, event: &Event, terminal: &mut Terminal) -> std::io::Result<()> {
        let line = self.tools.as_mut().and_then(|tools| tools.line(&self.session, event));
        line.map_or(Ok(()), |(tone, line)| terminal.line(tone, &line))
    }

    /// Whether the output repeats what the events of an agent have shown.
    fn is_shown_already(&self, stream: Stream) -> bool {
        self.asker == Asker::Agent
            && stream == Stream::Result
            && match self.shown {
                Shown::Usual | Shown::Program => !self.agent.wants_answer(),
                Shown::AgentJson => true,
            }
    }

    async fn show_agent(
        &mut self,
        item: &EventItem,
        terminal: &mut Terminal,
    ) -> anyhow::Result<()> {
        let Some(event) = agent_view::read(&self.client, &self.session, item).await? else {
            return Ok(());
        };
        match self.shown {
            Shown::Usual | Shown::Program => self.agent.print(&event, terminal)?,
            Shown::AgentJson => {
                let mut line = serde_json::to_value(&event)?;
                line["seq"] = item.event.seq.0.into();
                line["turn"] = item.event.turn.map(|turn| turn.0).into();
                terminal.say(&line.to_string())?;
            }
        }
        Ok(())
    }

    async fn show_display(
        &mut self,
        item: &EventItem,
        mime: &str,
        id: Option<&str>,
        terminal: &mut Terminal,
    ) -> anyhow::Result<()> {
        let display = self.client.display(&self.session, item.event.seq).await?;
        if mime == "text/plain" {
            terminal.out(&display.bytes)?;
            return Ok(terminal.end_line()?);
        }
        let path = self.displays.save(item.event.seq, mime, id, &display.bytes)?;
        Ok(terminal.note(&format!("{mime}: {}", path.display()))?)
    }

    fn remember(&mut self, number: TurnNo, id: TurnId) {
        if self.turn_ids.len() >= TURN_IDS_MAX
            && let Some(oldest) = self.turn_ids.keys().min().copied()
        {
            self.turn_ids.remove(&oldest);
        }
        self.turn_ids.insert(number, id);
    }

    fn turn_id(&self, number: Option<TurnNo>) -> TurnId {
        let number = number.unwrap_or_default();
        self.turn_ids.get(&number).cloned().unwrap_or_else(|| TurnId::from_number(number))
    }
}

fn open_prompt(
    turn: TurnId,
    wait: &StdinWait,
    asker: Asker,
    person: &mut Person<'_>,
) -> anyhow::Result<PendingPrompt> {
    let (shown, permission) = match asker {
        Asker::Code => (wait.prompt.clone(), None),
        Asker::Agent => {
            // What was typed before the question was shown was not meant for it.
            let is_typed = person.answers.as_mut().is_some_and(AnswerReader::discard_typed);
            let permission = agent_view::permission_in(&wait.prompt).filter(|_| is_typed);
            (agent_view::clean(&wait.prompt), permission)
        }
    };
    person.terminal.prompt(&shown)?;
    let echo = if wait.secret { Echo::Hidden } else { Echo::Shown };
    let is_bare = wait.prompt.is_empty() && asker == Asker::Code && !wait.secret;
    Ok(PendingPrompt { turn, echo, is_bare, permission })
}

/// Who asks the user.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Asker {
    Code,
    Agent,
}

/// The next line if a prompt is open. Never returns while no prompt is open.
async fn next_answer(
    answers: &mut Option<AnswerReader>,
    prompt: Option<&PendingPrompt>,
    asker: Asker,
) -> std::io::Result<Vec<u8>> {
    match (prompt, answers) {
        (None, _) => std::future::pending().await,
        // Another client may answer an agent.
        (Some(_), None) if asker == Asker::Agent => std::future::pending().await,
        (Some(_), None) => Ok(Vec::new()),
        (Some(prompt), Some(answers)) if prompt.is_bare => answers.block().await,
        (Some(prompt), Some(answers)) => answers.line(prompt.echo).await,
    }
}

/// Returns when the timer has fired. Never returns without a timer.
async fn passed(timer: &mut Option<Pin<Box<Sleep>>>) {
    match timer {
        Some(timer) => timer.as_mut().await,
        None => std::future::pending().await,
    }
}

/// Ignores the error that the turn ended before the request arrived.
fn ignore_ended_turn(sent: Result<Turn, ClientError>) -> Result<(), ClientError> {
    match sent {
        Err(error) if error.api_code() == Some(ErrorCode::TurnNotRunning) => Ok(()),
        other => other.map(drop),
    }
}

/// Prints how a turn ended, unless its output shows that already.
fn show_end(
    outcome: Outcome,
    error: Option<&TurnError>,
    afterwards: AfterCommand,
    terminal: &mut Terminal,
) -> std::io::Result<()> {
    match (outcome, error) {
        (Outcome::Ok, _) => {}
        (_, Some(TurnError { code: Some(code), message, .. })) => {
            let (what, remedy) = what_and_remedy(*code, message);
            terminal.complain(what, code.as_str(), &remedy_for(afterwards, remedy))?;
        }
        (Outcome::Interrupted, _) => terminal.note("the turn was interrupted")?,
        (Outcome::TimedOut, _) => terminal.note("the turn's deadline passed")?,
        (Outcome::Lost, _) => terminal.note("the turn was lost")?,
        (Outcome::Error, _) => {}
    }
    Ok(())
}

/// Prints what the policy refused in a turn, and the option that allows it.
pub fn show_refusal(
    refusal: Option<&PolicyRefusal>,
    terminal: &mut Terminal,
) -> std::io::Result<()> {
    refusal.map_or(Ok(()), |refusal| terminal.note(&refusal.message))
}

fn show_receipt(
    receipt: Option<&Receipt>,
    session: &SessionId,
    afterwards: AfterCommand,
    terminal: &mut Terminal,
) -> std::io::Result<()> {
    let Some(receipt) = receipt else { return Ok(()) };
    let logs = format!("windlass logs {session}");
    let (mut kept, mut lost) = (receipt.kept_at(&logs), receipt.lost.clone());
    if afterwards == AfterCommand::EndSession {
        kept.retain(|thing| thing.contains(&logs));
        lost.clear();
    }
    for (name, things) in [("kept", &kept), ("lost", &lost)] {
        if !things.is_empty() {
            terminal.note(&format!("{name}: {}", things.join(", ")))?;
        }
    }
    Ok(())
}

/// What helps. A command that ends the session leaves out what is about going on in it.
fn remedy_for(afterwards: AfterCommand, remedy: &str) -> String {
    let is_left_out =
        |part: &str| afterwards == AfterCommand::EndSession && part.starts_with(FRESH_WORKER);
    remedy.split("; ").filter(|part| !is_left_out(part)).collect::<Vec<_>>().join("; ")
}

/// How the part of a remedy begins that is about going on in the session.
const FRESH_WORKER: &str = "the session has a fresh worker";

/// What ended a turn, and what helps. The message about a dead worker begins with the cause of its death.
fn what_and_remedy(code: ErrorCode, message: &str) -> (&str, &str) {
    let has_cause = code == ErrorCode::WorkerDied && message.starts_with("the worker ");
    let parts = message.split_once("; ").filter(|_| has_cause);
    parts.unwrap_or((what_happened(code), message))
}

fn what_happened(code: ErrorCode) -> &'static str {
    match code {
        ErrorCode::DeadlinePassed => "the turn's deadline passed",
        ErrorCode::Unstoppable => "the turn did not stop in time, and its worker was killed",
        ErrorCode::StateLost => {
            "an earlier turn lost the session's state, so this turn did not run"
        }
        ErrorCode::WorkerFailed => "the worker could not be started",
        ErrorCode::WorkerDied => "the worker died during the turn",
        ErrorCode::KeeperLost => "the session's keeper died during the turn",
        ErrorCode::ProtocolError => "the worker violated the protocol",
        ErrorCode::SessionClosed => "the session was closed",
        ErrorCode::DiskFull => "the disk is full",
        _ => "the turn was ended",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_that_ends_the_session_gives_no_advice_for_it() {
        let died = "the session has a fresh worker: set the state up again; look for a crash";
        let kept = AfterCommand::KeepSession;
        assert_eq!(remedy_for(kept, died), died);
        let ended = AfterCommand::EndSession;
        assert_eq!(remedy_for(ended, died), "look for a crash");
        let killed = "the session has a fresh worker: set the state up again";
        assert_eq!(remedy_for(ended, killed), "");
        assert_eq!(remedy_for(ended, "do less; or more"), "do less; or more");
    }
}
