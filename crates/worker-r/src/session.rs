//! One session: the link to the keeper, the running turn, its input and its outcome. Never calls R, so no jump of R
//! can leave it half done.

use std::collections::VecDeque;

use serde_json::Value;
use windlass_worker_kit::{
    CallNo, Display, KeeperMessage, Link, Stream, TurnContext, TurnNo, WorkerLinkError,
    WorkerOutcome,
};

/// Bytes of a printed result that are collected before they are sent.
const RESULT_BYTES: usize = 64 * 1024;

/// The status with which `Rscript` ends after an error, and after an interrupt.
const STATUS_ERROR: i32 = 1;
const STATUS_INTERRUPTED: i32 = 130;

/// Where a turn is. R's top level calls back after every expression and after every jump; the phase tells these
/// two apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Phase {
    Parsing,
    /// The expression of this number is being evaluated or printed.
    Evaluating(usize),
    /// R's top level prints the warnings of the expression of this number.
    Closing(usize),
    /// The plots of the turn are being shown.
    Showing,
}

/// What R does next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ConsoleStep {
    /// Parse the code of the turn.
    Parse,
    /// Evaluate the expression of this number.
    Evaluate(usize),
    /// Show the plots of the turn.
    Show,
    /// Clean up and end the process.
    Exit(LeaveCause),
}

/// Why the process ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LeaveCause {
    Shutdown,
    /// The keeper has closed the socket.
    Closed,
}

/// An error that no code has handled.
#[derive(Debug)]
pub struct RaisedError {
    pub name: String,
    pub message: String,
    pub traceback: String,
}

/// How a wait within a turn ended.
#[derive(Debug)]
pub enum Waited<T> {
    Done(T),
    Interrupted,
    Exit(LeaveCause),
}

/// The turn that runs.
#[derive(Debug)]
pub struct RTurn {
    pub number: TurnNo,
    pub code: String,
    pub context: Option<Box<TurnContext>>,
    pub phase: Phase,
    /// Number of expressions in the code.
    pub count: usize,
    pub error: Option<RaisedError>,
    /// The status with which the code has called `quit`.
    pub quit: Option<i32>,
    pub interrupt: RInterrupt,
    input: ConsoleInput,
    /// The printed value of the last expression, until it is sent. `None` while output is not the result.
    result: Option<Vec<u8>>,
}

/// How far an interrupt of the running turn has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum RInterrupt {
    None,
    /// Its frame was read. R itself seems to have received the SIGINT, in a wait that R interrupts on its own, and
    /// the code has handled the interrupt.
    Presumed,
    /// Its frame was read. Code that handles the interrupt may continue.
    Requested,
    /// No code handles it, so it ends the turn.
    Uncaught,
}

/// Input that has come and was not read.
#[derive(Debug, Default)]
struct ConsoleInput {
    unread: VecDeque<u8>,
    /// The end of input follows what is unread.
    ended: bool,
}

#[derive(Debug)]
pub struct RSession {
    link: Link,
    waiting: VecDeque<KeeperMessage>,
    turn: Option<RTurn>,
    last_call: u64,
    /// Interrupts for other turns that were read in this turn and whose SIGINT has not come yet.
    late_signals: u32,
}

/// One call of a host tool.
#[derive(Debug)]
pub struct RToolRequest {
    pub name: String,
    pub arguments: Vec<u8>,
    pub deadline_ms: Option<u64>,
}

/// The answer of a host tool: its value, or the error object.
pub type RToolAnswer = Result<Value, Value>;

impl RSession {
    pub fn new(link: Link) -> Self {
        Self { link, waiting: VecDeque::new(), turn: None, last_call: 0, late_signals: 0 }
    }

    pub fn ready(&mut self, worker: &str, capabilities: &[&str]) -> Result<(), WorkerLinkError> {
        self.link.ready(worker, capabilities, Some(&crate::start::figures()))
    }

    pub fn end(&mut self, reason: &str) {
        // The process ends in any case.
        let _ = self.link.session_end(reason);
    }

    pub fn turn(&mut self) -> Option<&mut RTurn> {
        self.turn.as_mut()
    }

