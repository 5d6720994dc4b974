//! Input for the running turn, queued until the turn's code asks for it. One message answers one wait, so two
//! messages that arrive early answer two waits.

use std::collections::VecDeque;

use bytes::Bytes;
use windlass_protocol::limits::INPUT_BYTES_MAX;

/// One message of input.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct InputMessage {
    pub bytes: Bytes,
    pub eof: bool,
    /// The bytes were typed at a terminal.
    pub keys: bool,
}

/// Queued input messages.
#[derive(Debug, Default)]
pub(crate) struct InputQueue {
    messages: VecDeque<InputMessage>,
    bytes: usize,
    /// The code waits for input.
    waiting: bool,
}

impl InputQueue {
    /// Queues a message. Input over the limit is dropped; the node refuses such input before it sends it.
    pub fn give(&mut self, message: InputMessage) {
        if self.bytes + message.bytes.len() <= INPUT_BYTES_MAX {
            self.bytes += message.bytes.len();
            self.messages.push_back(message);
        }
    }

    pub fn wait(&mut self) {
        self.waiting = true;
    }

    /// The message that answers the open wait, if there are both.
    pub fn answer(&mut self) -> Option<InputMessage> {
        if !self.waiting {
            return None;
        }
        let message = self.messages.pop_front()?;
        self.bytes -= message.bytes.len();
        self.waiting = false;
        Some(message)
    }

    pub fn clear(&mut self) {
        *self = Self::default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(text: &'static str) -> InputMessage {
        InputMessage { bytes: Bytes::from_static(text.as_bytes()), eof: false, keys: false }
    }

    #[test]
    fn early_messages_stay_separate_and_wait_for_their_question() {
        let mut input = InputQueue::default();
        input.give(message("a\n"));
        input.give(message("b\n"));
        assert_eq!(input.answer(), None);
        input.wait();
        assert_eq!(input.answer(), Some(message("a\n")));
        assert_eq!(input.answer(), None);
        input.wait();
        assert_eq!(input.answer(), Some(message("b\n")));
    }

    #[test]
    fn nothing_is_left_for_the_next_turn() {
        let mut input = InputQueue::default();
        input.give(message("left"));
        input.clear();
        input.wait();
        assert_eq!(input.answer(), None);
    }
}
