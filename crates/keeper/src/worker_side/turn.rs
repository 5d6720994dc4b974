//! The running turn, and the worker's messages about it. Every message is checked against the running turn. A
//! message for another turn is counted and dropped; a malformed message ends the session.

#[cfg(test)]
mod tests;

use std::time::{Duration, Instant};

use bytes::Bytes;
use windlass_protocol::event::{EventKind, TurnError};
use windlass_protocol::frame::Frame;
use windlass_protocol::limits::{CHUNK_BYTES_MAX, MESSAGE_BYTES_MAX, WORKER_HEADER_BYTES_MAX};
use windlass_protocol::text::excerpt;
use windlass_protocol::turn::{ResultValue, TurnContext};
use windlass_protocol::worker::{
    FromWorker, PROTOCOL, ToWorker, WorkerError, WorkerOutcome, unknown_fields,
};
use windlass_protocol::{CallNo, Stream, TurnNo};

use super::WorkerSide;
use super::calls::{CallFrame, WorkerCalls};
use crate::input::{InputMessage, InputQueue};
use crate::last_stderr::LastStderr;
use crate::node_side::NodeSide;
use crate::stage::WorkerStage;
use crate::usage::UsageMark;
use crate::watch;
use crate::worker::{PIPE_BYTES, ReadyMessage};

/// The running turn, if there is one, and a count of dropped messages.
#[derive(Debug, Default)]
pub(crate) struct TurnSlot {
    turn: Option<TurnInFlight>,
    /// Messages and fields that were unknown or for another turn, and are not reported yet.
    dropped: u64,
}

#[derive(Debug)]
struct TurnInFlight {
    turn: TurnNo,
    mark: UsageMark,
    output_bytes: u64,
    input: InputQueue,
    /// Bytes so far of a display whose last frame has not arrived.
    display_bytes: usize,
    calls: WorkerCalls,
    /// Set once the turn was interrupted.
    nudging: Option<Nudging>,
    last_stderr: LastStderr,
}

/// An interpreter may lose a signal that arrives just before a blocking call. So an interrupted worker gets
/// repeated signals (nudges) until it ends the turn.
#[derive(Debug)]
struct Nudging {
    next: Instant,
    left: u32,
}

/// Time between two nudges.
const NUDGE_EVERY: Duration = Duration::from_millis(20);

/// Maximum number of characters of an invalid frame that its session's owner is shown.
const EXCERPT_CHARS: usize = 200;

/// Maximum number of nudges for one interrupt: 20 s of them. The node's grace usually ends much earlier.
const NUDGES_MAX: u32 = 1000;

impl TurnSlot {
    pub fn turn(&self) -> Option<TurnNo> {
        self.turn.as_ref().map(|flight| flight.turn)
    }

    /// Milliseconds since the running turn began.
    pub fn for_ms(&self) -> Option<u64> {
        self.turn.as_ref().map(|flight| flight.mark.age_ms())
    }

    pub fn end(&mut self) {
        self.turn = None;
    }

    /// The host tool calls of this turn, if it is running.
    pub fn calls(&mut self, turn: TurnNo) -> Option<&mut WorkerCalls> {
        self.turn.as_mut().filter(|flight| flight.turn == turn).map(|flight| &mut flight.calls)
    }

    pub fn open_calls(&self) -> Vec<CallNo> {
        self.turn.as_ref().map_or_else(Vec::new, |flight| flight.calls.open())
    }

    /// The end of what the running turn wrote to its standard error.
    pub fn last_stderr(&self) -> String {
        self.turn.as_ref().map_or_else(String::new, |flight| flight.last_stderr.to_text())
    }

    /// Counts a dropped message of the worker.
    pub fn drop_message(&mut self) {
        self.dropped += 1;
    }

    /// When the worker is to be nudged next.
    pub fn next_nudge(&self) -> Option<Instant> {
        Some(self.turn.as_ref()?.nudging.as_ref()?.next)
    }
}

/// What the worker says about the end of a turn.
struct TurnReport {
    outcome: WorkerOutcome,
    error: Option<WorkerError>,
    exit_code: Option<i32>,
    value: Option<ResultValue>,
}

