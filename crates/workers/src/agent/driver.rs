//! Runs an agent's turns: owns the engine's process, the turn and the keeper's socket. One task owns everything;
//! nothing in it blocks.
//!
//! A turn goes through these stages:
//! 1. A known conversation is claimed. The engine's process starts only when no other turn has the conversation.
//! 2. The process starts, if there is none, or if another session has used the conversation since.
//! 3. A new conversation is claimed as soon as the engine tells its id.
//! 4. `started` is told, and the engine gets the prompt.
//! 5. The engine's last word, its end, an interrupt or a stall ends the turn, exactly once.

mod flow;

use std::io;
use std::path::PathBuf;
use std::process::ExitStatus;
use std::time::{Duration, Instant};

use tokio::select;
use tokio::signal::unix::Signal;
use tokio::time::{sleep_until, timeout};
use windlass_protocol::agent::{
    AgentError, AgentEvent, AgentEventKind, MCP_TOOL, MIME, ResumeToken, error_name,
};
use windlass_protocol::worker::{FromWorker, WorkerError, WorkerOutcome};
use windlass_protocol::{CallNo, Stream, TurnNo};
use windlass_worker_kit::{KeeperMessage, Link, StartupFigures, capability};

use super::door::{EngineDoor, can_repeat};
use super::engine::{Engine, EngineEnd, EngineInput, error};
use super::permissions::PermissionDesk;
use super::process::{EngineActivity, EngineProcess, LOG_FILE};
use super::prompt::Prompt;
use super::recorder::TurnRecorder;
use super::settings::AgentSettings;
use crate::link_socket::LinkWatch;
use crate::outbox::Outbox;
use crate::private_dir::PrivateDir;
use crate::socket_calls::SocketCalls;

/// Bytes of frames that wait for the keeper from which on the engine's output is not read.
const WAITING_BYTES_MAX: usize = 8 * 1024 * 1024;

/// How long an engine may take from its start until it takes a prompt.
const START_TIME: Duration = Duration::from_secs(60);

/// How long an interrupted engine may take for its last word. Then it is killed, before the keeper's grace ends.
const INTERRUPT_TIME: Duration = Duration::from_millis(2000);

/// How long an engine that has ended may take for its last lines.
const LAST_LINES_TIME: Duration = Duration::from_millis(500);

/// How long the last frames may take until the keeper has read them.
const LAST_FRAMES_TIME: Duration = Duration::from_secs(5);

/// Maximum number of tries to claim a conversation while nodes are replaced.
const CLAIM_TRIES_MAX: u32 = 100;

/// The worker of an agent.
pub struct AgentDriver {
    link: Link,
    link_watch: LinkWatch,
    outbox: Outbox,
    settings: AgentSettings,
    engine: Box<dyn Engine>,
    home: PathBuf,
    workspace: PathBuf,
    process: Option<EngineProcess>,
    conversation: SessionConversation,
    turn: Option<AgentTurn>,
    /// MCP requests of the engine, and the numbers of all calls.
    requests: SocketCalls,
    /// Where the engine's MCP server finds the worker.
    socket_dir: Option<PrivateDir>,
}

/// The conversation of this session.
#[derive(Debug, Default)]
struct SessionConversation {
    /// Known when it is resumed, or when the engine has told its id.
    token: Option<ResumeToken>,
    /// The process takes prompts.
    is_ready: bool,
    /// A claim ended without its answer, so another session may have used the conversation unnoticed.
    may_have_changed: bool,
}

/// The running turn.
struct AgentTurn {
    number: TurnNo,
    prompt: Prompt,
    stage: TurnStage,
    recorder: TurnRecorder,
    desk: PermissionDesk,
    /// When the engine last made progress.
    progress_at: Instant,
    /// When the turn was interrupted.
    interrupted_at: Option<Instant>,
    claim_tries: u32,
}

impl AgentTurn {
    /// Whether the turn waits for its conversation.
    fn is_claiming(&self) -> bool {
        matches!(self.stage, TurnStage::Claiming { .. })
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum TurnStage {
    /// The claim of a conversation waits for its answer.
    Claiming { call: CallNo, token: ResumeToken, since: ClaimTime },
    /// The engine cannot resume the conversation before this time.
    Delayed { until: Instant },
    /// The engine's process gets ready.
    Starting,
    /// The engine has the prompt.
    Running,
}

/// When a conversation is claimed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ClaimTime {
    BeforeStart,
    AfterStart,
}

/// Why the worker ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum DriverEnd {
    Shutdown,
    KeeperGone,
}

