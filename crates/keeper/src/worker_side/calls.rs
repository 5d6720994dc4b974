//! The host tool calls of the running turn, between worker and node. Counts the calls and their bytes, and
//! forwards each frame as it arrives: the keeper never assembles a whole call or result.

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

use super::WorkerSide;
use crate::node_side::NodeSide;
use crate::worker::Worker;

/// The calls that are not finished: frames of the call or of its result are still to come.
#[derive(Debug, Default)]
pub(crate) struct WorkerCalls {
    tracked: HashMap<CallNo, TrackedCall>,
    open: usize,
}

#[derive(Debug)]
struct TrackedCall {
    /// Bytes of arguments so far.
    bytes: usize,
    /// More frames of the call must come.
    unfinished: bool,
    /// The call is answered, cancelled or refused. Its remaining frames are ignored.
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

/// One part of a call's result.
#[derive(Debug)]
pub(crate) struct ToolResultPart {
    pub call: CallNo,
    pub ok: bool,
    pub more: bool,
    pub body: Bytes,
}

/// What to do with a frame of a call.
#[derive(Debug, PartialEq, Eq)]
enum FrameVerdict {
    /// Forward the frame. The number is its offset in the call's arguments.
    Accept(usize),
    /// Ignore the frame: its call is closed.
    Late,
    /// Refuse the call: too many calls are open.
    TooMany,
}

/// Maximum number of tracked calls, including closed and refused ones with frames to come. A worker that
/// leaves more calls unfinished violates the protocol.
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
            return Err(format!("tool call number {} is already in use", frame.call));
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
            return Err(format!("more than {TRACKED_MAX} tool calls are unfinished"));
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

    /// Closes a call. Returns whether it was open.
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
                // A worker that makes calls and reads no results would fill the keeper's memory with
                // refusals.
                let queued = self.process.as_ref().map_or(0, Worker::queued_bytes);
                if queued > TOOL_RESULT_BYTES_MAX {
                    return Err(
                        "the worker makes tool calls and does not read the results".to_owned()
                    );
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

    /// Forwards a part of a result to the worker. The part is dropped if the turn is over or the code has
    /// cancelled the call.
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
    overloaded(format!("the session already has {TOOL_CALLS_MAX} open tool calls"))
}

fn unread() -> ToolError {
    overloaded(format!("the worker has not yet read {TOOL_RESULT_BYTES_MAX} bytes of results"))
}

fn too_large(error: &EncodeError) -> ToolError {
    let message = format!("a part of the result cannot be sent to the worker: {error}");
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
    fn frames_after_an_early_answer_are_ignored() {
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