/// A message of the worker that is not about its turn.
#[derive(Debug)]
pub(crate) enum WorkerNotice {
    Ready(ReadyMessage),
    ForkWait,
    Forked {
        ok: bool,
        reason: String,
        limit: bool,
        body: Bytes,
    },
    /// The frame holds no valid message, or a message that is not allowed now. The text has the cause and
    /// an excerpt of the frame.
    Invalid(String),
}

impl WorkerSide {
    pub fn start_turn(
        &mut self,
        turn: TurnNo,
        context: Option<Box<TurnContext>>,
        code: &Bytes,
        stage: WorkerStage,
    ) {
        self.last_turn = self.last_turn.max(turn);
        let (WorkerStage::Up, Some(worker)) = (stage, &mut self.process) else {
            // The worker ended before the turn arrived; an event tells the node about that.
            return;
        };
        self.running.turn = Some(TurnInFlight {
            turn,
            mark: worker.meter.mark(),
            output_bytes: 0,
            input: InputQueue::default(),
            display_bytes: 0,
            calls: WorkerCalls::default(),
            nudging: None,
            last_stderr: LastStderr::default(),
        });
        self.watch.use_short_slices(worker.pid, watch::WorkerAge::Known);
        let sent = worker.send(ToWorker::TurnStart { turn, more: false, context }, code);
        self.watch.turn_changed();
        self.sent(sent);
    }

    pub fn take_input(&mut self, turn: TurnNo, message: InputMessage, node: &mut NodeSide) {
        if let Some(flight) = self.running.turn.as_mut().filter(|flight| flight.turn == turn) {
            flight.input.give(message);
            self.answer_input(node);
        }
    }

    pub fn interrupt_turn(&mut self, turn: TurnNo) {
        if let Some(flight) = self.running.turn.as_mut().filter(|flight| flight.turn == turn) {
            flight.input.clear();
            flight.nudging = Some(Nudging { next: Instant::now() + NUDGE_EVERY, left: NUDGES_MAX });
            if let Some(worker) = self.process.as_mut() {
                let sent = worker.interrupt(&ToWorker::Interrupt { turn });
                self.sent(sent);
            }
        }
    }

    /// Nudges an interrupted worker that has not ended its turn, if a nudge is due.
    pub fn nudge(&mut self, now: Instant) {
        let Some(flight) = &mut self.running.turn else { return };
        let Some(nudging) = flight.nudging.as_mut().filter(|nudging| nudging.next <= now) else {
            return;
        };
        nudging.next = now + NUDGE_EVERY;
        nudging.left -= 1;
        if nudging.left == 0 {
            flight.nudging = None;
        }
        if let Some(worker) = self.process.as_mut() {
            worker.nudge();
        }
    }

    /// Sends queued input to code that waits for it. Returns whether it did.
    fn answer_input(&mut self, node: &mut NodeSide) -> bool {
        let Some(flight) = &mut self.running.turn else { return false };
        let Some(message) = flight.input.answer() else { return false };
        let turn = flight.turn;
        let bytes = message.bytes.len() as u64;
        if let Some(worker) = self.process.as_mut() {
            let InputMessage { eof, keys, .. } = message;
            let input = ToWorker::TurnInput { turn, more: false, eof, keys };
            let sent = worker.send(input, &message.bytes);
            self.sent(sent);
        }
        node.tell(Some(turn), EventKind::InputTaken { bytes }, Bytes::new());
        true
    }

    /// Handles complete frames. Returns at the first frame that is not about the turn.
    pub fn take_frames(&mut self, stage: WorkerStage, node: &mut NodeSide) -> Option<WorkerNotice> {
        loop {
            let worker = self.process.as_mut()?;
            let frame = match worker.next_frame() {
                Ok(None) => return None,
                Ok(Some(frame)) => frame,
                Err(error) => {
                    let bytes = excerpt(worker.undecoded(), EXCERPT_CHARS);
                    let cause = format!("{error}; the bytes on the socket: {bytes}");
                    return Some(WorkerNotice::Invalid(cause));
                }
            };
            self.running.dropped += unknown_fields(&frame.header);
            let header = frame.header.clone();
            let taken = match (parse(frame), stage) {
                (Ok((message, _)), WorkerStage::Starting { .. }) => first(message).map(Some),
                (Ok((message, body)), _) => self.take_message(message, body, node),
                (Err(cause), _) => Err(cause),
            };
            match taken {
                Ok(None) => {}
                Ok(said) => return said,
                Err(cause) => {
                    let header = excerpt(&header, EXCERPT_CHARS);
                    let cause = format!("{cause}; the frame's header: {header}");
                    return Some(WorkerNotice::Invalid(cause));
                }
            }
        }
    }

