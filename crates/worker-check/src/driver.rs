//! Plays the keeper for one worker process: starts it, sends it frames and signals, and reads what it says.
//! Every frame is checked against the protocol's limits and against the running turn; a violation fails the
//! case. Every wait has a deadline.

use std::collections::VecDeque;
use std::io;
use std::path::Path;
use std::process::ExitStatus;
use std::time::{Duration, Instant};

use bytes::Bytes;
use rustix::process::Signal;
use serde_json::{Value, json};
use windlass_protocol::frame::{self, Frame};
use windlass_protocol::limits::WORKER_HEADER_BYTES_MAX;
use windlass_protocol::worker::{FromWorker, WorkerOutcome};
use windlass_protocol::{CallNo, TurnNo};

use crate::failure::{CaseFailure, Step, fail};
use crate::observed_turn::{ObservedTurn, Said, shown};
use crate::processes::{StartCommand, WorkerProcess};
use crate::progress::TurnProgress;
use crate::transcript::{Transcript, Way};
use crate::wires::Wires;

/// Time until a worker must be ready.
pub(crate) const START_TIME: Duration = Duration::from_secs(30);

/// Time between two SIGURG after an interrupt.
const NUDGE_EVERY: Duration = Duration::from_millis(20);

/// Time between the end of a worker's socket and its exit.
const END_TIME: Duration = Duration::from_secs(1);

/// The turn number before the first turn of a case: a worker must not expect 1.
const TURNS_BEFORE: u64 = 4;

/// The content of `worker_ready`.
#[derive(Debug, Clone)]
pub(crate) struct ReadyFacts {
    pub worker: String,
    pub capabilities: Vec<String>,
    /// Bytes that the worker printed before it was ready.
    pub printed: Vec<u8>,
    pub after: Duration,
}

#[derive(Debug)]
pub(crate) struct WorkerDriver {
    process: WorkerProcess,
    wires: Wires,
    pub transcript: Transcript,
    began: Instant,
    /// Maximum time of one step.
    step_time: Duration,
    progress: TurnProgress,
    said: VecDeque<Said>,
    /// What was said in the running turn and has been looked at.
    record: Vec<Said>,
    nudge_at: Option<Instant>,
}

impl WorkerDriver {
    pub fn start(
        command: &StartCommand,
        directory: &Path,
        step_time: Duration,
    ) -> io::Result<Self> {
        let began = Instant::now();
        let (wires, theirs) = Wires::make()?;
        let process = WorkerProcess::start(command, directory, theirs)?;
        Ok(Self {
            process,
            wires,
            transcript: Transcript::new(began),
            began,
            step_time,
            progress: TurnProgress::after(TurnNo(TURNS_BEFORE)),
            said: VecDeque::new(),
            record: Vec::new(),
            nudge_at: None,
        })
    }

    /// Waits for `worker_ready`.
    pub fn ready(&mut self) -> Step<ReadyFacts> {
        let until = self.began + START_TIME;
        let mut printed = Vec::new();
        loop {
            match self.next(until, "worker_ready")? {
                Said::Raw { bytes, .. } => printed.extend_from_slice(&bytes),
                Said::Message { message, .. } => {
                    let FromWorker::WorkerReady { worker, capabilities, .. } = message else {
                        continue;
                    };
                    let after = self.began.elapsed();
                    return Ok(ReadyFacts { worker, capabilities, printed, after });
                }
            }
        }
    }

    /// Ends the worker and all its processes. Returns the processes that could not be ended.
    pub fn end(self) -> (Transcript, Vec<String>) {
        (self.transcript, self.process.end())
    }

    pub fn process(&self) -> &WorkerProcess {
        &self.process
    }

    pub fn turn(&self) -> TurnNo {
        self.progress.last
    }

    // To the worker.

    /// Sends one frame.
    pub fn send(&mut self, header: &Value, body: &[u8]) {
        let bytes = self.encode(header, body);
        self.wires.send(&bytes);
    }

    /// The bytes of a frame, which the transcript shows as sent.
    pub fn encode(&mut self, header: &Value, body: &[u8]) -> Vec<u8> {
        let mut bytes = Vec::new();
        frame::encode(&mut bytes, header, body).expect("the cases send only valid frames");
        self.transcript.frame(Way::ToWorker, header.to_string().as_bytes(), body);
        bytes
    }

    pub fn send_bytes(&mut self, bytes: &[u8]) {
        self.wires.send(bytes);
    }

    /// Begins the next turn, without sending it.
    pub fn next_turn(&mut self) -> TurnNo {
        let turn = TurnNo(self.progress.last.0 + 1);
        self.begin_turn(turn);
        turn
    }

    pub fn begin_turn(&mut self, turn: TurnNo) {
        self.progress.last = turn;
        self.progress.running = Some(turn);
        self.record.clear();
    }

    pub fn start_turn(&mut self, code: &str) {
        let turn = self.next_turn();
        self.send(&json!({"kind": "turn_start", "turn": turn}), code.as_bytes());
    }

