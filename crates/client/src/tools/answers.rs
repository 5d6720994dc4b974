//! The queue of answers to the node. An answer with pieces left goes to the end of the queue after
//! each piece, so that a small answer waits for one piece and not for a whole large answer.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Context;

use bytes::Bytes;
use futures_util::task::AtomicWaker;
use windlass_protocol::ErrorCode;
use windlass_protocol::frame;
use windlass_protocol::host::{FromHost, ToolError, Within};
use windlass_protocol::limits::{CHUNK_BYTES_MAX, MESSAGE_BYTES_MAX};

/// Limit for the bytes of queued answers. An answer beyond it is replaced by an error.
const WAITING_BYTES_MAX: usize = 256 * 1024 * 1024;

/// Capacity for the head of a frame.
const HEAD_BYTES: usize = 256;

/// Answers calls from any task or thread. Clones share one queue.
#[derive(Debug, Clone, Default)]
pub struct ToolAnswers {
    queue: Arc<AnswerQueue>,
}

#[derive(Debug, Default)]
struct AnswerQueue {
    waiting: Mutex<QueuedAnswers>,
    waker: AtomicWaker,
}

#[derive(Debug, Default)]
struct QueuedAnswers {
    first: VecDeque<Bytes>,
    answers: VecDeque<QueuedAnswer>,
    bytes: usize,
}

#[derive(Debug)]
struct QueuedAnswer {
    call: Within,
    ok: bool,
    /// The bytes that are not sent yet.
    body: Bytes,
}

impl ToolAnswers {
    /// Answers a call with JSON, or with an error that the session's code raises. Never waits. An
    /// answer that is too large or does not fit the queue becomes an error that says so.
    pub fn give(&self, call: &Within, answer: Result<Bytes, ToolError>) {
        let (ok, body) = match answer {
            Ok(body) if body.len() > MESSAGE_BYTES_MAX => {
                let bytes = body.len();
                let message =
                    format!("the answer has {bytes} bytes, over the limit of {MESSAGE_BYTES_MAX}");
                (false, error_body(ErrorCode::MessageTooLarge, message))
            }
            Ok(body) => (true, body),
            Err(error) => (false, encoded_error(&error)),
        };
        let mut waiting = self.waiting();
        let (ok, body) = if waiting.bytes + body.len() > WAITING_BYTES_MAX {
            let message =
                "too many answers of the tool host wait to be sent to the node".to_owned();
            (false, error_body(ErrorCode::Overloaded, message))
        } else {
            (ok, body)
        };
        waiting.bytes += body.len();
        waiting.answers.push_back(QueuedAnswer { call: call.clone(), ok, body });
        drop(waiting);
        self.queue.waker.wake();
    }

    /// Queues a message ahead of all answers.
    pub(super) fn push_first(&self, message: &FromHost, body: &[u8]) {
        self.waiting().first.push_back(encoded(message, body));
        self.queue.waker.wake();
    }

    /// Drops the unsent rest of a cancelled call's answer.
    pub(super) fn forget(&self, call: &Within) {
        let mut waiting = self.waiting();
        let mut bytes = 0;
        waiting.answers.retain(|answer| {
            let of_it = answer.call == *call;
            bytes += if of_it { answer.body.len() } else { 0 };
            !of_it
        });
        waiting.bytes -= bytes;
    }

    /// The next message to write. If there is none, the task is woken when one is queued.
    pub(super) fn next(&self, cx: &Context<'_>) -> Option<Bytes> {
        if let Some(message) = self.waiting().next() {
            return Some(message);
        }
        self.queue.waker.register(cx.waker());
        // A message may have been queued before the waker was registered.
        self.waiting().next()
    }

