//! Turns the keeper's bytes into whole messages: assembles frames from any pieces, joins `more`, remembers
//! interrupts, and skips kinds and fields that this release does not know. Does no I/O.

use std::borrow::Cow;
use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use serde::Deserialize;
use windlass_protocol::frame::{Decoder, Frame, FrameError};
use windlass_protocol::limits::{MESSAGE_BYTES_MAX, TOOL_CALLS_MAX, TOOL_RESULT_BYTES_MAX};
use windlass_protocol::turn::TurnContext;
use windlass_protocol::worker::ToWorker;
use windlass_protocol::{CallNo, SessionId, TurnNo};

/// Bytes of waiting messages from which on nothing more is read. The keeper holds at most this much itself, so
/// only a keeper that breaks its own limits is made to wait.
const WAITING_BYTES_MAX: usize = TOOL_RESULT_BYTES_MAX + 2 * MESSAGE_BYTES_MAX;

/// Number of waiting messages from which on nothing more is read.
const WAITING_MESSAGES_MAX: usize = 64 * 1024;

/// The kinds of [`ToWorker`]. A message of another kind is skipped, whatever it contains.
const KINDS: [&str; 6] =
    ["turn_start", "turn_input", "interrupt", "tool_result", "fork", "shutdown"];

/// A whole message from the keeper.
#[derive(Debug, Clone, PartialEq)]
pub enum KeeperMessage {
    /// Run the code as a new turn. Ask [`Inbox::interrupted`] first: the interrupt may have come before.
    /// A worker with the capability `context` may get a context with it.
    TurnStart { turn: TurnNo, code: Bytes, context: Option<Box<TurnContext>> },
    /// The answer to a `stdin_wait`. With `eof`, the code sees the end of its input after these bytes. With `keys`, the
    /// bytes were typed at a terminal.
    Input { turn: TurnNo, bytes: Bytes, eof: bool, keys: bool },
    /// Stop this turn. [`Inbox::interrupted`] remembers it, so a worker may skip this message.
    Interrupt { turn: TurnNo },
    /// The answer to a `tool_call`: a JSON value, or with `ok` false the error as a JSON object.
    ToolResult { turn: TurnNo, call: CallNo, ok: bool, body: Bytes },
    /// Fork a twin. The body is a `TwinOrder`.
    Fork { session: SessionId, body: Bytes },
    /// Finish, flush, exit. A turn may be running.
    Shutdown { grace: Duration },
    /// The socket is closed or broken. Exit. Nothing else follows.
    Closed,
}

impl KeeperMessage {
    fn body_bytes(&self) -> usize {
        match self {
            Self::TurnStart { code: body, .. }
            | Self::Input { bytes: body, .. }
            | Self::ToolResult { body, .. }
            | Self::Fork { body, .. } => body.len(),
            Self::Interrupt { .. } | Self::Shutdown { .. } | Self::Closed => 0,
        }
    }
}

/// Why the keeper's bytes are not messages. Nothing after them can be read.
#[derive(Debug, thiserror::Error)]
pub enum InboxError {
    #[error(transparent)]
    Frame(#[from] FrameError),
    #[error("a header is malformed: {0}")]
    Header(#[from] serde_json::Error),
    #[error("a message of more than {MESSAGE_BYTES_MAX} bytes")]
    MessageTooLong,
}

/// Received messages, whole and in parts.
#[derive(Debug, Default)]
pub struct Inbox {
    decoder: Decoder,
    unfinished: Unfinished,
    waiting: VecDeque<KeeperMessage>,
    waiting_bytes: usize,
    /// The latest turn for which an interrupt has come. Turn numbers grow, so earlier ones do not matter.
    interrupted: Option<TurnNo>,
}

/// Messages of which the last frame has not come.
#[derive(Debug, Default)]
struct Unfinished {
    turn_start: Option<(TurnNo, BytesMut)>,
    /// The context in the first frame of `turn_start`.
    context: Option<Box<TurnContext>>,
    turn_input: Option<(TurnNo, BytesMut)>,
    tool_results: BTreeMap<CallNo, BytesMut>,
}

impl Inbox {
    /// Takes the next bytes, in pieces of any size.
    pub fn push(&mut self, bytes: &[u8]) -> Result<(), InboxError> {
        self.decoder.push(bytes);
        while let Some(frame) = self.decoder.next_frame()? {
            self.take(frame)?;
        }
        Ok(())
    }

    /// The next whole message.
    #[expect(
        clippy::should_implement_trait,
        reason = "no iterator: `None` means that nothing is there yet"
    )]
    pub fn next(&mut self) -> Option<KeeperMessage> {
        let message = self.waiting.pop_front()?;
        self.waiting_bytes -= message.body_bytes();
        Some(message)
    }

