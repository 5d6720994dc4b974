//! Input held for the running turn until its code asks. One message answers one wait, so that two
//! answers given early stay two answers.

use std::collections::VecDeque;

use bytes::Bytes;
use windlass_protocol::limits::INPUT_BYTES_MAX;

/// One message of input.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Given {
    pub bytes: Bytes,
    pub eof: bool,
}

#[derive(Debug, Default)]
pub(crate) struct HeldInput {
    given: VecDeque<Given>,
    bytes: usize,
    /// The code has asked and has no answer.
    asked: bool,
}

impl HeldInput {
    /// Input came; what is past the limit is dropped, which the node prevents by refusing it.
    pub fn give(&mut self, given: Given) {
        if self.bytes + given.bytes.len() <= INPUT_BYTES_MAX {
            self.bytes += given.bytes.len();
            self.given.push_back(given);
        }
    }

    pub fn ask(&mut self) {
        self.asked = true;
    }

    /// The answer to an open wait, if there is both.
    pub fn answer(&mut self) -> Option<Given> {
        if !self.asked {
            return None;
        }
        let given = self.given.pop_front()?;
        self.bytes -= given.bytes.len();
        self.asked = false;
        Some(given)
    }

    pub fn clear(&mut self) {
        *self = Self::default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn given(text: &'static str) -> Given {
        Given { bytes: Bytes::from_static(text.as_bytes()), eof: false }
    }

    #[test]
    fn early_answers_stay_apart_and_wait_for_their_question() {
        let mut input = HeldInput::default();
        input.give(given("a\n"));
        input.give(given("b\n"));
        assert_eq!(input.answer(), None);
        input.ask();
        assert_eq!(input.answer(), Some(given("a\n")));
        assert_eq!(input.answer(), None);
        input.ask();
        assert_eq!(input.answer(), Some(given("b\n")));
    }

    #[test]
    fn nothing_is_left_for_the_next_turn() {
        let mut input = HeldInput::default();
        input.give(given("left"));
        input.clear();
        input.ask();
        assert_eq!(input.answer(), None);
    }
}
