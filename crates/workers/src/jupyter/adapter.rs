//! The worker of a kernel that answers: passes the keeper's messages on to the kernel, and the kernel's messages
//! on to the keeper. One task owns everything; nothing in it blocks.

use std::io;
use std::process::ExitStatus;
use std::time::Duration;

use jupyter_protocol::{ExecuteRequest, InterruptRequest, ShutdownRequest};
use rustix::process::Signal;
use tokio::select;
use tokio::signal::unix::Signal as SignalStream;
use tokio::time::{Instant, sleep_until, timeout};
use windlass_kernelspecs::InterruptMode;
use windlass_protocol::TurnNo;
use windlass_protocol::worker::{FromWorker, WorkerOutcome};
use windlass_worker_kit::{KeeperMessage, Link, StartupFigures};

use super::displays::Displays;
use super::input::{InputAnswer, UnreadInput};
use super::kernel::KernelProcess;
use super::turn::{KernelTurn, TurnEvent, TurnStep};
use super::wire::{Channels, KernelArrival, KernelMessage};
use crate::link_socket::LinkWatch;
use crate::outbox::Outbox;
use crate::socket_calls::SocketCalls;

/// Bytes of frames that wait for the keeper from which on the kernel is stopped. A kernel drops output that
/// nobody reads, so the worker always reads, and stops the kernel instead.
const STOP_BYTES: usize = 8 * 1024 * 1024;

/// The same limit after an interrupt: the kernel must run to see the interrupt.
const INTERRUPTED_STOP_BYTES: usize = 64 * 1024 * 1024;

/// Bytes of waiting frames below which a stopped kernel continues.
const CONTINUE_BYTES: usize = 1024 * 1024;

/// How long a dead kernel's last output may take. The end of its channel comes at once, unless a child of the
/// kernel holds the socket open.
const LAST_OUTPUT_TIME: Duration = Duration::from_millis(250);

/// How long a kernel that has closed a channel may take to end.
const CLOSED_CHANNEL_TIME: Duration = Duration::from_secs(2);

/// How long the last frames may take until the keeper has read them.
const LAST_FRAMES_TIME: Duration = Duration::from_secs(5);

/// How long a kernel may take to obey a shutdown.
const SHUTDOWN_TIME_MAX: Duration = Duration::from_secs(1);

/// Prefixes of the ids of requests. The number of the turn follows.
const TURN_ID: &str = "turn-";
const PROBE_ID: &str = "probe-";

/// What is special about a kernel.
#[derive(Debug)]
pub struct KernelTraits {
    pub interrupt_mode: InterruptMode,
    /// Whether the kernel sends output of a turn after it is idle.
    pub is_late: bool,
    /// Whether the kernel sends the values of expressions as displays.
    pub shows_values: bool,
    /// What the kernel takes for the end of its standard input.
    pub end_of_input: &'static str,
}

/// Why the worker ends.
#[derive(Debug)]
pub enum WorkerEnd {
    /// The keeper asked for it.
    Shutdown {
        grace: Duration,
    },
    /// The keeper is gone.
    KeeperGone,
    KernelEnded(ExitStatus),
    KernelBroken(String),
}

/// Which turn a message of the kernel belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum MessageOwner {
    Running(TurnNo),
    Earlier(TurnNo),
    Nobody,
}

/// A worker and its kernel.
pub struct Adapter {
    link: Link,
    link_watch: LinkWatch,
    outbox: Outbox,
    process: KernelProcess,
    channels: Channels,
    traits: KernelTraits,
    turn: Option<KernelTurn>,
    /// The latest turn that has ended.
    last_turn: Option<TurnNo>,
    input: UnreadInput,
    displays: Displays,
    tools: SocketCalls,
    malformed: u64,
}

impl Adapter {
    pub fn new(
        link: Link,
        process: KernelProcess,
        channels: Channels,
        traits: KernelTraits,
        tools: SocketCalls,
    ) -> io::Result<Self> {
        Ok(Self {
            link_watch: LinkWatch::new(&link)?,
            outbox: Outbox::new(&link)?,
            link,
            process,
            channels,
            input: UnreadInput::new(traits.end_of_input),
            displays: Displays::new(traits.shows_values),
            traits,
            turn: None,
            last_turn: None,
            tools,
            malformed: 0,
        })
    }

