//! Parses server-sent events: bytes in, the data of whole events out. Owns the format; knows no
//! connection.
//!
//! Not the crate `sse-stream`, which the MCP door uses for servers of others: it has no limit on an unfinished
//! event, and would copy each event into a `String` before it is parsed as JSON.

use bytes::{Buf, BytesMut};

/// The longest unfinished event. No node sends a longer one.
const EVENT_BYTES_MAX: usize = 8 * 1024 * 1024;

/// An event is longer than any node sends.
#[derive(Debug, thiserror::Error)]
#[error("an event is longer than {EVENT_BYTES_MAX} bytes")]
pub(crate) struct EventTooLong;

#[derive(Debug, Default)]
pub(crate) struct SseParser {
    pending: BytesMut,
    /// Bytes at the start of `pending` that hold no line end.
    searched: usize,
    data: Vec<u8>,
    has_data: bool,
}

impl SseParser {
    pub(crate) fn feed(&mut self, bytes: &[u8]) -> Result<(), EventTooLong> {
        if self.pending.len() + self.data.len() + bytes.len() > EVENT_BYTES_MAX {
            return Err(EventTooLong);
        }
        self.pending.extend_from_slice(bytes);
        Ok(())
    }

    /// The data of the next whole event.
    pub(crate) fn next_data(&mut self) -> Option<Vec<u8>> {
        while let Some(line) = self.next_line() {
            if line.is_empty() {
                if std::mem::take(&mut self.has_data) {
                    return Some(std::mem::take(&mut self.data));
                }
            } else if let Some(value) = line.strip_prefix(b"data:") {
                // Lines of one event's data are joined, as the format says.
                if self.has_data {
                    self.data.push(b'\n');
                }
                self.data.extend_from_slice(value.strip_prefix(b" ").unwrap_or(value));
                self.has_data = true;
            }
            // Comments keep the connection alive; ids are in the data as well.
        }
        None
    }

    fn next_line(&mut self) -> Option<BytesMut> {
        let Some(at) = self.pending[self.searched..].iter().position(|byte| *byte == b'\n') else {
            self.searched = self.pending.len();
            return None;
        };
        let mut line = self.pending.split_to(self.searched + at);
        self.pending.advance(1);
        self.searched = 0;
        if line.last() == Some(&b'\r') {
            line.truncate(line.len() - 1);
        }
        Some(line)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(text: &str, expected: &[&str]) {
        for size in [1, 2, 3, 7, text.len()] {
            let mut parser = SseParser::default();
            let mut found = Vec::new();
            for chunk in text.as_bytes().chunks(size) {
                parser.feed(chunk).unwrap();
                while let Some(data) = parser.next_data() {
                    found.push(String::from_utf8(data).unwrap());
                }
            }
            assert_eq!(found, expected, "in chunks of {size}");
        }
    }

    #[test]
    fn events_come_out_whole_however_they_are_cut() {
        check("id: 1\ndata: {\"a\":1}\n\nid: 2\ndata: b\n\n", &["{\"a\":1}", "b"]);
        check(": keep alive\n\ndata: x\r\n\r\n", &["x"]);
        check("data: two\ndata:lines\n\n", &["two\nlines"]);
        check("event: odd\nretry: 5\n\ndata:\n\n", &[""]);
        check("data: unfinished\n", &[]);
    }

    #[test]
    fn an_endless_event_is_refused() {
        let mut parser = SseParser::default();
        parser.feed(&vec![b'x'; EVENT_BYTES_MAX]).unwrap();
        assert!(parser.feed(b"x").is_err());
    }
}