impl AgentDriver {
    pub fn new(
        link: Link,
        engine: Box<dyn Engine>,
        mut settings: AgentSettings,
    ) -> io::Result<Self> {
        // Without a socket the engine runs too, and has no tools of the session.
        let door = EngineDoor::open().unwrap_or_default();
        settings.mcp_server = door.command;
        let home = std::env::home_dir().ok_or_else(|| io::Error::other("HOME is not set"))?;
        let token = settings.request.resume.clone();
        Ok(Self {
            link_watch: LinkWatch::new(&link)?,
            outbox: Outbox::new(&link)?,
            link,
            settings,
            engine,
            home,
            workspace: std::env::current_dir()?,
            process: None,
            conversation: SessionConversation { token, ..SessionConversation::default() },
            turn: None,
            requests: SocketCalls::repeated(door.requests, MCP_TOOL, can_repeat),
            socket_dir: door.dir,
        })
    }

    pub async fn run(&mut self, sigint: &mut Signal) {
        let capabilities = [capability::STDIN, capability::INTERRUPT, capability::DISPLAY];
        let name = format!("agent {}", self.settings.engine);
        self.outbox.ready(&name, &capabilities, &StartupFigures::default());
        let end = loop {
            if let Some(end) = self.round(sigint).await {
                break end;
            }
        };
        if let Some(process) = self.process.take() {
            process.kill().await;
        }
        if let Some(dir) = &self.socket_dir {
            dir.remove();
        }
        if end == DriverEnd::Shutdown {
            self.outbox.plain(FromWorker::SessionEnd { reason: "shutdown".to_owned() });
            let _ = timeout(LAST_FRAMES_TIME, self.outbox.drain()).await;
        }
    }

    /// Waits for one thing to happen, and handles it.
    async fn round(&mut self, sigint: &mut Signal) -> Option<DriverEnd> {
        if self.outbox.flush().is_err() {
            return Some(DriverEnd::KeeperGone);
        }
        let due = self.due();
        let wake = async {
            match due {
                Some(at) => sleep_until(at.into()).await,
                None => std::future::pending().await,
            }
        };
        // What an engine tells before the turn has its conversation waits, so that `started` comes first.
        let is_claiming = self.turn.as_ref().is_some_and(AgentTurn::is_claiming);
        let reads = self.outbox.waiting_bytes() < WAITING_BYTES_MAX && !is_claiming;
        let process = &mut self.process;
        let activity = async {
            match process {
                Some(process) if reads && !process.is_behind() => process.next().await,
                _ => std::future::pending().await,
            }
        };
        select! {
            ready = self.link_watch.readable() => {
                if ready.is_err() {
                    return Some(DriverEnd::KeeperGone);
                }
                self.link_watch.look(&mut self.link);
                while let Some(message) = self.link.next() {
                    if let Some(end) = self.take_message(message).await {
                        return Some(end);
                    }
                }
            }
            written = self.outbox.writable() => {
                if written.is_err() {
                    return Some(DriverEnd::KeeperGone);
                }
            }
            activity = activity => match activity {
                EngineActivity::Line(line) => self.take_line(line).await,
                EngineActivity::Closed => self.engine_ended().await,
            },
            event = self.requests.next() => {
                let running = self.turn.as_ref().map(|turn| turn.number);
                self.requests.take(event, running, &mut self.outbox);
            }
            () = wake => self.pass_time().await,
            _ = sigint.recv() => {}
        }
        None
    }

    /// When something is to be done if nothing happens.
    fn due(&self) -> Option<Instant> {
        let turn = self.turn.as_ref()?;
        let stop = turn.interrupted_at.map(|at| at + INTERRUPT_TIME);
        let start = match turn.stage {
            TurnStage::Delayed { until } => Some(until),
            _ => None,
        };
        [stop, start, turn.desk.due(), self.stalled_at(turn)].into_iter().flatten().min()
    }

    /// When the engine counts as stalled. An open action or question may take as long as the turn.
    fn stalled_at(&self, turn: &AgentTurn) -> Option<Instant> {
        let is_busy = turn.recorder.has_open_actions() || turn.desk.has_questions();
        match turn.stage {
            TurnStage::Claiming { .. } | TurnStage::Delayed { .. } => None,
            TurnStage::Starting => Some(turn.progress_at + START_TIME),
            TurnStage::Running if is_busy => None,
            TurnStage::Running => Some(turn.progress_at + self.settings.stall()),
        }
    }

