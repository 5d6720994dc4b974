//! The end of a session's output as lines of plain text, within limits. Output is hostile: no escape sequence and no
//! control character of it gets into a line.

use std::collections::VecDeque;
use std::mem;

use crate::agent_view;

/// Maximum number of lines that are kept.
pub const TAIL_LINES_MAX: usize = 500;

/// Maximum number of bytes that are kept.
pub const TAIL_BYTES_MAX: usize = 64 * 1024;

/// Maximum number of bytes of one line. The rest of a longer line is left out.
const LINE_BYTES_MAX: usize = 4096;

/// Maximum number of characters of a terminal's command that are skipped while its end does not come.
const COMMAND_CHARS_MAX: usize = 4096;

/// Columns between two tab stops.
const TAB_COLUMNS: usize = 8;

/// A line of the tail.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TailLine {
    /// What the session printed.
    Output(String),
    /// What Windlass says about the session.
    Note(String),
}

impl TailLine {
    pub fn text(&self) -> &str {
        match self {
            Self::Output(text) | Self::Note(text) => text,
        }
    }
}

/// The last lines of a session's output.
#[derive(Debug, Default)]
pub struct OutputTail {
    lines: VecDeque<TailLine>,
    /// Bytes in `lines`.
    bytes: usize,
    /// The line that is not yet complete.
    open: String,
    /// A carriage return came: the next character begins the open line anew.
    is_returned: bool,
    escape: EscapeState,
    /// The beginning of a character whose other bytes have not come.
    partial: Vec<u8>,
}

/// Where in an escape sequence the output is.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
enum EscapeState {
    #[default]
    Text,
    /// After ESC.
    Escape,
    /// After ESC and a character that other characters follow.
    Intermediate,
    /// After ESC [.
    Control,
    /// In a command such as the one that sets a title. It has an end of its own.
    Command { chars: usize },
    /// After an ESC in a command.
    CommandEscape,
}

impl OutputTail {
    /// Adds bytes of output.
    pub fn push(&mut self, bytes: &[u8]) {
        let mut pending = mem::take(&mut self.partial);
        pending.extend_from_slice(bytes);
        let mut rest = pending.as_slice();
        loop {
            let fault = match std::str::from_utf8(rest) {
                Ok(text) => return text.chars().for_each(|char| self.take(char)),
                Err(fault) => fault,
            };
            let (valid, after) = rest.split_at(fault.valid_up_to());
            String::from_utf8_lossy(valid).chars().for_each(|char| self.take(char));
            let Some(length) = fault.error_len() else {
                self.partial = after.to_vec();
                return;
            };
            self.take(char::REPLACEMENT_CHARACTER);
            rest = &after[length..];
        }
    }

    /// Adds a line about the session.
    pub fn note(&mut self, text: &str) {
        self.end_line();
        let text = agent_view::clean(text).replace(['\n', '\t'], " ");
        self.add(TailLine::Note(text.chars().take(LINE_BYTES_MAX / 4).collect()));
    }

    /// Ends the open line, if there is one.
    pub fn end_line(&mut self) {
        if !self.open.is_empty() {
            self.complete();
        }
    }

    /// The last `count` lines, the oldest first.
    pub fn last(&self, count: usize) -> Vec<TailLine> {
        let open = (!self.open.is_empty()).then(|| TailLine::Output(self.open.clone()));
        let complete = count.saturating_sub(usize::from(open.is_some()));
        let skipped = self.lines.len().saturating_sub(complete);
        self.lines.iter().skip(skipped).cloned().chain(open).take(count).collect()
    }

    fn take(&mut self, char: char) {
        match self.escape {
            EscapeState::Text => self.take_text(char),
            EscapeState::Escape => {
                self.escape = match char {
                    '[' => EscapeState::Control,
                    ']' | 'P' | 'X' | '^' | '_' => EscapeState::Command { chars: 0 },
                    '\u{1b}' => EscapeState::Escape,
                    ' '..='/' => EscapeState::Intermediate,
                    '0'..='~' => EscapeState::Text,
                    _ => return self.leave_escape(char),
                };
            }
            EscapeState::Intermediate => match char {
                ' '..='/' => {}
                '0'..='~' => self.escape = EscapeState::Text,
                _ => self.leave_escape(char),
            },
            EscapeState::Control => match char {
                ' '..='?' => {}
                '@'..='~' => self.escape = EscapeState::Text,
                _ => self.leave_escape(char),
            },
            EscapeState::Command { chars } => match char {
                '\u{7}' | '\u{9c}' => self.escape = EscapeState::Text,
                '\u{1b}' => self.escape = EscapeState::CommandEscape,
                // A command that does not end hides no other lines.
                '\n' => self.leave_escape(char),
                _ if chars >= COMMAND_CHARS_MAX => self.leave_escape(char),
                _ => self.escape = EscapeState::Command { chars: chars + 1 },
            },
            EscapeState::CommandEscape => {
                self.escape = EscapeState::Text;
                if char != '\\' {
                    // The ESC has ended the command and begins another sequence.
                    self.escape = EscapeState::Escape;
                    self.take(char);
                }
            }
        }
    }

    /// The sequence is malformed, and `char` is not a part of it.
    fn leave_escape(&mut self, char: char) {
        self.escape = EscapeState::Text;
        self.take_text(char);
    }

