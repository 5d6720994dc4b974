//! The host tool calls of the running turn, between worker and node. Counts them and their bytes, and
//! passes each frame on as it comes: neither a call nor its answer is ever put together here.

use std::collections::HashMap;

use bytes::Bytes;
use windlass_protocol::event::EventKind;
use windlass_protocol::frame::EncodeError;
use windlass_protocol::host::ToolError;
use windlass_protocol::limits::{
    CHUNK_BYTES_MAX, MESSAGE_BYTES_MAX, TOOL_CALLS_MAX, TOOL_NAME_BYTES_MAX, TOOL_RESULT_BYTES_MAX,
};
use windlass_protocol::worker::ToWorker;
use windlass_protocol::{CallNo, ErrorCode, TurnNo};

use crate::node_side::NodeSide;
use crate::worker::Worker;
use crate::worker_side::WorkerSide;

/// The calls that were not answered to their end.
#[derive(Debug, Default)]
pub(crate) struct WorkerCalls {
    tracked: HashMap<CallNo, TrackedCall>,
    open: usize,
}

#[derive(Debug)]
struct TrackedCall {
    /// Bytes of arguments so far.
    bytes: usize,
    /// More frames of it must come.
    unfinished: bool,
    /// Answered before it was asked to its end: the rest of its frames is passed over.
    closed: bool,
}

/// One frame of a call.
#[derive(Debug)]
pub(crate) struct CallFrame {
    pub call: CallNo,
    pub name: String,
    pub deadline_ms: Option<u64>,
    pub more: bool,
}

/// One part of an answer.
#[derive(Debug)]
pub(crate) struct ToolResultPart {
    pub call: CallNo,
    pub ok: bool,
    pub more: bool,
    pub body: Bytes,
}

/// What a frame of a call is.
#[derive(Debug, PartialEq, Eq)]
enum FrameVerdict {
    /// Part of a call that may be, after so many bytes.
    Accept(usize),
    /// Of a call that is over.
    Late,
    /// One call too many: it is answered here.
    TooMany,
}

/// Calls whose frames are told apart, those that are over or were too many included. A worker that
/// leaves more of them unfinished breaks the protocol.
const TRACKED_MAX: usize = 2 * TOOL_CALLS_MAX;

impl WorkerCalls {
    /// The open calls, oldest first.
    pub fn open(&self) -> Vec<CallNo> {
        let open = self.tracked.iter().filter(|(_, call)| !call.closed);
        let mut open: Vec<CallNo> = open.map(|(number, _)| *number).collect();
        open.sort_unstable();
        open
    }

    fn take(&mut self, frame: &CallFrame, bytes: usize) -> Result<FrameVerdict, String> {
        if frame.name.len() > TOOL_NAME_BYTES_MAX {
            return Err(format!("a tool's name is over the limit of {TOOL_NAME_BYTES_MAX} bytes"));
        }
        let Some(call) = self.tracked.get_mut(&frame.call) else {
            return self.take_first(frame, bytes);
        };
        if !call.unfinished {
            return Err(format!("the number of tool call {} is taken", frame.call));
        }
        let before = call.bytes;
        call.bytes += bytes;
        call.unfinished = frame.more;
        if call.bytes > MESSAGE_BYTES_MAX {
            return Err(format!("a tool call is over the limit of {MESSAGE_BYTES_MAX} bytes"));
        }
        if call.closed {
            if !frame.more {
                self.tracked.remove(&frame.call);
            }
            return Ok(FrameVerdict::Late);
        }
        Ok(FrameVerdict::Accept(before))
    }

    fn take_first(&mut self, frame: &CallFrame, bytes: usize) -> Result<FrameVerdict, String> {
        if self.tracked.len() >= TRACKED_MAX {
            return Err(format!("{TRACKED_MAX} tool calls were begun and not sent to their end"));
        }
        let closed = self.open >= TOOL_CALLS_MAX;
        if !closed || frame.more {
            self.tracked.insert(frame.call, TrackedCall { bytes, unfinished: frame.more, closed });
        }
        if closed {
            return Ok(FrameVerdict::TooMany);
        }
        self.open += 1;
        Ok(FrameVerdict::Accept(0))
    }

    fn is_open(&self, call: CallNo) -> bool {
        self.tracked.get(&call).is_some_and(|call| !call.closed)
    }

    /// Whether the call was open; it is not any more.
    fn end(&mut self, number: CallNo) -> bool {
        let Some(call) = self.tracked.get_mut(&number).filter(|call| !call.closed) else {
            return false;
        };
        self.open -= 1;
        call.closed = true;
        if !call.unfinished {
            self.tracked.remove(&number);
        }
        true
    }
}

impl WorkerSide {
    pub fn take_call(
        &mut self,
        turn: TurnNo,
        frame: CallFrame,
        mut body: Bytes,
        node: &mut NodeSide,
    ) -> Result<(), String> {
        let Some(calls) = self.running.calls(turn) else { return Ok(()) };
        let mut offset = match calls.take(&frame, body.len())? {
            FrameVerdict::Accept(offset) => offset as u64,
            FrameVerdict::Late => return Ok(()),
            FrameVerdict::TooMany => {
                // A worker that calls on and reads nothing would have its answers fill our memory.
                let queued = self.process.as_ref().map_or(0, Worker::queued_bytes);
                if queued > TOOL_RESULT_BYTES_MAX {
                    return Err("tool calls are made and their answers are not read".to_owned());
                }
                self.fail_call(turn, frame.call, &too_many());
                return Ok(());
            }
        };
        let CallFrame { call, name, deadline_ms, more } = frame;
        loop {
            let part = body.split_to(body.len().min(CHUNK_BYTES_MAX));
            let (bytes, more) = (part.len() as u64, more || !body.is_empty());
            let name = name.clone();
            let kind = EventKind::ToolCall { call, name, deadline_ms, offset, bytes, more };
            node.tell(Some(turn), kind, part);
            offset += bytes;
            if body.is_empty() {
                return Ok(());
            }
        }
    }