    async fn pass_time(&mut self) {
        let now = Instant::now();
        let Some(turn) = &mut self.turn else { return };
        if turn.interrupted_at.is_some_and(|at| at + INTERRUPT_TIME <= now) {
            return self.stop_turn(EngineEnd { interrupted: true, ..EngineEnd::default() }).await;
        }
        if matches!(turn.stage, TurnStage::Delayed { until } if until <= now) {
            return self.start_process().await;
        }
        let acts = turn.desk.pass_time(now);
        self.act(acts);
        let Some(turn) = &self.turn else { return };
        if self.stalled_at(turn).is_some_and(|at| at <= now) {
            let engine = &self.settings.engine;
            let stalled = match turn.stage {
                TurnStage::Running => {
                    let seconds = self.settings.stall().as_secs_f64();
                    let message = format!("{engine} made no progress for {seconds} s");
                    error(error_name::STALLED, message)
                }
                _ => {
                    let seconds = START_TIME.as_secs();
                    let message = format!("{engine} was not ready within {seconds} s");
                    error(error_name::START, message)
                }
            };
            self.stop_turn(EngineEnd { error: Some(stalled), ..EngineEnd::default() }).await;
        }
    }

    async fn take_message(&mut self, message: KeeperMessage) -> Option<DriverEnd> {
        match message {
            KeeperMessage::TurnStart { turn, code, .. } => self.start_turn(turn, &code).await,
            KeeperMessage::Input { turn, bytes, eof, .. } => {
                if let Some(running) = self.turn.as_mut().filter(|running| running.number == turn) {
                    let acts = running.desk.answer(&String::from_utf8_lossy(&bytes), eof);
                    self.act(acts);
                }
            }
            KeeperMessage::Interrupt { turn } => {
                if self.turn.as_ref().is_some_and(|running| running.number == turn) {
                    self.interrupt().await;
                }
            }
            KeeperMessage::ToolResult { turn, call, ok, body } => {
                self.claim_answered(turn, call, ok, &body).await;
                self.requests.answer(turn, call, ok, &body, &mut self.outbox);
            }
            KeeperMessage::Fork { .. } => {}
            KeeperMessage::Shutdown { .. } => return Some(DriverEnd::Shutdown),
            KeeperMessage::Closed => return Some(DriverEnd::KeeperGone),
        }
        None
    }

    async fn start_turn(&mut self, number: TurnNo, code: &[u8]) {
        if self.turn.is_some() {
            return;
        }
        let text = String::from_utf8_lossy(code).into_owned();
        let settings = &self.settings;
        self.turn = Some(AgentTurn {
            number,
            prompt: Prompt::read(text, &self.workspace),
            stage: TurnStage::Starting,
            recorder: TurnRecorder::new(&settings.engine),
            desk: PermissionDesk::new(
                &settings.engine,
                settings.permissions(),
                settings.permission_deadline(),
            ),
            progress_at: Instant::now(),
            interrupted_at: None,
            claim_tries: 0,
        });
        if self.link.interrupted(number) {
            return self.end_turn(EngineEnd { interrupted: true, ..EngineEnd::default() });
        }
        match self.conversation.token.clone() {
            Some(token) => self.claim(token, ClaimTime::BeforeStart),
            None => self.start_engine().await,
        }
    }

    async fn interrupt(&mut self) {
        let Some(turn) = &mut self.turn else { return };
        if turn.interrupted_at.is_some() {
            return;
        }
        match turn.stage.clone() {
            TurnStage::Claiming { call, since, .. } => {
                let turn = turn.number;
                self.conversation.may_have_changed = true;
                self.outbox.plain(FromWorker::ToolCancel { turn, call });
                let end = EngineEnd { interrupted: true, ..EngineEnd::default() };
                match since {
                    ClaimTime::BeforeStart => self.end_turn(end),
                    ClaimTime::AfterStart => self.stop_turn(end).await,
                }
            }
            TurnStage::Starting | TurnStage::Delayed { .. } => {
                self.stop_turn(EngineEnd { interrupted: true, ..EngineEnd::default() }).await;
            }
            TurnStage::Running => {
                turn.interrupted_at = Some(Instant::now());
                let acts = turn.desk.close();
                // The engine's own interrupt comes first: a refusal alone would let the turn go on.
                let outputs = self.engine.step(EngineInput::Interrupt);
                self.send_all(outputs);
                self.act(acts);
            }
        }
    }

    /// The engine has said its last word about the turn.
    async fn engine_done(&mut self, mut end: EngineEnd) {
        let Some(turn) = &self.turn else { return };
        if turn.interrupted_at.is_some() {
            // Commands of an interrupted turn may still run.
            end.interrupted = true;
            return self.stop_turn(end).await;
        }
        self.end_turn(end);
        if self.engine.runs_one_turn() {
            // The next turn has a process of its own. Clients that wait for this turn learn of its end first.
            let _ = self.outbox.flush();
            self.conversation.is_ready = false;
            if let Some(mut process) = self.process.take() {
                let _ = timeout(LAST_LINES_TIME, process.ended()).await;
                process.kill().await;
            }
        }
    }