    /// Says that the worker is ready.
    pub fn ready(&mut self, worker: &str, capabilities: &[&str], startup: &StartupFigures) {
        self.outbox.ready(worker, capabilities, startup);
    }

    /// Runs turns until the session or the kernel ends. SIGINT is for the keeper's interrupts, which also come as
    /// messages, so the signal itself does nothing.
    pub async fn run(&mut self, sigint: &mut SignalStream) -> WorkerEnd {
        loop {
            if let Some(end) = self.advance().await {
                return end;
            }
            let wakes_at = self.turn.as_ref().and_then(KernelTurn::wakes_at);
            let wake = async {
                match wakes_at {
                    Some(time) => sleep_until(time).await,
                    None => std::future::pending().await,
                }
            };
            let end = select! {
                status = self.process.ended() => {
                    self.pass_last_output().await;
                    Some(WorkerEnd::KernelEnded(status))
                }
                ready = self.link_watch.readable() => {
                    if ready.is_err() {
                        return WorkerEnd::KeeperGone;
                    }
                    self.link_watch.look(&mut self.link);
                    self.take_messages().await
                }
                written = self.outbox.writable() => {
                    written.err().map(|_| WorkerEnd::KeeperGone)
                }
                arrival = self.channels.next() => self.take_arrival(arrival).await,
                event = self.tools.next() => {
                    self.tools.take(event, self.turn.as_ref().map(|turn| turn.number), &mut self.outbox);
                    None
                }
                () = wake => None,
                _ = sigint.recv() => None,
            };
            if end.is_some() {
                return end.unwrap_or(WorkerEnd::KeeperGone);
            }
        }
    }

    /// Does what the state of the turn asks for, writes frames, and stops or continues the kernel.
    async fn advance(&mut self) -> Option<WorkerEnd> {
        while let Some(turn) = &mut self.turn {
            let step = turn.step(self.traits.is_late, Instant::now());
            let number = turn.number;
            match step {
                TurnStep::Wait => break,
                TurnStep::Interrupt => {
                    if let Err(end) = self.interrupt(number).await {
                        return Some(end);
                    }
                }
                TurnStep::Probe => {
                    if let Err(error) = self.channels.ask_info(&format!("{PROBE_ID}{number}")).await
                    {
                        return Some(WorkerEnd::KernelBroken(error.to_string()));
                    }
                }
                TurnStep::End => self.end_turn(),
            }
        }
        if self.outbox.flush().is_err() {
            return Some(WorkerEnd::KeeperGone);
        }
        self.limit_flow();
        None
    }

    fn limit_flow(&mut self) {
        let waiting = self.outbox.waiting_bytes();
        let interrupted = self.turn.as_ref().is_some_and(KernelTurn::is_interrupted);
        let limit = if interrupted { INTERRUPTED_STOP_BYTES } else { STOP_BYTES };
        let resumes = waiting < CONTINUE_BYTES || (interrupted && waiting < limit);
        let stopped = if self.process.is_stopped() { !resumes } else { waiting >= limit };
        self.process.set_stopped(stopped);
    }

    async fn interrupt(&mut self, turn: TurnNo) -> Result<(), WorkerEnd> {
        self.input.clear();
        self.process.set_stopped(false);
        match self.traits.interrupt_mode {
            InterruptMode::Signal => {
                self.process.signal(Signal::INT);
                // An event loop that waits for messages sees the signal only after the next message.
                let nudged = self.channels.ask_info(&format!("nudge-{turn}")).await;
                nudged.map_err(|error| WorkerEnd::KernelBroken(error.to_string()))
            }
            InterruptMode::Message => {
                let id = format!("interrupt-{turn}");
                let sent = self.channels.send_control(&id, InterruptRequest {}).await;
                sent.map_err(|error| WorkerEnd::KernelBroken(error.to_string()))
            }
        }
    }

    fn end_turn(&mut self) {
        let Some(turn) = self.turn.take() else { return };
        let (outcome, error) = turn.outcome();
        if outcome != WorkerOutcome::Ok && !turn.has_error() {
            self.displays.show_reply_traceback(turn.number, &mut self.outbox);
        }
        self.input.clear();
        self.tools.end_turn();
        self.last_turn = Some(turn.number);
        self.outbox.plain(FromWorker::Idle {
            turn: turn.number,
            outcome,
            error,
            exit_code: None,
            value: None,
        });
    }