    /// Decides what R does next. Called at R's top level only, so a turn in the phase `Evaluating` was left by a
    /// jump. Waits for the next turn if none runs. `pending` says that R has not yet raised an interrupt, `raised` that R
    /// may have raised one without the worker's knowledge.
    pub fn step(&mut self, pending: bool, raised: bool) -> ConsoleStep {
        loop {
            let Some(phase) = self.turn.as_ref().map(|turn| turn.phase) else {
                match self.next_turn() {
                    Ok(()) => return ConsoleStep::Parse,
                    Err(cause) => return ConsoleStep::Exit(cause),
                }
            };
            let fresh = self.read_frames().interrupted;
            let Some(turn) = self.turn.as_mut() else { continue };
            let presumed = fresh && raised;
            if presumed {
                turn.interrupt = RInterrupt::Presumed;
            }
            let unraised = fresh && !presumed || pending;
            let next = match phase {
                Phase::Parsing | Phase::Evaluating(_) => {
                    turn.note_jump();
                    None
                }
                Phase::Closing(_) if unraised => {
                    turn.interrupt = RInterrupt::Uncaught;
                    None
                }
                Phase::Closing(index) if turn.is_stopped() || index + 1 >= turn.count => None,
                Phase::Closing(index) => Some(index + 1),
                Phase::Showing => {
                    self.end_turn();
                    continue;
                }
            };
            let Some(next) = next else {
                turn.phase = Phase::Showing;
                return ConsoleStep::Show;
            };
            turn.phase = Phase::Evaluating(next);
            return ConsoleStep::Evaluate(next);
        }
    }

    fn next_turn(&mut self) -> Result<(), LeaveCause> {
        loop {
            let message = match self.waiting.pop_front() {
                Some(message) => message,
                None => self.link.wait(),
            };
            match message {
                KeeperMessage::TurnStart { turn, code, context } => {
                    self.begin_turn(turn, &code, context);
                    if self.turn.is_some() {
                        return Ok(());
                    }
                }
                KeeperMessage::Shutdown { .. } => return Err(LeaveCause::Shutdown),
                KeeperMessage::Closed => return Err(LeaveCause::Closed),
                // Late for a turn that is over, or not for this worker.
                _ => {}
            }
        }
    }

    /// Begins a turn, unless it was interrupted before it began or its code is not text.
    fn begin_turn(&mut self, number: TurnNo, code: &[u8], context: Option<Box<TurnContext>>) {
        if self.link.interrupted(number) {
            self.send_idle(number, WorkerOutcome::Interrupted, None, None);
            return;
        }
        let Some(code) = text_without_nul(code) else {
            let message = "the code contains a NUL byte or is not UTF-8";
            self.send(|link| {
                let text = format!("ParseError: {message}\n");
                link.output(number, Stream::Traceback, text.as_bytes())
            });
            self.send_idle(number, WorkerOutcome::Error, Some(("ParseError", message)), None);
            return;
        };
        self.turn = Some(RTurn {
            number,
            code,
            context,
            phase: Phase::Parsing,
            count: 0,
            error: None,
            quit: None,
            interrupt: RInterrupt::None,
            input: ConsoleInput::default(),
            result: None,
        });
    }

    fn end_turn(&mut self) {
        self.end_result();
        let Some(turn) = self.turn.take() else { return };
        let number = turn.number;
        if let (Some(error), None) = (&turn.error, turn.quit) {
            self.send(|link| link.output(number, Stream::Traceback, error.traceback.as_bytes()));
        }
        let status = turn.quit.map(|status| format!("status {status}"));
        let (outcome, error) = match (&turn.error, &status) {
            _ if turn.was_interrupted() => (WorkerOutcome::Interrupted, None),
            (_, Some(_)) if turn.quit == Some(0) => (WorkerOutcome::Ok, None),
            (_, Some(status)) => (WorkerOutcome::Error, Some(("quit", status.as_str()))),
            (Some(error), None) => {
                (WorkerOutcome::Error, Some((error.name.as_str(), error.message.as_str())))
            }
            (None, None) => (WorkerOutcome::Ok, None),
        };
        self.send_idle(number, outcome, error, turn.quit);
    }

    /// Says that the turn is over. `quit` is the status that the code has given to `quit`.
    fn send_idle(
        &mut self,
        turn: TurnNo,
        outcome: WorkerOutcome,
        error: Option<(&str, &str)>,
        quit: Option<i32>,
    ) {
        let status = match outcome {
            WorkerOutcome::Ok => 0,
            WorkerOutcome::Interrupted => STATUS_INTERRUPTED,
            WorkerOutcome::Error => quit.unwrap_or(STATUS_ERROR),
        };
        self.send(|link| link.idle_with_status(turn, outcome, error, Some(status)));
    }

    /// Sends a message. If the socket is closed, the next wait says so.
    fn send(&mut self, message: impl FnOnce(&mut Link) -> Result<(), WorkerLinkError>) {
        let _ = message(&mut self.link);
    }

