//! Turns the bytes of a terminal in raw mode into keys. Knows no meaning of a key.

use std::mem;

/// Maximum number of bytes of a sequence's parameters. A longer sequence is no key.
const PARAMETER_BYTES_MAX: usize = 16;

/// A key that `windlass top` knows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TopKey {
    Char(char),
    Enter,
    Escape,
    Backspace,
    Up,
    Down,
    PageUp,
    PageDown,
    Home,
    End,
    /// Ctrl-C.
    Interrupt,
    /// Ctrl-L.
    Redraw,
    /// Ctrl-U.
    EraseLine,
}

/// Reads keys from bytes that may come in any pieces.
#[derive(Debug, Default)]
pub struct KeyReader {
    state: SequenceState,
}

#[derive(Debug, Default)]
enum SequenceState {
    #[default]
    Start,
    /// After ESC.
    Escape,
    /// After an ESC at the end of what was read: its key is told, and the rest of a sequence may still come.
    EscapeTold,
    /// After ESC [ or ESC O.
    Parameters(Vec<u8>),
    /// The first bytes of a character.
    Character(Vec<u8>),
}

impl KeyReader {
    /// The keys in `bytes`, after those of earlier calls.
    pub fn read(&mut self, bytes: &[u8]) -> Vec<TopKey> {
        let mut keys: Vec<TopKey> = bytes.iter().filter_map(|byte| self.take(*byte)).collect();
        // A terminal sends a sequence at once, so an ESC at the end is the key. If the rest of a sequence still comes,
        // it is read as such.
        if matches!(self.state, SequenceState::Escape) {
            self.state = SequenceState::EscapeTold;
            keys.push(TopKey::Escape);
        }
        keys
    }

    fn take(&mut self, byte: u8) -> Option<TopKey> {
        match mem::take(&mut self.state) {
            SequenceState::Start => self.begin(byte),
            SequenceState::Escape | SequenceState::EscapeTold if matches!(byte, b'[' | b'O') => {
                self.state = SequenceState::Parameters(Vec::new());
                None
            }
            // Ctrl-C always works, and a second ESC begins anew.
            SequenceState::Escape if matches!(byte, 0x03 | 0x1b) => self.begin(byte),
            // A key with Alt is only Escape: it must not answer a question.
            SequenceState::Escape => Some(TopKey::Escape),
            SequenceState::EscapeTold => self.begin(byte),
            SequenceState::Parameters(mut parameters) => match byte {
                b'@'..=b'~' => sequence(&parameters, byte),
                0x1b => self.begin(byte),
                _ if parameters.len() >= PARAMETER_BYTES_MAX => None,
                _ => {
                    parameters.push(byte);
                    self.state = SequenceState::Parameters(parameters);
                    None
                }
            },
            SequenceState::Character(mut bytes) => {
                bytes.push(byte);
                self.character(bytes)
            }
        }
    }

    fn begin(&mut self, byte: u8) -> Option<TopKey> {
        match byte {
            0x1b => {
                self.state = SequenceState::Escape;
                None
            }
            b'\r' | b'\n' => Some(TopKey::Enter),
            0x03 => Some(TopKey::Interrupt),
            0x0c => Some(TopKey::Redraw),
            0x15 => Some(TopKey::EraseLine),
            0x08 | 0x7f => Some(TopKey::Backspace),
            b' '..=b'~' => Some(TopKey::Char(char::from(byte))),
            0x80.. => self.character(vec![byte]),
            _ => None,
        }
    }

    fn character(&mut self, bytes: Vec<u8>) -> Option<TopKey> {
        match std::str::from_utf8(&bytes) {
            Ok(text) => text.chars().next().filter(|char| !char.is_control()).map(TopKey::Char),
            Err(fault) if fault.error_len().is_none() => {
                self.state = SequenceState::Character(bytes);
                None
            }
            Err(_) => None,
        }
    }
}

/// The key of a sequence that ends with `last`.
fn sequence(parameters: &[u8], last: u8) -> Option<TopKey> {
    // What follows a semicolon are keys such as Shift that were held.
    let number = parameters.split(|byte| *byte == b';').next().unwrap_or_default();
    match (last, number) {
        (b'A', _) => Some(TopKey::Up),
        (b'B', _) => Some(TopKey::Down),
        (b'H', _) | (b'~', b"1" | b"7") => Some(TopKey::Home),
        (b'F', _) | (b'~', b"4" | b"8") => Some(TopKey::End),
        (b'M', b"") => Some(TopKey::Enter),
        (b'~', b"5") => Some(TopKey::PageUp),
        (b'~', b"6") => Some(TopKey::PageDown),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_read_as_terminals_send_them() {
        use TopKey::{
            Backspace, Char, Down, End, Enter, EraseLine, Escape, Home, Interrupt, PageDown,
            PageUp, Redraw, Up,
        };
        for (text, expected) in [
            ("q?K", vec![Char('q'), Char('?'), Char('K')]),
            ("\r\n\x7f\x08", vec![Enter, Enter, Backspace, Backspace]),
            ("\x03\x0c\x15\x00\x1a", vec![Interrupt, Redraw, EraseLine]),
            ("\x1b[A\x1b[B\x1bOA\x1bOB", vec![Up, Down, Up, Down]),
            ("\x1b[5~\x1b[6~\x1b[1;5A", vec![PageUp, PageDown, Up]),
            ("\x1b[H\x1b[F\x1b[1~\x1b[4~\x1bOH", vec![Home, End, Home, End, Home]),
            ("\x1b[200~x", vec![Char('x')]),
            ("\x1b[\x1b[A", vec![Up]),
            ("\x1b", vec![Escape]),
            ("\x1b\x1b", vec![Escape]),
            // Alt with a key.
            ("\x1by", vec![Escape]),
            ("\x1b\x1by", vec![Escape]),
            ("\x1b\r", vec![Escape]),
            ("\x1bé", vec![Escape]),
            ("\x1byq", vec![Escape, Char('q')]),
            ("\x1b\x03", vec![Interrupt]),
            ("é日", vec![Char('é'), Char('日')]),
            ("\u{9b}q", vec![Char('q')]),
        ] {
            assert_eq!(KeyReader::default().read(text.as_bytes()), expected, "{text:?}");
        }
        assert_eq!(KeyReader::default().read(b"\xffq"), [Char('q')]);
    }

    #[test]
    fn a_sequence_that_comes_in_pieces_is_still_read() {
        let mut keys = KeyReader::default();
        assert_eq!(keys.read(b"\x1b"), [TopKey::Escape]);
        assert!(keys.read(b"[").is_empty());
        assert_eq!(keys.read(b"B"), [TopKey::Down]);
        // A key that is typed after Escape is a key.
        assert_eq!(keys.read(b"\x1b"), [TopKey::Escape]);
        assert_eq!(keys.read(b"q"), [TopKey::Char('q')]);
        assert!(keys.read(b"\xc3").is_empty());
        assert_eq!(keys.read(b"\xa9"), [TopKey::Char('é')]);
        // A sequence without an end is bounded.
        assert!(keys.read(b"\x1b[").is_empty());
        keys.read(&[b'1'; 1000]);
        assert!(keys.read(b"q").contains(&TopKey::Char('q')));
    }
}