    fn waiting(&self) -> MutexGuard<'_, QueuedAnswers> {
        self.queue.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl QueuedAnswers {
    fn next(&mut self) -> Option<Bytes> {
        if let Some(message) = self.first.pop_front() {
            return Some(message);
        }
        let mut answer = self.answers.pop_front()?;
        let part = answer.body.split_to(answer.body.len().min(CHUNK_BYTES_MAX));
        self.bytes -= part.len();
        let more = !answer.body.is_empty();
        let Within { session, turn, call } = answer.call.clone();
        let message = FromHost::ToolResult { session, turn, call, ok: answer.ok, more };
        if more {
            self.answers.push_back(answer);
        }
        Some(encoded(&message, &part))
    }
}

fn encoded(message: &FromHost, body: &[u8]) -> Bytes {
    let mut bytes = Vec::with_capacity(HEAD_BYTES + body.len());
    // Ids of at most 64 characters, numbers, and a body that was cut into chunks.
    frame::encode(&mut bytes, message, body).expect("an answer's head and one chunk fit a frame");
    bytes.into()
}

fn error_body(code: ErrorCode, message: String) -> Bytes {
    encoded_error(&ToolError { message, code: Some(code), kind: None })
}

/// An error as JSON that fits one frame. A message that is too long is cut.
fn encoded_error(error: &ToolError) -> Bytes {
    let json =
        |error: &ToolError| serde_json::to_vec(error).expect("a tool error always serializes");
    let whole = json(error);
    if whole.len() <= CHUNK_BYTES_MAX {
        return whole.into();
    }
    // A character takes at most six bytes in JSON. The exception class is left out.
    let message = error.message.chars().take(CHUNK_BYTES_MAX / 8).collect();
    json(&ToolError { message, code: error.code, kind: None }).into()
}

#[cfg(test)]
mod tests {
    use windlass_protocol::frame::decode;

    use super::*;

    fn call(number: u64) -> Within {
        Within::parse(&format!("s/1/{number}")).unwrap()
    }

    /// The sent frames: call, success, bytes, and whether more follows.
    fn left(answers: &ToolAnswers) -> Vec<(u64, bool, usize, bool)> {
        let waker = futures_util::task::noop_waker();
        let cx = Context::from_waker(&waker);
        std::iter::from_fn(|| answers.next(&cx))
            .map(|bytes| {
                let frame = decode(bytes).unwrap();
                match serde_json::from_slice(&frame.header).unwrap() {
                    FromHost::ToolResult { call, ok, more, .. } => {
                        (call.0, ok, frame.body.len(), more)
                    }
                    other => panic!("{other:?}"),
                }
            })
            .collect()
    }

    #[test]
    fn a_small_answer_waits_for_a_piece_of_a_large_one_and_no_more() {
        let answers = ToolAnswers::default();
        answers.give(&call(1), Ok(vec![b' '; 2 * CHUNK_BYTES_MAX + 5].into()));
        answers.give(&call(2), Ok(Bytes::from_static(b"2")));
        answers.give(&call(3), Ok(Bytes::new()));
        let piece = CHUNK_BYTES_MAX;
        assert_eq!(
            left(&answers),
            [
                (1, true, piece, true),
                (2, true, 1, false),
                (3, true, 0, false),
                (1, true, piece, true),
                (1, true, 5, false)
            ]
        );
        assert_eq!(answers.waiting().bytes, 0);
    }

    #[test]
    fn what_cannot_be_sent_is_an_error_in_one_frame() {
        let answers = ToolAnswers::default();
        answers.give(&call(1), Ok(vec![b' '; MESSAGE_BYTES_MAX + 1].into()));
        let long = ToolError {
            message: "\u{1}".repeat(CHUNK_BYTES_MAX),
            code: None,
            kind: Some("x".repeat(CHUNK_BYTES_MAX)),
        };
        answers.give(&call(2), Err(long));
        let large = Bytes::from(vec![b' '; MESSAGE_BYTES_MAX]);
        for _ in 1..WAITING_BYTES_MAX / MESSAGE_BYTES_MAX {
            answers.give(&call(3), Ok(large.clone()));
        }
        answers.give(&call(4), Ok(large));
        answers.forget(&call(3));
        let left = left(&answers);
        assert_eq!(left.iter().map(|(call, ..)| *call).collect::<Vec<_>>(), [1, 2, 4]);
        assert!(left.iter().all(|(_, ok, bytes, more)| !ok && !more && *bytes > 50), "{left:?}");
    }
}