    fn take_message(
        &mut self,
        message: FromWorker,
        body: Bytes,
        node: &mut NodeSide,
    ) -> Result<Option<WorkerNotice>, String> {
        match message {
            FromWorker::Output { turn, stream, background } => {
                self.take_output(turn, stream, background, body, node);
            }
            FromWorker::Display { turn, mime, id, update, more } => {
                let kind = EventKind::Display { mime, id, update, more };
                self.take_display(turn, kind, body, node)?;
            }
            FromWorker::StdinWait { turn, prompt, secret } if self.is_current(turn) => {
                if let Some(flight) = &mut self.running.turn {
                    flight.input.wait();
                }
                if !self.answer_input(node) {
                    node.tell(Some(turn), EventKind::StdinWait { prompt, secret }, Bytes::new());
                }
            }
            FromWorker::ToolCall { turn, call, name, deadline_ms, more }
                if self.is_current(turn) =>
            {
                self.take_call(turn, CallFrame { call, name, deadline_ms, more }, body, node)?;
            }
            FromWorker::ToolCancel { turn, call } if self.is_current(turn) => {
                self.cancel_call(turn, call, node);
            }
            FromWorker::Idle { turn, outcome, error, exit_code, value }
                if self.is_current(turn) =>
            {
                self.end_turn(turn, TurnReport { outcome, error, exit_code, value }, node);
            }
            FromWorker::SessionEnd { .. } => {}
            FromWorker::ForkWait => return Ok(Some(WorkerNotice::ForkWait)),
            FromWorker::Forked { ok, reason, limit } => {
                return Ok(Some(WorkerNotice::Forked { ok, reason, limit, body }));
            }
            FromWorker::WorkerReady { .. } => return Err("worker_ready came twice".into()),
            FromWorker::StdinWait { .. }
            | FromWorker::Idle { .. }
            | FromWorker::ToolCall { .. }
            | FromWorker::ToolCancel { .. }
            | FromWorker::Unknown => self.running.dropped += 1,
        }
        Ok(None)
    }

    fn take_output(
        &mut self,
        turn: TurnNo,
        stream: Stream,
        background: bool,
        body: Bytes,
        node: &mut NodeSide,
    ) {
        let current = self.is_current(turn);
        let left_over = background && turn <= self.last_turn;
        if !current && !left_over {
            self.running.dropped += 1;
            return;
        }
        if let Some(flight) = self.running.turn.as_mut().filter(|_| current) {
            flight.output_bytes += body.len() as u64;
            if stream == Stream::Stderr {
                flight.last_stderr.push(&body);
            }
        }
        let background = !current;
        // A worker's frame of the largest size does not fit the link, whose headers are longer.
        let mut rest = body;
        while !rest.is_empty() {
            let part = rest.split_to(rest.len().min(CHUNK_BYTES_MAX));
            node.tell(Some(turn), EventKind::Output { stream, background }, part);
        }
    }

    fn take_display(
        &mut self,
        turn: TurnNo,
        kind: EventKind,
        mut body: Bytes,
        node: &mut NodeSide,
    ) -> Result<(), String> {
        let Some(flight) = self.running.turn.as_mut().filter(|flight| flight.turn == turn) else {
            self.running.dropped += 1;
            return Ok(());
        };
        flight.display_bytes += body.len();
        if flight.display_bytes > MESSAGE_BYTES_MAX {
            return Err(format!("a display is over the limit of {MESSAGE_BYTES_MAX} bytes"));
        }
        if !matches!(kind, EventKind::Display { more: true, .. }) {
            flight.display_bytes = 0;
        }
        if body.len() > CHUNK_BYTES_MAX
            && let EventKind::Display { mime, id, update, .. } = &kind
        {
            let (mime, id, update) = (mime.clone(), id.clone(), *update);
            let part = body.split_to(CHUNK_BYTES_MAX);
            node.tell(Some(turn), EventKind::Display { mime, id, update, more: true }, part);
        }
        node.tell(Some(turn), kind, body);
        Ok(())
    }