    /// Reads the frames that are there. Returns whether the running turn was interrupted, and whether
    /// the session ends.
    pub fn read_frames(&mut self) -> FramesRead {
        self.link.look();
        let mut end = None;
        while let Some(message) = self.link.next() {
            match message {
                KeeperMessage::Interrupt { turn } => {
                    let running = self.turn.as_ref().is_some_and(|running| running.number == turn);
                    if !running && self.turn.is_some() {
                        self.late_signals = self.late_signals.saturating_add(1);
                    }
                }
                KeeperMessage::Closed => {
                    if self.waiting.back() != Some(&KeeperMessage::Closed) {
                        self.waiting.push_back(KeeperMessage::Closed);
                    }
                    end = Some(LeaveCause::Closed);
                    break;
                }
                other => {
                    if matches!(other, KeeperMessage::Shutdown { .. }) {
                        end = Some(LeaveCause::Shutdown);
                    }
                    self.waiting.push_back(other);
                }
            }
        }
        let mut interrupted = false;
        if let Some(turn) = &mut self.turn {
            let known = turn.interrupt != RInterrupt::None;
            interrupted = !known && self.link.interrupted(turn.number);
            if interrupted {
                turn.interrupt = RInterrupt::Requested;
            }
        }
        FramesRead { interrupted, end }
    }

    /// Whether a SIGINT belongs to an interrupt for another turn. Its frame may have been read before.
    pub fn takes_late_signal(&mut self) -> bool {
        let is_late = self.late_signals > 0;
        self.late_signals = self.late_signals.saturating_sub(1);
        is_late
    }

    /// The next message that belongs to the running turn.
    fn wait_in_turn(&mut self, number: TurnNo) -> Waited<KeeperMessage> {
        loop {
            let message = match self.waiting.pop_front() {
                Some(message) => message,
                None => self.link.wait(),
            };
            match message {
                KeeperMessage::Interrupt { turn } if turn == number => {
                    if let Some(turn) = &mut self.turn {
                        turn.interrupt = turn.interrupt.max(RInterrupt::Requested);
                    }
                    return Waited::Interrupted;
                }
                KeeperMessage::Shutdown { .. } => return Waited::Exit(LeaveCause::Shutdown),
                KeeperMessage::Closed => return Waited::Exit(LeaveCause::Closed),
                KeeperMessage::Interrupt { .. }
                | KeeperMessage::TurnStart { .. }
                | KeeperMessage::Fork { .. } => {}
                message => return Waited::Done(message),
            }
        }
    }

    /// The next line of input with its line feed, at most `most` bytes. An empty line is the end of input.
    pub fn read_line(&mut self, prompt: &str, secret: bool, most: usize) -> Waited<Vec<u8>> {
        self.flush_result();
        let Some(turn) = &mut self.turn else { return Waited::Done(Vec::new()) };
        let number = turn.number;
        if turn.input.unread.is_empty() && !turn.input.ended {
            self.send(|link| link.stdin_wait(number, prompt, secret));
            match self.wait_for_input(number) {
                Waited::Done(()) => {}
                Waited::Interrupted => return Waited::Interrupted,
                Waited::Exit(cause) => return Waited::Exit(cause),
            }
        }
        let Some(turn) = &mut self.turn else { return Waited::Done(Vec::new()) };
        Waited::Done(turn.input.take_line(most))
    }

    fn wait_for_input(&mut self, number: TurnNo) -> Waited<()> {
        loop {
            match self.wait_in_turn(number) {
                Waited::Done(KeeperMessage::Input { turn, bytes, eof, .. }) if turn == number => {
                    if let Some(turn) = &mut self.turn {
                        turn.input.add(&bytes, eof);
                    }
                    return Waited::Done(());
                }
                Waited::Done(_) => {}
                Waited::Interrupted => return Waited::Interrupted,
                Waited::Exit(cause) => return Waited::Exit(cause),
            }
        }
    }

    /// Calls host tools, all at once, and waits for all answers. They are in the order of the requests.
    pub fn call_tools(&mut self, requests: &[RToolRequest]) -> Waited<Vec<RToolAnswer>> {
        self.flush_result();
        let Some(turn) = &self.turn else { return Waited::Done(Vec::new()) };
        let number = turn.number;
        let first = self.last_call + 1;
        let mut answers: Vec<Option<RToolAnswer>> = Vec::new();
        for request in requests {
            self.last_call += 1;
            let call = CallNo(self.last_call);
            let RToolRequest { name, arguments, deadline_ms } = request;
            let sent = self.link.tool_call(number, call, name, *deadline_ms, arguments);
            answers.push(sent.err().map(|error| Err(refused(&error))));
        }
        while answers.iter().any(Option::is_none) {
            match self.wait_in_turn(number) {
                Waited::Done(KeeperMessage::ToolResult {
                    call: CallNo(call), ok, body, ..
                }) => {
                    let index = call.checked_sub(first).and_then(|at| usize::try_from(at).ok());
                    let Some(slot) = index.and_then(|at| answers.get_mut(at)) else { continue };
                    slot.get_or_insert_with(|| answer(ok, &body));
                }
                Waited::Done(_) => {}
                Waited::Interrupted => return Waited::Interrupted,
                Waited::Exit(cause) => return Waited::Exit(cause),
            }
        }
        Waited::Done(answers.into_iter().flatten().collect())
    }