    /// Answers a `stdin_wait` of the running turn.
    pub fn answer(&mut self, bytes: &[u8]) {
        let turn = self.turn();
        self.send(&json!({"kind": "turn_input", "turn": turn}), bytes);
    }

    /// Sends the `interrupt` of a turn and one SIGINT. SIGURG follows until the turn is over.
    pub fn interrupt(&mut self, turn: TurnNo) {
        self.send(&json!({"kind": "interrupt", "turn": turn}), b"");
        self.sigint();
        self.nudge_while(turn);
    }

    /// Sends the `interrupt` of a turn whose SIGINT was sent before.
    pub fn interrupt_without_signal(&mut self, turn: TurnNo) {
        self.send(&json!({"kind": "interrupt", "turn": turn}), b"");
        self.nudge_while(turn);
    }

    fn nudge_while(&mut self, turn: TurnNo) {
        if self.progress.running == Some(turn) {
            self.nudge_at = Some(Instant::now() + NUDGE_EVERY);
        }
    }

    pub fn sigint(&mut self) {
        self.transcript.note("SIGINT to the process group");
        self.process.signal_group(Signal::INT);
    }

    pub fn close_socket(&mut self) {
        self.transcript.note("the check closes the protocol socket");
        self.wires.close_socket();
    }

    /// Leaves the worker's frames in the socket, so that the worker's writes block.
    pub fn pause_reading(&mut self) {
        self.transcript.note("the check stops reading");
        self.wires.paused = true;
    }

    pub fn resume_reading(&mut self) {
        if std::mem::take(&mut self.wires.paused) {
            self.transcript.note("the check reads again");
        }
    }

    // From the worker.

    /// Runs one turn that needs no input.
    pub fn run(&mut self, code: &str) -> Step<ObservedTurn> {
        self.start_turn(code);
        self.until_idle()
    }

    /// Waits for the end of the running turn.
    pub fn until_idle(&mut self) -> Step<ObservedTurn> {
        let (outcome, error) = self.until("idle", |said| match said {
            Said::Message { message: FromWorker::Idle { outcome, error, .. }, .. } => {
                Some(Ok((*outcome, error.clone())))
            }
            Said::Message { message: FromWorker::StdinWait { .. }, .. } => {
                Some(fail("the worker asks for input that the code does not need"))
            }
            _ => None,
        })??;
        Ok(ObservedTurn { said: std::mem::take(&mut self.record), outcome, error })
    }

    /// Waits for the end of the running turn, which must have this outcome.
    pub fn until_outcome(&mut self, outcome: WorkerOutcome) -> Step<ObservedTurn> {
        let record = self.until_idle()?;
        if record.outcome == outcome {
            return Ok(record);
        }
        fail(format!("the outcome is {:?}, not {outcome:?}", record.outcome))
    }

    /// Waits for `stdin_wait` and returns its prompt.
    pub fn until_asked(&mut self) -> Step<String> {
        self.until("stdin_wait", |said| match said {
            Said::Message { message: FromWorker::StdinWait { prompt, .. }, .. } => {
                Some(Ok(prompt.clone()))
            }
            Said::Message { message: FromWorker::Idle { .. }, .. } => {
                Some(fail("the turn ended without stdin_wait"))
            }
            _ => None,
        })?
    }

    /// Waits until the turn has shown a text.
    pub fn until_shown(&mut self, text: &str) -> Step {
        let until = self.step_end();
        loop {
            if shown(&self.record).contains(text) {
                return Ok(());
            }
            let said = self.next(until, &format!("the output `{text}`"))?;
            let is_over = matches!(&said, Said::Message { message: FromWorker::Idle { .. }, .. });
            self.record.push(said);
            if is_over && !shown(&self.record).contains(text) {
                return fail(format!("the turn ended without the output `{text}`"));
            }
        }
    }

    /// Waits for something that the worker says. What comes before it is recorded.
    pub fn until<T>(&mut self, what: &str, pick: impl Fn(&Said) -> Option<T>) -> Step<T> {
        let until = self.step_end();
        loop {
            let said = self.next(until, what)?;
            let found = pick(&said);
            self.record.push(said);
            if let Some(found) = found {
                return Ok(found);
            }
        }
    }

    /// Waits for the end of the worker's process.
    pub fn until_exit(&mut self) -> Step<ExitStatus> {
        let until = self.step_end();
        while !self.progress.ended {
            if Instant::now() >= until {
                return fail(format!("the worker did not exit within {:?}", self.step_time));
            }
            self.pump(until)?;
        }
        match self.process.ended() {
            Some(status) => Ok(status),
            None => fail("the worker's exit status is not known"),
        }
    }

    /// Takes in what the worker says for a while. It must live on.
    pub fn linger(&mut self, time: Duration) -> Step {
        let until = Instant::now() + time;
        while Instant::now() < until {
            if self.progress.ended {
                return fail(self.how_it_ended());
            }
            self.pump(until)?;
        }
        Ok(())
    }