    pub fn cancel_call(&mut self, turn: TurnNo, call: CallNo, node: &mut NodeSide) {
        if self.running.calls(turn).is_some_and(|calls| calls.end(call)) {
            node.tell(Some(turn), EventKind::ToolCancel { call }, Bytes::new());
        } else {
            self.running.drop_message();
        }
    }

    /// Passes a part of an answer on. One that nobody waits for is dropped: the turn is over, or the
    /// code has given the call up.
    pub fn answer_call(&mut self, turn: TurnNo, part: ToolResultPart) {
        let Some(calls) = self.running.calls(turn) else { return };
        let ToolResultPart { call, ok, more, body } = part;
        let more = more && ok;
        let open = if more { calls.is_open(call) } else { calls.end(call) };
        if !open {
            return;
        }
        let Some(worker) = self.process.as_mut() else { return };
        let failed = if worker.queued_bytes() + body.len() <= TOOL_RESULT_BYTES_MAX {
            match worker.send_part(&ToWorker::ToolResult { turn, call, ok, more }, body) {
                Ok(()) => return,
                Err(error) => too_large(&error),
            }
        } else {
            unread()
        };
        if let Some(calls) = self.running.calls(turn) {
            calls.end(call);
        }
        self.fail_call(turn, call, &failed);
    }

    fn fail_call(&mut self, turn: TurnNo, call: CallNo, error: &ToolError) {
        let body = serde_json::to_vec(error).expect("texts and codes always have a JSON form");
        if let Some(worker) = self.process.as_mut() {
            let result = ToWorker::ToolResult { turn, call, ok: false, more: false };
            let sent = worker.send_part(&result, body.into());
            self.sent(sent);
        }
    }
}

fn too_many() -> ToolError {
    overloaded(format!("the session has {TOOL_CALLS_MAX} tool calls open already"))
}

fn unread() -> ToolError {
    overloaded(format!("{TOOL_RESULT_BYTES_MAX} bytes of answers are not read yet"))
}

fn too_large(error: &EncodeError) -> ToolError {
    let message = format!("a part of the answer cannot be passed on: {error}");
    ToolError { message, code: Some(ErrorCode::MessageTooLarge), kind: None }
}

fn overloaded(message: String) -> ToolError {
    ToolError { message, code: Some(ErrorCode::Overloaded), kind: None }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(call: u64, more: bool) -> CallFrame {
        CallFrame { call: CallNo(call), name: "t".to_owned(), deadline_ms: None, more }
    }

    #[test]
    fn calls_are_counted_and_their_frames_may_mix() {
        let mut calls = WorkerCalls::default();
        assert_eq!(calls.take(&frame(1, true), 10), Ok(FrameVerdict::Accept(0)));
        assert_eq!(calls.take(&frame(2, false), 10), Ok(FrameVerdict::Accept(0)));
        assert_eq!(calls.take(&frame(1, false), 10), Ok(FrameVerdict::Accept(10)));
        assert!(calls.take(&frame(1, false), 0).is_err(), "its number is taken");
        assert_eq!(calls.open(), [CallNo(1), CallNo(2)]);
        assert!(calls.end(CallNo(1)));
        assert!(!calls.end(CallNo(1)));
        for call in 3..=TOOL_CALLS_MAX as u64 + 1 {
            assert_eq!(calls.take(&frame(call, false), 0), Ok(FrameVerdict::Accept(0)));
        }
        assert_eq!(calls.take(&frame(9999, true), 0), Ok(FrameVerdict::TooMany));
        assert!(calls.end(CallNo(2)));
        assert_eq!(calls.take(&frame(9999, false), 0), Ok(FrameVerdict::Late), "it is no new call");
        assert_eq!(calls.take(&frame(9999, false), 0), Ok(FrameVerdict::Accept(0)));
    }

    #[test]
    fn the_rest_of_a_call_that_was_answered_early_is_passed_over() {
        let mut calls = WorkerCalls::default();
        assert_eq!(calls.take(&frame(1, true), 10), Ok(FrameVerdict::Accept(0)));
        assert!(calls.end(CallNo(1)));
        assert!(calls.open().is_empty());
        assert_eq!(calls.take(&frame(1, true), 10), Ok(FrameVerdict::Late));
        assert_eq!(calls.take(&frame(1, false), 10), Ok(FrameVerdict::Late));
        assert!(calls.tracked.is_empty());
    }

    #[test]
    fn a_call_has_a_size_limit_over_all_its_frames() {
        let mut calls = WorkerCalls::default();
        assert_eq!(calls.take(&frame(1, true), MESSAGE_BYTES_MAX), Ok(FrameVerdict::Accept(0)));
        assert!(calls.take(&frame(1, false), 1).is_err());
    }
}
