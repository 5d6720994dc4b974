//! Follows a session for a person: shows what its turns say as they say it, and carries answers
//! and interrupts back. Owns the place in the session's events; the terminal is only borrowed.

use std::collections::HashMap;

use tokio::signal::unix::{Signal, SignalKind, signal};
use windlass_client::{Client, ClientError, EventStream};
use windlass_protocol::api::{EventItem, Session, StdinWait, Turn};
use windlass_protocol::event::{EndReason, Receipt, TurnError};
use windlass_protocol::{ErrorCode, EventKind, Outcome, SessionId, Stream, TurnId, TurnNo};

use crate::answers::{Answers, Echo, as_input};
use crate::displays::DisplayFiles;
use crate::output_bytes::{self, OutputPlace};
use crate::terminal::Terminal;

/// Turns whose ids are remembered; a session has at most 65 unfinished ones.
const TURN_IDS_MAX: usize = 128;

/// The person at the terminal.
pub struct Person<'a> {
    pub terminal: &'a mut Terminal,
    /// Absent when nobody can answer: then every question gets the end of input.
    pub answers: Option<Answers>,
    interrupts: Signal,
}

impl<'a> Person<'a> {
    pub fn new(terminal: &'a mut Terminal, answers: Option<Answers>) -> anyhow::Result<Self> {
        Ok(Self { terminal, answers, interrupts: signal(SignalKind::interrupt())? })
    }
}

/// What Ctrl-C means.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CtrlC {
    /// The first stops the turn, the second leaves it.
    InterruptThenDetach,
    Interrupt,
    Detach,
}

/// Why following ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Followed {
    TurnEnded(Outcome),
    SessionEnded(EndReason),
    Detached,
}

/// Which of the session's events are shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Scope {
    /// One turn's, and what its predecessors left running.
    Turn(TurnNo),
    All,
}

impl Scope {
    fn covers(self, item: &EventItem) -> bool {
        let background = matches!(item.event.kind, EventKind::Output { background: true, .. });
        match self {
            Self::All => true,
            Self::Turn(number) => background || item.event.turn == Some(number),
        }
    }
}

/// A question that waits for its answer.
struct Question {
    turn: TurnId,
    echo: Echo,
}

/// What an event means for the following.
enum Meaning {
    Nothing,
    Asks(Question),
    /// Whoever it was, someone answered.
    Answered,
    Ends(Followed),
}

pub struct Follower {
    client: Client,
    session: SessionId,
    events: EventStream,
    displays: DisplayFiles,
    place: OutputPlace,
    turn_ids: HashMap<TurnNo, TurnId>,
}

impl Follower {
    /// Follows from `session` as it was then.
    pub fn new(client: &Client, session: &Session) -> Self {
        Self {
            client: client.clone(),
            session: session.id.clone(),
            events: client.events(&session.id, session.seq),
            displays: DisplayFiles::new(&client.dirs().state, &session.id),
            place: OutputPlace::at(session.output_bytes),
            turn_ids: HashMap::new(),
        }
    }

    /// Shows one turn until it ends.
    pub async fn turn(
        &mut self,
        turn: &Turn,
        ctrl_c: CtrlC,
        person: &mut Person<'_>,
    ) -> anyhow::Result<Followed> {
        self.remember(turn.number, turn.id.clone());
        self.follow(Scope::Turn(turn.number), Some(&turn.id), None, ctrl_c, person).await
    }

    /// Shows everything until the session ends. `running` may wait for input
    /// already.
    pub async fn session(
        &mut self,
        running: Option<&Turn>,
        person: &mut Person<'_>,
    ) -> anyhow::Result<Followed> {
        let mut question = None;
        if let Some(turn) = running {
            self.remember(turn.number, turn.id.clone());
            if let Some(wait) = &turn.stdin_wait {
                question = Some(ask(turn.id.clone(), wait, person)?);
            }
        }
        self.follow(Scope::All, None, question, CtrlC::Detach, person).await
    }

    async fn follow(
        &mut self,
        scope: Scope,
        interruptible: Option<&TurnId>,
        mut question: Option<Question>,
        mut ctrl_c: CtrlC,
        person: &mut Person<'_>,
    ) -> anyhow::Result<Followed> {
        loop {
            tokio::select! {
                item = self.events.next() => {
                    let Some(item) = item? else {
                        return Ok(Followed::SessionEnded(EndReason::Closed));
                    };
                    match self.show(item, scope, person).await? {
                        Meaning::Nothing => {}
                        Meaning::Asks(asked) => question = Some(asked),
                        Meaning::Answered => question = None,
                        Meaning::Ends(followed) => return Ok(followed),
                    }
                }
                line = next_answer(&mut person.answers, question.as_ref()) => {
                    if let Some(Question { turn, .. }) = question.take() {
                        let input = as_input(line?);
                        let sent = self.client.send_input(&self.session, &turn, &input).await;
                        unless_over(sent)?;
                    }
                }
                _ = person.interrupts.recv() => {
                    let Some(turn) = interruptible.filter(|_| ctrl_c != CtrlC::Detach) else {
                        return Ok(Followed::Detached);
                    };
                    if ctrl_c == CtrlC::InterruptThenDetach {
                        ctrl_c = CtrlC::Detach;
                        person.terminal.note("interrupting; Ctrl-C again leaves the turn alone")?;
                    }
                    unless_over(self.client.interrupt_turn(&self.session, turn).await)?;
                }
            }
        }
    }