    fn end_turn(&mut self, turn: TurnNo, report: TurnReport, node: &mut NodeSide) {
        let TurnReport { outcome, error, exit_code, value } = report;
        let Some(flight) = self.running.turn.take() else { return };
        let Some(worker) = self.process.as_mut() else { return };
        let usage = worker.meter.since(&flight.mark, flight.output_bytes);
        let error =
            error.map(|error| TurnError { code: None, name: error.name, message: error.message });
        if self.running.dropped > 0 {
            let count = std::mem::take(&mut self.running.dropped);
            let reason = "unknown, or for another turn".to_owned();
            node.tell(Some(turn), EventKind::MessagesDropped { count, reason }, Bytes::new());
        }
        let (outcome, receipt, refusal) = (outcome.into(), None, None);
        let ended =
            EventKind::TurnEnded { outcome, error, usage, receipt, refusal, exit_code, value };
        node.tell(Some(turn), ended, Bytes::new());
        self.watch.turn_changed();
    }

    fn is_current(&self, turn: TurnNo) -> bool {
        self.running.turn() == Some(turn)
    }

    /// Handles a wake-up by a raw pipe: the pipe has bytes, or its last writer has closed it.
    pub fn read_pipes(&mut self, node: &mut NodeSide) {
        for stream in [Stream::Stdout, Stream::Stderr] {
            if self.drain_pipe(stream, node) > 0 {
                continue;
            }
            // Either the last writer has closed the pipe, or bytes arrived just now. In the second case all
            // of them are forwarded, so that no byte of the other stream comes between.
            let read =
                self.process.as_mut().and_then(|worker| worker.read_pipe(stream, PIPE_BYTES));
            if let Some(bytes) = read {
                self.tell_raw(stream, bytes, node);
                self.drain_pipe(stream, node);
            }
        }
    }

    /// Forwards the bytes that are in the raw pipes now, and no more, so that a flood cannot block the loop.
    pub fn drain_pipes(&mut self, node: &mut NodeSide) {
        self.drain_pipe(Stream::Stdout, node);
        self.drain_pipe(Stream::Stderr, node);
    }

    fn drain_pipe(&mut self, stream: Stream, node: &mut NodeSide) -> usize {
        let pending = self.process.as_mut().map_or(0, |worker| worker.pipe_pending(stream));
        let mut left = pending;
        while left > 0 {
            let Some(bytes) =
                self.process.as_mut().and_then(|worker| worker.read_pipe(stream, left))
            else {
                break;
            };
            left -= bytes.len().min(left);
            self.tell_raw(stream, bytes, node);
        }
        pending
    }

    fn tell_raw(&mut self, stream: Stream, bytes: Bytes, node: &mut NodeSide) {
        let turn = self.running.turn();
        if let Some(flight) = &mut self.running.turn {
            flight.output_bytes += bytes.len() as u64;
            if stream == Stream::Stderr {
                flight.last_stderr.push(&bytes);
            }
        }
        let background = turn.is_none();
        node.tell(turn, EventKind::Output { stream, background }, bytes);
    }
}

/// Checks a worker's first message.
fn first(message: FromWorker) -> Result<WorkerNotice, String> {
    match message {
        FromWorker::WorkerReady { protocol: PROTOCOL, worker, capabilities, startup } => {
            Ok(WorkerNotice::Ready(ReadyMessage::new(&worker, capabilities, startup)))
        }
        FromWorker::WorkerReady { protocol, .. } => {
            Err(format!("the worker speaks protocol {protocol}, not {PROTOCOL}"))
        }
        _ => Err("the first message was not worker_ready".into()),
    }
}

fn parse(frame: Frame) -> Result<(FromWorker, Bytes), String> {
    let bytes = frame.header.len();
    if bytes > WORKER_HEADER_BYTES_MAX {
        let limit = WORKER_HEADER_BYTES_MAX;
        return Err(format!("a header of {bytes} bytes is over the limit of {limit}"));
    }
    serde_json::from_slice(&frame.header)
        .map(|message| (message, frame.body))
        .map_err(|error| format!("a header is not a message: {error}"))
}