    /// Whether an interrupt for this turn has come, also one that came before the turn's code.
    pub fn interrupted(&self, turn: TurnNo) -> bool {
        self.interrupted == Some(turn)
    }

    /// Whether there is room for further messages.
    pub fn has_room(&self) -> bool {
        self.waiting_bytes < WAITING_BYTES_MAX && self.waiting.len() < WAITING_MESSAGES_MAX
    }

    fn take(&mut self, frame: Frame) -> Result<(), InboxError> {
        #[derive(Deserialize)]
        struct Kind<'a> {
            #[serde(borrow)]
            kind: Cow<'a, str>,
        }
        let Kind { kind } = serde_json::from_slice(&frame.header)?;
        if !KINDS.contains(&kind.as_ref()) {
            return Ok(());
        }
        let whole = match serde_json::from_slice(&frame.header)? {
            ToWorker::TurnStart { turn, more, context } => {
                let unfinished = &mut self.unfinished;
                let is_first =
                    unfinished.turn_start.as_ref().is_none_or(|(begun, _)| *begun != turn);
                if is_first {
                    unfinished.context = context;
                }
                joined(&mut unfinished.turn_start, turn, frame.body, more)?.map(|code| {
                    let context = unfinished.context.take();
                    KeeperMessage::TurnStart { turn, code, context }
                })
            }
            ToWorker::TurnInput { turn, more, eof, keys } => {
                joined(&mut self.unfinished.turn_input, turn, frame.body, more)?
                    .map(|bytes| KeeperMessage::Input { turn, bytes, eof, keys })
            }
            ToWorker::Interrupt { turn } => {
                self.interrupted = self.interrupted.max(Some(turn));
                Some(KeeperMessage::Interrupt { turn })
            }
            ToWorker::ToolResult { turn, call, ok, more } => self
                .unfinished
                .tool_result(call, ok, more, frame.body)?
                .map(|body| KeeperMessage::ToolResult { turn, call, ok, body }),
            ToWorker::Fork { session } => Some(KeeperMessage::Fork { session, body: frame.body }),
            ToWorker::Shutdown { grace_ms } => {
                Some(KeeperMessage::Shutdown { grace: Duration::from_millis(grace_ms) })
            }
        };
        if let Some(message) = whole {
            self.waiting_bytes += message.body_bytes();
            self.waiting.push_back(message);
        }
        Ok(())
    }
}

impl Unfinished {
    /// The whole result that this frame completes. A frame with an error voids what came before it.
    fn tool_result(
        &mut self,
        call: CallNo,
        ok: bool,
        more: bool,
        body: Bytes,
    ) -> Result<Option<Bytes>, InboxError> {
        if !ok {
            self.tool_results.remove(&call);
            return Ok(Some(body));
        }
        if !more && !self.tool_results.contains_key(&call) {
            return Ok(Some(body));
        }
        if self.tool_results.len() >= TOOL_CALLS_MAX && !self.tool_results.contains_key(&call) {
            // The keeper has at most this many open calls, so the lowest number is a call without an end.
            self.tool_results.pop_first();
        }
        let begun = self.tool_results.entry(call).or_default();
        append(begun, &body)?;
        Ok(if more { None } else { self.tool_results.remove(&call).map(BytesMut::freeze) })
    }
}

/// The whole body that this frame completes. A message of another turn that has no end is dropped.
fn joined(
    unfinished: &mut Option<(TurnNo, BytesMut)>,
    turn: TurnNo,
    body: Bytes,
    more: bool,
) -> Result<Option<Bytes>, InboxError> {
    let begun = unfinished.take().filter(|(of, _)| *of == turn);
    if begun.is_none() && !more {
        return Ok(Some(body));
    }
    let mut bytes = begun.map_or_else(BytesMut::new, |(_, bytes)| bytes);
    append(&mut bytes, &body)?;
    if more {
        *unfinished = Some((turn, bytes));
        return Ok(None);
    }
    Ok(Some(bytes.freeze()))
}

fn append(bytes: &mut BytesMut, body: &[u8]) -> Result<(), InboxError> {
    if bytes.len() + body.len() > MESSAGE_BYTES_MAX {
        return Err(InboxError::MessageTooLong);
    }
    bytes.extend_from_slice(body);
    Ok(())
}

#[cfg(test)]
#[path = "inbox_tests.rs"]
mod tests;