    /// Shows something. Returns why it cannot be shown.
    pub fn display(&mut self, display: Display<'_>, body: &[u8]) -> Result<(), String> {
        self.flush_result();
        let Some(turn) = &self.turn else { return Err("no turn is running".to_owned()) };
        self.link.display(turn.number, display, body).map_err(|error| error.to_string())
    }

    /// From here on, printed text is the turn's result.
    pub fn begin_result(&mut self) {
        if let Some(turn) = &mut self.turn {
            turn.result = Some(Vec::new());
        }
    }

    /// Takes printed text if it is the result.
    pub fn take_printed(&mut self, bytes: &[u8]) -> bool {
        let Some(result) = self.turn.as_mut().and_then(|turn| turn.result.as_mut()) else {
            return false;
        };
        result.extend_from_slice(bytes);
        if result.len() >= RESULT_BYTES {
            self.flush_result();
        }
        true
    }

    fn flush_result(&mut self) {
        let Some(turn) = &mut self.turn else { return };
        let (number, Some(result)) = (turn.number, &mut turn.result) else { return };
        if !result.is_empty() {
            let bytes = std::mem::take(result);
            self.send(|link| link.output(number, Stream::Result, &bytes));
        }
    }

    pub fn end_result(&mut self) {
        self.flush_result();
        if let Some(turn) = &mut self.turn {
            turn.result = None;
        }
    }
}

/// What [`RSession::read_frames`] has found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FramesRead {
    /// The running turn was interrupted just now.
    pub interrupted: bool,
    /// The keeper has asked the worker to end, or is gone.
    pub end: Option<LeaveCause>,
}

impl RTurn {
    fn is_stopped(&self) -> bool {
        self.interrupt == RInterrupt::Uncaught || self.error.is_some() || self.quit.is_some()
    }

    /// R has returned to its top level in the middle of the turn.
    fn note_jump(&mut self) {
        if self.is_stopped() {
            return;
        }
        match self.interrupt {
            RInterrupt::None => self.error = Some(aborted()),
            _ => self.interrupt = RInterrupt::Uncaught,
        }
    }

    /// Code may turn an interrupt into an error; the turn was interrupted all the same.
    fn was_interrupted(&self) -> bool {
        match self.interrupt {
            RInterrupt::Uncaught => true,
            RInterrupt::Presumed | RInterrupt::Requested => self.error.is_some(),
            RInterrupt::None => false,
        }
    }
}

impl ConsoleInput {
    fn add(&mut self, bytes: &[u8], eof: bool) {
        self.unread.extend(bytes);
        self.ended |= eof;
        // R asks until it has a whole line. An answer without a line feed is whole all the same.
        if !bytes.is_empty() && bytes.last() != Some(&b'\n') || bytes.is_empty() && !eof {
            self.unread.push_back(b'\n');
        }
    }

    fn take_line(&mut self, most: usize) -> Vec<u8> {
        if self.unread.is_empty() {
            // The end is reported once. Code that reads again asks again.
            self.ended = false;
        }
        let end = self.unread.iter().position(|byte| *byte == b'\n');
        let count = end.map_or(self.unread.len(), |at| at + 1).min(most);
        self.unread.drain(..count).collect()
    }
}

fn aborted() -> RaisedError {
    let message = "the code returned to the top level without an error".to_owned();
    RaisedError { name: "Abort".to_owned(), traceback: format!("{message}\n"), message }
}

fn text_without_nul(code: &[u8]) -> Option<String> {
    let text = std::str::from_utf8(code).ok()?;
    (!text.contains('\0')).then(|| text.replace("\r\n", "\n"))
}

fn answer(ok: bool, body: &[u8]) -> RToolAnswer {
    let value = serde_json::from_slice(body).map_err(|error| {
        serde_json::json!({"message": format!("the answer is not JSON: {error}"), "code": "tool_failed"})
    })?;
    if ok { Ok(value) } else { Err(value) }
}

fn refused(error: &WorkerLinkError) -> Value {
    let code = match error {
        WorkerLinkError::Refused(_) => "message_too_large",
        _ => "tool_host_gone",
    };
    serde_json::json!({"message": error.to_string(), "code": code})
}