    /// What the worker has said and no case has looked at.
    pub fn unread(&mut self) -> Vec<Said> {
        self.said.drain(..).collect()
    }

    fn step_end(&self) -> Instant {
        Instant::now() + self.step_time
    }

    fn next(&mut self, until: Instant, what: &str) -> Step<Said> {
        loop {
            if let Some(said) = self.said.pop_front() {
                return Ok(said);
            }
            if self.progress.ended {
                return fail(format!("{} before {what}", self.how_it_ended()));
            }
            if Instant::now() >= until {
                return fail(format!("{what} did not come in time"));
            }
            if self.progress.closed {
                // A worker that ends closes its socket first. The exit status tells more.
                let _ = self.linger(END_TIME);
                let how = match self.progress.ended {
                    true => self.how_it_ended(),
                    false => "the worker closed its socket".to_owned(),
                };
                return fail(format!("{how} before {what}"));
            }
            self.pump(until)?;
        }
    }

    fn how_it_ended(&mut self) -> String {
        match self.process.ended() {
            Some(status) => format!("the worker ended ({status})"),
            None => "the worker ended".to_owned(),
        }
    }

    /// Waits once, and takes in what has come.
    fn pump(&mut self, until: Instant) -> Step {
        let now = Instant::now();
        if self.nudge_at.is_some_and(|at| at <= now) {
            self.process.nudge();
            self.nudge_at = Some(now + NUDGE_EVERY);
        }
        let wake = self.nudge_at.map_or(until, |at| at.min(until));
        let arrived = self.wires.wait(&self.process.pidfd, wake);
        let arrived = arrived.map_err(|error| CaseFailure(format!("cannot wait: {error}")))?;
        for (stream, bytes) in arrived.raw {
            let way =
                if stream == windlass_protocol::Stream::Stdout { Way::Stdout } else { Way::Stderr };
            self.transcript.raw(way, &bytes);
            self.said.push_back(Said::Raw { stream, bytes });
        }
        loop {
            match self.wires.decoder.next_frame() {
                Ok(None) => break,
                Ok(Some(frame)) => self.take_frame(frame)?,
                Err(error) => return fail(error.to_string()),
            }
        }
        if arrived.closed {
            self.transcript.note("the worker has closed its socket");
            self.progress.closed = true;
            if self.wires.decoder.pending() > 0 {
                return fail("the worker closed its socket within a frame");
            }
        }
        if arrived.ended && !self.progress.ended {
            self.progress.ended = true;
            let how = self.how_it_ended();
            self.transcript.note(&how);
        }
        Ok(())
    }

    fn take_frame(&mut self, frame: Frame) -> Step {
        self.transcript.frame(Way::FromWorker, &frame.header, &frame.body);
        let bytes = frame.header.len();
        if bytes > WORKER_HEADER_BYTES_MAX {
            return fail(format!(
                "a header of {bytes} bytes is over the limit of {WORKER_HEADER_BYTES_MAX}"
            ));
        }
        let message: FromWorker = serde_json::from_slice(&frame.header)
            .map_err(|error| CaseFailure(format!("a header is not a message: {error}")))?;
        self.progress.check(&message, frame.body.len())?;
        if matches!(message, FromWorker::Idle { .. }) {
            self.nudge_at = None;
        }
        if let FromWorker::ToolCall { turn, call, name, more: false, .. } = &message
            && name.starts_with("windlass.")
        {
            let (turn, call, name) = (*turn, *call, name.clone());
            self.answer_catalogue(turn, call, &name, &frame.body);
            return Ok(());
        }
        self.said.push_back(Said::Message { message, body: frame.body });
        Ok(())
    }

    /// Answers the tools with which a worker asks a node about tools.
    fn answer_catalogue(&mut self, turn: TurnNo, call: CallNo, name: &str, arguments: &Bytes) {
        let line = json!({"name": "check.echo", "summary": "returns a text"});
        let asked: Value = serde_json::from_slice(arguments).unwrap_or_default();
        let answer = match (name, asked["name"].as_str()) {
            ("windlass.describe", Some("check.echo")) => json!({
                "kind": "tool", "name": "check.echo", "description": "Returns a text.",
                "input_schema": {
                    "type": "object",
                    "properties": {"text": {"type": "string"}}, "required": ["text"],
                },
            }),
            ("windlass.describe", Some("check")) => {
                json!({"kind": "group", "name": "check", "tools": [line]})
            }
            ("windlass.list" | "windlass.search", _) => json!({"tools": [line], "more": false}),
            _ => {
                let header =
                    json!({"kind": "tool_result", "turn": turn, "call": call, "ok": false});
                let error = json!({"message": "there is no such tool", "code": "tool_not_found"});
                return self.send(&header, error.to_string().as_bytes());
            }
        };
        let header = json!({"kind": "tool_result", "turn": turn, "call": call, "ok": true});
        self.send(&header, answer.to_string().as_bytes());
    }
}