    /// Shows one event, as far as `scope` covers it.
    async fn show(
        &mut self,
        item: EventItem,
        scope: Scope,
        person: &mut Person<'_>,
    ) -> anyhow::Result<Meaning> {
        // All output counts, shown or not.
        let from = self.place.pass(&item);
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
                tell_receipt(receipt.as_ref(), person.terminal)?;
                return Ok(Meaning::Ends(Followed::SessionEnded(*reason)));
            }
            _ => {}
        }
        if !scope.covers(&item) {
            return Ok(Meaning::Nothing);
        }
        match item.event.kind {
            EventKind::Output { stream, .. } => {
                let bytes = output_bytes::fetch(&self.client, &self.session, &item, from).await?;
                match stream {
                    Stream::Stdout | Stream::Result => person.terminal.out(&bytes)?,
                    Stream::Stderr | Stream::Traceback => person.terminal.err(&bytes)?,
                }
            }
            EventKind::Display { ref mime, ref id, more: false, .. } => {
                self.show_display(&item, mime, id.as_deref(), person.terminal).await?;
            }
            EventKind::StdinWait { prompt, secret } => {
                let turn = self.turn_id(item.event.turn);
                return Ok(Meaning::Asks(ask(turn, &StdinWait { prompt, secret }, person)?));
            }
            EventKind::InputTaken { .. } => return Ok(Meaning::Answered),
            EventKind::OutputDropped { bytes, .. } => {
                person.terminal.note(&format!("{bytes} bytes of output were not kept"))?;
            }
            EventKind::TurnEnded { outcome, error, receipt, .. } => {
                tell_end(outcome, error.as_ref(), receipt.as_ref(), person.terminal)?;
                return Ok(match scope {
                    Scope::Turn(_) => Meaning::Ends(Followed::TurnEnded(outcome)),
                    // Nobody can answer a turn that is over.
                    Scope::All => Meaning::Answered,
                });
            }
            _ => {}
        }
        Ok(Meaning::Nothing)
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

fn ask(turn: TurnId, wait: &StdinWait, person: &mut Person<'_>) -> anyhow::Result<Question> {
    person.terminal.prompt(&wait.prompt)?;
    Ok(Question { turn, echo: if wait.secret { Echo::Hidden } else { Echo::Shown } })
}

/// The next line once a question waits; never before.
async fn next_answer(
    answers: &mut Option<Answers>,
    question: Option<&Question>,
) -> std::io::Result<Vec<u8>> {
    match (question, answers) {
        (None, _) => std::future::pending().await,
        (Some(_), None) => Ok(Vec::new()),
        (Some(question), Some(answers)) => answers.line(question.echo).await,
    }
}

/// A turn that ended before our word reached it is no error.
fn unless_over(answered: Result<Turn, ClientError>) -> Result<(), ClientError> {
    match answered {
        Err(error) if error.api_code() == Some(ErrorCode::TurnNotRunning) => Ok(()),
        other => other.map(drop),
    }
}

/// Says how a turn ended where its own output does not.
fn tell_end(
    outcome: Outcome,
    error: Option<&TurnError>,
    receipt: Option<&Receipt>,
    terminal: &mut Terminal,
) -> std::io::Result<()> {
    terminal.end_line()?;
    match (outcome, error) {
        (Outcome::Ok, _) => {}
        (_, Some(TurnError { code: Some(code), message, .. })) => {
            terminal.complain(what_happened(*code), code.as_str(), message)?;
        }
        (Outcome::Interrupted, _) => terminal.note("interrupted")?,
        (Outcome::TimedOut, _) => terminal.note("the deadline passed")?,
        (Outcome::Lost, _) => terminal.note("the turn was lost")?,
        (Outcome::Error, _) => {}
    }
    tell_receipt(receipt, terminal)
}

fn tell_receipt(receipt: Option<&Receipt>, terminal: &mut Terminal) -> std::io::Result<()> {
    let Some(receipt) = receipt else { return Ok(()) };
    for (name, things) in [("kept", &receipt.kept), ("lost", &receipt.lost)] {
        if !things.is_empty() {
            terminal.note(&format!("{name}: {}", things.join(", ")))?;
        }
    }
    Ok(())
}

fn what_happened(code: ErrorCode) -> &'static str {
    match code {
        ErrorCode::DeadlinePassed => "the turn's deadline passed",
        ErrorCode::Unstoppable => "the turn did not stop in time, and its worker was killed",
        ErrorCode::StateLost => "the turn waited behind one that lost the session's state",
        ErrorCode::WorkerFailed => "the worker could not be started",
        ErrorCode::WorkerDied => "the worker died in the turn",
        ErrorCode::KeeperLost => "the session's keeper died in the turn",
        ErrorCode::ProtocolError => "the worker broke the protocol",
        ErrorCode::SessionClosed => "the session was closed",
        ErrorCode::DiskFull => "the disk is full",
        _ => "the turn was ended",
    }
}
