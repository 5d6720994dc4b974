//! The output of the session's terminal: finds the mark that bash writes at a turn's end, and keeps the last
//! line, which is the prompt when the code asks for input. Does no I/O.

/// Maximum bytes of the last line that are kept.
const PROMPT_BYTES_MAX: usize = 4096;

/// A part of the terminal's output.
#[derive(Debug, PartialEq, Eq)]
pub enum TerminalOutput {
    Bytes(Vec<u8>),
    /// The turn with this mark has ended. All its output came before.
    Mark(String),
}

/// Splits the output of a terminal.
#[derive(Debug)]
pub struct TerminalReader {
    /// The text before and after the number of a turn in a mark.
    opening: Vec<u8>,
    /// Bytes that may be the beginning of a mark.
    held: Vec<u8>,
    last_line: Vec<u8>,
}

const CLOSING: u8 = 0x07;

/// Maximum bytes of a turn's number.
const NUMBER_BYTES_MAX: usize = 24;

impl TerminalReader {
    pub fn new(secret: &str) -> Self {
        Self { opening: opening(secret).into(), held: Vec::new(), last_line: Vec::new() }
    }

    /// The next bytes of the terminal.
    pub fn push(&mut self, bytes: &[u8]) -> Vec<TerminalOutput> {
        self.held.extend_from_slice(bytes);
        let mut parts = Vec::new();
        loop {
            let Some(at) = find(&self.held, &self.opening) else {
                let kept = kept_at_end(&self.held, &self.opening);
                let plain = self.held.drain(..self.held.len() - kept).collect();
                self.plain(plain, &mut parts);
                return parts;
            };
            let number = &self.held[at + self.opening.len()..];
            let end = number.iter().take(NUMBER_BYTES_MAX).position(|byte| *byte == CLOSING);
            let Some(end) = end else {
                if number.len() >= NUMBER_BYTES_MAX {
                    let plain = self.held.drain(..=at).collect();
                    self.plain(plain, &mut parts);
                    continue;
                }
                let plain = self.held.drain(..at).collect();
                self.plain(plain, &mut parts);
                return parts;
            };
            let mark = String::from_utf8_lossy(&number[..end]).into_owned();
            let plain = self.held.drain(..at).collect();
            self.held.drain(..self.opening.len() + end + 1);
            self.plain(plain, &mut parts);
            parts.push(TerminalOutput::Mark(mark));
        }
    }

    /// A new turn begins. Its prompt is not behind the output of an earlier turn.
    pub fn begin_line(&mut self) {
        self.last_line.clear();
    }

    /// The line that the terminal shows last, without its escape sequences.
    pub fn prompt(&self) -> String {
        let text = String::from_utf8_lossy(&self.last_line);
        text.chars().filter(|character| !character.is_control()).collect()
    }

    fn plain(&mut self, bytes: Vec<u8>, parts: &mut Vec<TerminalOutput>) {
        if bytes.is_empty() {
            return;
        }
        let begin = bytes.iter().rposition(|byte| *byte == b'\n').map(|at| at + 1);
        if begin.is_some() {
            self.last_line.clear();
        }
        self.last_line.extend_from_slice(&bytes[begin.unwrap_or(0)..]);
        let excess = self.last_line.len().saturating_sub(PROMPT_BYTES_MAX);
        self.last_line.drain(..excess);
        parts.push(TerminalOutput::Bytes(bytes));
    }
}

/// The format with which bash prints a mark.
pub fn mark_format(secret: &str) -> String {
    format!("'\\e]7117;{secret};%s\\a'")
}

fn opening(secret: &str) -> String {
    format!("\u{1b}]7117;{secret};")
}

fn find(bytes: &[u8], pattern: &[u8]) -> Option<usize> {
    bytes.windows(pattern.len()).position(|window| window == pattern)
}

/// Bytes at the end that the pattern may begin with.
fn kept_at_end(bytes: &[u8], pattern: &[u8]) -> usize {
    let longest = bytes.len().min(pattern.len() - 1);
    (1..=longest).rev().find(|count| bytes.ends_with(&pattern[..*count])).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(pieces: &[&[u8]]) -> (String, String) {
        let mut reader = TerminalReader::new("s");
        let mut text = String::new();
        for piece in pieces {
            for part in reader.push(piece) {
                match part {
                    TerminalOutput::Bytes(bytes) => text += &String::from_utf8_lossy(&bytes),
                    TerminalOutput::Mark(mark) => text += &format!("<{mark}>"),
                }
            }
        }
        (text, reader.prompt())
    }

    #[test]
    fn marks_are_found_in_any_pieces() {
        let bytes = b"one\r\n\x1b]0;title\x07two\x1b]7117;s;12-a\x07three? ";
        let expected = "one\r\n\u{1b}]0;title\u{7}two<12-a>three? ";
        for size in 1..bytes.len() {
            let pieces: Vec<&[u8]> = bytes.chunks(size).collect();
            assert_eq!(shown(&pieces).0, expected, "in pieces of {size}");
        }
    }

    #[test]
    fn the_prompt_is_the_last_line() {
        assert_eq!(shown(&[b"a\nname", b"? "]).1, "name? ");
        assert_eq!(shown(&[b"a\n"]).1, "");
        assert_eq!(shown(&[&[b'x'; 9000]]).1.len(), PROMPT_BYTES_MAX);
    }

    #[test]
    fn an_unfinished_mark_does_not_hold_output_for_ever() {
        let long = format!("\u{1b}]7117;s;{}", "1".repeat(100));
        assert_eq!(shown(&[long.as_bytes()]).0, long);
    }
}
