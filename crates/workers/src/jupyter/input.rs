//! The standard input of a turn. A kernel asks for one line at a time, a keeper answers with any bytes. Does no
//! I/O.

use serde_json::Value;

/// The answer to a kernel's request for input.
#[derive(Debug, PartialEq)]
pub struct InputAnswer {
    /// The header of the request.
    pub request: Value,
    /// One line without its end.
    pub text: String,
}

/// Input of the running turn that the code has not read.
#[derive(Debug)]
pub struct UnreadInput {
    end_of_input: &'static str,
    /// The header of the request that waits for an answer.
    request: Option<Value>,
    unread: Vec<u8>,
    has_ended: bool,
}

impl UnreadInput {
    pub fn new(end_of_input: &'static str) -> Self {
        Self { end_of_input, request: None, unread: Vec::new(), has_ended: false }
    }

    /// The kernel asks for a line. The answer if there is one already; otherwise the keeper must be asked.
    pub fn ask(&mut self, request: Value) -> Option<InputAnswer> {
        if self.unread.is_empty() && !self.has_ended {
            self.request = Some(request);
            return None;
        }
        Some(InputAnswer { request, text: self.next_line() })
    }

    /// The keeper answers. The answer to the waiting request; input without one is dropped.
    pub fn take(&mut self, bytes: &[u8], eof: bool) -> Option<InputAnswer> {
        let request = self.request.take()?;
        self.unread.extend_from_slice(bytes);
        self.has_ended |= eof;
        Some(InputAnswer { request, text: self.next_line() })
    }

    /// Drops what was not read.
    pub fn clear(&mut self) {
        *self = Self::new(self.end_of_input);
    }

    /// The next line, or what there is without a line end.
    fn next_line(&mut self) -> String {
        if self.unread.is_empty() && self.has_ended {
            return self.end_of_input.to_owned();
        }
        let end = self.unread.iter().position(|byte| *byte == b'\n');
        let rest = end.map_or_else(Vec::new, |end| self.unread.split_off(end + 1));
        let mut line = std::mem::replace(&mut self.unread, rest);
        if line.last() == Some(&b'\n') {
            line.pop();
        }
        String::from_utf8_lossy(&line).into_owned()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_kernel_gets_one_line_a_request() {
        let mut input = UnreadInput::new("\u{4}");
        assert_eq!(input.take(b"early", false), None);
        assert_eq!(input.ask(json!(1)), None);
        let answer = input.take(b"a\n\nb", true).unwrap();
        assert_eq!((answer.request, answer.text.as_str()), (json!(1), "a"));
        let texts: Vec<_> = (0..4).map(|_| input.ask(json!(2)).unwrap().text).collect();
        assert_eq!(texts, ["", "b", "\u{4}", "\u{4}"]);
        input.clear();
        assert_eq!(input.ask(json!(3)), None);
        assert_eq!(input.take(b"", false).unwrap().text, "");
        assert_eq!(input.ask(json!(4)), None);
        input.clear();
        assert_eq!(input.take(b"late\n", false), None);
    }
}