    /// Takes everything that the keeper has sent.
    async fn take_messages(&mut self) -> Option<WorkerEnd> {
        loop {
            while let Some(message) = self.link.next() {
                if let Some(end) = self.take_message(message).await {
                    return Some(end);
                }
            }
            self.link.look();
            let message = self.link.next()?;
            if let Some(end) = self.take_message(message).await {
                return Some(end);
            }
        }
    }

    async fn take_message(&mut self, message: KeeperMessage) -> Option<WorkerEnd> {
        match message {
            KeeperMessage::TurnStart { turn, code, .. } => {
                return self.start_turn(turn, &code).await;
            }
            KeeperMessage::Input { turn, bytes, eof, .. } => {
                if self.is_running(turn)
                    && let Some(answer) = self.input.take(&bytes, eof)
                {
                    return self.answer_input(answer).await;
                }
            }
            KeeperMessage::Interrupt { turn } => {
                if self.is_running(turn) {
                    self.apply(TurnEvent::InterruptAsked);
                }
            }
            KeeperMessage::ToolResult { turn, call, ok, body } => {
                self.tools.answer(turn, call, ok, &body, &mut self.outbox);
            }
            KeeperMessage::Shutdown { grace } => return Some(WorkerEnd::Shutdown { grace }),
            KeeperMessage::Closed => return Some(WorkerEnd::KeeperGone),
            // This worker does not have the capability.
            KeeperMessage::Fork { .. } => {}
        }
        None
    }

    async fn start_turn(&mut self, turn: TurnNo, code: &[u8]) -> Option<WorkerEnd> {
        self.displays.begin_turn();
        if self.link.interrupted(turn) {
            self.last_turn = Some(turn);
            let outcome = WorkerOutcome::Interrupted;
            self.outbox.plain(FromWorker::Idle {
                turn,
                outcome,
                error: None,
                exit_code: None,
                value: None,
            });
            return None;
        }
        self.turn = Some(KernelTurn::new(turn));
        let request = ExecuteRequest {
            code: String::from_utf8_lossy(code).into_owned(),
            allow_stdin: true,
            ..ExecuteRequest::default()
        };
        let sent = self.channels.execute(&format!("{TURN_ID}{turn}"), request).await;
        sent.err().map(|error| WorkerEnd::KernelBroken(error.to_string()))
    }

    async fn take_arrival(&mut self, arrival: KernelArrival) -> Option<WorkerEnd> {
        match arrival {
            KernelArrival::IoPub(message) => self.take_output(&message),
            KernelArrival::Shell(message) => self.take_reply(&message),
            KernelArrival::Stdin(message) => return self.take_input_request(message).await,
            KernelArrival::Control => {}
            KernelArrival::Malformed(cause) => {
                self.malformed += 1;
                if self.malformed == 1 {
                    eprintln!("windlass-worker: a message of the kernel was dropped: {cause}");
                }
            }
            KernelArrival::Broken(cause) => {
                // The channel of a kernel that ends closes just before its process ends.
                let ended = timeout(CLOSED_CHANNEL_TIME, self.process.ended()).await;
                self.pass_last_output().await;
                return Some(match ended {
                    Ok(status) => WorkerEnd::KernelEnded(status),
                    Err(_) => WorkerEnd::KernelBroken(cause),
                });
            }
        }
        None
    }

    fn take_output(&mut self, message: &KernelMessage) {
        match message.kind.as_str() {
            "status" => self.take_status(message),
            "execute_input" if self.is_about_turn(message) => self.apply(TurnEvent::Executing),
            "clear_output" => self.displays.clear(),
            _ => match self.owner(&message.parent) {
                MessageOwner::Running(turn) => {
                    let error = self.displays.show(turn, message, &mut self.outbox);
                    if let Some(error) = error {
                        self.apply(error);
                    }
                }
                MessageOwner::Earlier(turn) => {
                    self.traits.is_late |= message.kind == "execute_result";
                    self.displays.show_late(turn, message, &mut self.outbox);
                }
                MessageOwner::Nobody => {}
            },
        }
    }

    fn take_status(&mut self, message: &KernelMessage) {
        let state = message.text("execution_state");
        if self.is_about_turn(message) {
            match state {
                "busy" => self.apply(TurnEvent::Busy),
                "idle" => self.apply(TurnEvent::Idle),
                _ => {}
            }
        } else if self.is_about_probe(message) && state == "idle" {
            self.apply(TurnEvent::ProbeIdle);
        }
    }