    /// The engine's output is closed.
    async fn engine_ended(&mut self) {
        let Some(mut process) = self.process.take() else { return };
        let status = timeout(LAST_LINES_TIME, process.ended()).await;
        process.kill().await;
        self.conversation.is_ready = false;
        let Some(turn) = &self.turn else { return };
        // The keeper's signal may have reached a process that was just started, before its message is read.
        let is_interrupted = turn.interrupted_at.is_some() || self.link.interrupted(turn.number);
        if is_interrupted {
            return self.end_turn(EngineEnd { interrupted: true, ..EngineEnd::default() });
        }
        let how = match status {
            Ok(status) => match status.code() {
                Some(code) => format!("exit code {code}"),
                None => status.to_string(),
            },
            Err(_) => "it closed its output".to_owned(),
        };
        let code = status.as_ref().ok().and_then(ExitStatus::code);
        if turn.stage == TurnStage::Starting
            && let Some(other) = code.and_then(|code| self.engine.fallback(code))
        {
            self.engine = other;
            let text = format!(
                "{engine} has no server mode; a process runs for each turn",
                engine = self.settings.engine
            );
            self.tell(&AgentEvent::synthetic(AgentEventKind::Notice { text, id: None }));
            return Box::pin(self.start_process()).await;
        }
        let log = self.home.join(LOG_FILE);
        let (engine, log) = (&self.settings.engine, log.display());
        let message = format!("{engine} ended in the turn ({how}); its log is {log}");
        let ended = Some(error(error_name::EXITED, message));
        self.end_turn(EngineEnd { error: ended, ..EngineEnd::default() });
    }

    /// Ends the turn, and the engine with everything that it started. The next turn resumes the conversation.
    async fn stop_turn(&mut self, end: EngineEnd) {
        if let Some(process) = self.process.take() {
            process.kill().await;
        }
        self.conversation.is_ready = false;
        self.end_turn(end);
    }

    fn end_turn(&mut self, end: EngineEnd) {
        let Some(mut turn) = self.turn.take() else { return };
        let acts = turn.desk.close();
        let number = turn.number;
        self.turn = Some(turn);
        self.act(acts);
        self.requests.end_turn();
        let Some(mut turn) = self.turn.take() else { return };
        let outcome = match (&end.error, end.interrupted) {
            (_, true) => WorkerOutcome::Interrupted,
            (Some(_), false) => WorkerOutcome::Error,
            (None, false) => WorkerOutcome::Ok,
        };
        let failed = end.error.clone().filter(|_| outcome == WorkerOutcome::Error);
        let events = turn.recorder.finish(end);
        for event in &events {
            self.tell_in(number, event);
        }
        if let Some(AgentEventKind::Completed { answer, .. }) = events.last().map(|last| &last.kind)
            && !answer.is_empty()
        {
            let line = format!("{}\n", answer.trim_end());
            self.outbox.output(number, Stream::Result, false, line.as_bytes());
        }
        let error = failed.map(|AgentError { name, message }| WorkerError { name, message });
        self.outbox.plain(FromWorker::Idle {
            turn: number,
            outcome,
            error,
            exit_code: None,
            value: None,
        });
    }

    fn tell(&mut self, event: &AgentEvent) {
        let Some(number) = self.turn.as_ref().map(|turn| turn.number) else { return };
        self.tell_in(number, event);
    }

    /// Tells everybody an event of the turn.
    fn tell_in(&mut self, turn: TurnNo, event: &AgentEvent) {
        let id = display_id(&event.kind);
        // Events are bounded, so they fit into a message.
        let Ok(body) = serde_json::to_vec(event) else { return };
        let _ = self.outbox.with_body(&body, |more| FromWorker::Display {
            turn,
            mime: MIME.to_owned(),
            id: id.clone(),
            update: id.is_some(),
            more,
        });
    }
}

/// Events with the same id replace each other.
fn display_id(kind: &AgentEventKind) -> Option<String> {
    match kind {
        AgentEventKind::Action { id, .. } => Some(format!("action:{}", short(id))),
        AgentEventKind::Notice { id: Some(id), .. } => Some(format!("notice:{}", short(id))),
        AgentEventKind::Permission { id, .. } => Some(format!("permission:{}", short(id))),
        AgentEventKind::Plan { .. } => Some("plan".to_owned()),
        AgentEventKind::Usage(_) => Some("usage".to_owned()),
        _ => None,
    }
}

fn short(id: &str) -> &str {
    &id[..id.floor_char_boundary(200)]
}