    fn take_text(&mut self, char: char) {
        match char {
            '\u{1b}' => self.escape = EscapeState::Escape,
            '\n' => self.complete(),
            '\r' => self.is_returned = true,
            '\u{8}' => drop(self.open.pop()),
            '\t' => {
                let column = self.open.chars().count() % TAB_COLUMNS;
                (column..TAB_COLUMNS).for_each(|_| self.put(' '));
            }
            char if agent_view::is_plain(char) => self.put(char),
            _ => {}
        }
    }

    fn put(&mut self, char: char) {
        if mem::take(&mut self.is_returned) {
            self.open.clear();
        }
        if self.open.len() + char.len_utf8() <= LINE_BYTES_MAX {
            self.open.push(char);
        }
    }

    fn complete(&mut self) {
        self.is_returned = false;
        let line = mem::take(&mut self.open);
        self.add(TailLine::Output(line));
    }

    fn add(&mut self, line: TailLine) {
        self.bytes += line.text().len();
        self.lines.push_back(line);
        while self.lines.len() > TAIL_LINES_MAX || self.bytes > TAIL_BYTES_MAX {
            let Some(oldest) = self.lines.pop_front() else { return };
            self.bytes -= oldest.text().len();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(pieces: &[&[u8]]) -> String {
        let mut tail = OutputTail::default();
        for piece in pieces {
            tail.push(piece);
        }
        let lines = tail.last(TAIL_LINES_MAX);
        lines.iter().map(TailLine::text).collect::<Vec<_>>().join("|")
    }

    #[test]
    fn output_becomes_lines_without_what_changes_a_terminal() {
        for (output, expected) in [
            ("a\nb", "a|b"),
            ("a\r\nb\r\n", "a|b"),
            ("10%\r20%\r30%", "30%"),
            ("ab\u{8}c", "ac"),
            ("a\tb", "a       b"),
            ("\u{1b}[31;1mred\u{1b}[0m", "red"),
            ("\u{1b}]0;title\u{7}a\u{1b}]8;;http\u{1b}\\b", "ab"),
            ("\u{1b}Pq#0;2\u{1b}\\a\u{1b}_x\u{9c}b", "ab"),
            ("\u{1b}(Ba\u{1b}7b\u{1b}=c", "abc"),
            ("\u{1b}]0;never ends\nnext", "|next"),
            ("\u{1b}[3\nnext", "|next"),
            ("\u{1b}\u{1b}[2Ja", "a"),
            ("\u{1b}]0;x\u{1b}[2Ja", "a"),
            ("bell\u{7} nul\u{0} c1\u{9b}2J", "bell nul c12J"),
            ("left\u{202e}right", "leftright"),
            ("größe 日本", "größe 日本"),
        ] {
            assert_eq!(shown(&[output.as_bytes()]), expected, "{output:?}");
            let bytes: Vec<&[u8]> = output.as_bytes().chunks(1).collect();
            assert_eq!(shown(&bytes), expected, "{output:?}, byte by byte");
        }
        assert_eq!(shown(&[b"a\xffb\xe2\x82"]), "a\u{fffd}b");
    }

    #[test]
    fn no_output_gets_a_control_character_into_a_line() {
        // Each pair of bytes after each beginning of a sequence.
        for start in ["", "\u{1b}", "\u{1b}[", "\u{1b}]", "\u{1b}(", "\u{1b}]\u{1b}"] {
            for first in 0..=255 {
                for second in [0, 7, 8, 9, 10, 13, 27, 92, 127, 144, 155, 156, 157, 255] {
                    let text = shown(&[start.as_bytes(), &[first, second], "\u{85}x".as_bytes()]);
                    assert!(!text.contains(char::is_control), "{start:?} {first} {second}");
                }
            }
        }
    }

    #[test]
    fn lines_and_bytes_are_bounded() {
        let mut tail = OutputTail::default();
        for number in 0..TAIL_LINES_MAX * 2 {
            tail.push(format!("{number}\n").as_bytes());
        }
        assert_eq!(tail.last(usize::MAX).len(), TAIL_LINES_MAX);
        assert_eq!(tail.last(1)[0].text(), "999");
        for _ in 0..100 {
            tail.push(&[b'x'; LINE_BYTES_MAX + 1]);
            tail.push(b"\n");
        }
        assert!(tail.bytes <= TAIL_BYTES_MAX);
        assert_eq!(tail.last(1)[0].text().len(), LINE_BYTES_MAX);
        tail.push("\u{1b}]".as_bytes());
        tail.push(&[b'x'; COMMAND_CHARS_MAX]);
        tail.push(b"the end");
        assert_eq!(tail.last(1)[0].text(), "the end");
    }

    #[test]
    fn a_note_ends_the_open_line_and_is_told_apart_from_output() {
        let mut tail = OutputTail::default();
        tail.push(b"half");
        tail.note("turn 1\u{1b}[2J ended:\nok");
        tail.push(b"next");
        let expected = [
            TailLine::Output("half".to_owned()),
            TailLine::Note("turn 1[2J ended: ok".to_owned()),
            TailLine::Output("next".to_owned()),
        ];
        assert_eq!(tail.last(9), expected);
        assert_eq!(tail.last(1), expected[2..]);
        assert!(tail.last(0).is_empty());
    }
}