    fn take_reply(&mut self, message: &KernelMessage) {
        if self.is_about_probe(message) {
            self.apply(TurnEvent::ProbeReplied);
        } else if self.is_about_turn(message)
            && message.kind == "execute_reply"
            && let Some(turn) = &self.turn
        {
            let status = self.displays.take_reply(turn.number, &message.content, &mut self.outbox);
            self.apply(TurnEvent::Replied(status));
        }
    }

    async fn take_input_request(&mut self, message: KernelMessage) -> Option<WorkerEnd> {
        // What was printed before the request is already on the output channel.
        while let Some(KernelArrival::IoPub(output)) = self.channels.next_output_at_hand().await {
            self.take_output(&output);
        }
        let MessageOwner::Running(turn) = self.owner(&message.parent) else { return None };
        if message.kind != "input_request" {
            return None;
        }
        let prompt = message.text("prompt").to_owned();
        let secret = message.content["password"].as_bool().unwrap_or_default();
        match self.input.ask(message.header) {
            Some(answer) => self.answer_input(answer).await,
            None => {
                self.outbox.plain(FromWorker::StdinWait { turn, prompt, secret });
                None
            }
        }
    }

    async fn answer_input(&mut self, answer: InputAnswer) -> Option<WorkerEnd> {
        let sent = self.channels.answer_input(&answer.request, answer.text).await;
        sent.err().map(|error| WorkerEnd::KernelBroken(error.to_string()))
    }

    fn apply(&mut self, event: TurnEvent) {
        if let Some(turn) = &mut self.turn {
            turn.apply(event, Instant::now());
        }
    }

    fn is_running(&self, turn: TurnNo) -> bool {
        self.turn.as_ref().is_some_and(|running| running.number == turn)
    }

    fn is_about_turn(&self, message: &KernelMessage) -> bool {
        numbered(&message.parent, TURN_ID).is_some_and(|turn| self.is_running(turn))
    }

    fn is_about_probe(&self, message: &KernelMessage) -> bool {
        numbered(&message.parent, PROBE_ID).is_some_and(|turn| self.is_running(turn))
    }

    /// A message with another parent than a turn belongs to the running turn, or else to the latest one.
    fn owner(&self, parent: &str) -> MessageOwner {
        let running = self.turn.as_ref().map(|turn| turn.number);
        match (numbered(parent, TURN_ID), running) {
            (Some(turn), Some(number)) if turn == number => MessageOwner::Running(turn),
            (Some(turn), _) if Some(turn) <= self.last_turn => MessageOwner::Earlier(turn),
            (Some(_), _) => MessageOwner::Nobody,
            (None, Some(turn)) => MessageOwner::Running(turn),
            (None, None) => self.last_turn.map_or(MessageOwner::Nobody, MessageOwner::Earlier),
        }
    }

    /// Passes on what a kernel has sent before it ended.
    async fn pass_last_output(&mut self) {
        let _ = timeout(LAST_OUTPUT_TIME, async {
            while let Some(arrival) = self.channels.next_output_to_end().await {
                match arrival {
                    KernelArrival::IoPub(message) => self.take_output(&message),
                    KernelArrival::Broken(_) => return,
                    _ => {}
                }
            }
        })
        .await;
    }

    /// Ends the kernel, politely if there is time.
    pub async fn finish(&mut self, end: &WorkerEnd) {
        if let WorkerEnd::Shutdown { grace } = end {
            self.process.set_stopped(false);
            let request = ShutdownRequest { restart: false };
            if self.channels.send_control("shutdown", request).await.is_ok() {
                let _ = timeout(SHUTDOWN_TIME_MAX.min(*grace / 2), self.process.ended()).await;
            }
            self.outbox.plain(FromWorker::SessionEnd { reason: "shutdown".to_owned() });
        }
        if !matches!(end, WorkerEnd::KernelEnded(_)) {
            self.process.kill().await;
        }
        if !matches!(end, WorkerEnd::KeeperGone) {
            let _ = timeout(LAST_FRAMES_TIME, self.outbox.drain()).await;
        }
    }
}

fn numbered(id: &str, prefix: &str) -> Option<TurnNo> {
    id.strip_prefix(prefix)?.parse().ok().map(TurnNo)
}
