//! The head and tail of a turn's output: what the node keeps in memory while the turn runs, and what a reply
//! shows. Memory use does not depend on how much is printed.

use std::collections::VecDeque;

use base64::Engine as _;
use bytes::Bytes;
use windlass_journal::StreamEnds;
use windlass_protocol::api::{OutputView, StreamView};
use windlass_protocol::{SessionId, TurnId};

/// Bytes kept of the start of a turn's output, and as many of its end.
pub(crate) const KEPT_BYTES: usize = 8 * 1024;

/// Bytes of a budget that are reserved for the marker between head and tail, and for characters that a cut
/// splits. A budget below twice this keeps half of itself for output; only then the reply exceeds the budget.
const MARKER_BYTES_MAX: usize = 256;

/// Bytes of the head, and of the tail, if the output does not fit the budget.
pub(crate) fn end_bytes(budget: usize) -> usize {
    (budget - MARKER_BYTES_MAX.min(budget / 2)) / 2
}

/// The head and tail of a turn's output so far.
#[derive(Debug, Clone, Default)]
pub(crate) struct OutputEnds {
    head: Vec<u8>,
    tail: VecDeque<u8>,
    pub bytes: u64,
    /// Some output is only in the journal, because an earlier node recorded it.
    in_journal: bool,
}

impl OutputEnds {
    /// Stands for output that is only in the journal.
    pub fn in_journal(bytes: u64) -> Self {
        Self { bytes, in_journal: bytes > 0, ..Self::default() }
    }

    pub fn push(&mut self, bytes: &[u8]) {
        self.bytes += bytes.len() as u64;
        let (to_head, rest) = bytes.split_at(bytes.len().min(KEPT_BYTES - self.head.len()));
        self.head.extend_from_slice(to_head);
        let rest = &rest[rest.len().saturating_sub(KEPT_BYTES)..];
        let over = (self.tail.len() + rest.len()).saturating_sub(KEPT_BYTES);
        self.tail.drain(..over);
        self.tail.extend(rest);
    }

    /// The last bytes of the output that are in memory, at most `bytes_max`.
    pub fn last(&self, bytes_max: usize) -> Vec<u8> {
        let of_tail = self.tail.len().min(bytes_max);
        let of_head = self.head.len().min(bytes_max - of_tail);
        // With an omission between them, the head's end does not belong to the tail.
        let joined = (self.head.len() + self.tail.len()) as u64 == self.bytes || self.in_journal;
        let head = if joined { &self.head[self.head.len() - of_head..] } else { &[] };
        head.iter().chain(self.tail.range(self.tail.len() - of_tail..)).copied().collect()
    }

    /// The excerpt that fits `budget`. None if the head and tail in memory are too short for it.
    pub fn excerpt(&self, budget: usize) -> Option<OutputExcerpt> {
        if self.in_journal {
            return None;
        }
        let kept = (self.head.len() + self.tail.len()) as u64;
        let mut all = Vec::with_capacity(kept as usize);
        if kept == self.bytes && kept <= budget as u64 {
            all.extend_from_slice(&self.head);
            all.extend(&self.tail);
            return Some(OutputExcerpt { head: all.into(), tail: Bytes::new(), bytes: self.bytes });
        }
        let half = end_bytes(budget);
        if half > KEPT_BYTES {
            return None;
        }
        let tail_from = self.tail.len().saturating_sub(half);
        // All output is in memory, so both ends are cut from it. (With less than KEPT_BYTES there is no
        // tail.)
        let (head, tail) = if kept == self.bytes {
            all.extend_from_slice(&self.head);
            all.extend(&self.tail);
            let all = Bytes::from(all);
            (all.slice(..half), all.slice(all.len() - half..))
        } else {
            let tail: Vec<u8> = self.tail.range(tail_from..).copied().collect();
            (Bytes::copy_from_slice(&self.head[..half]), Bytes::from(tail))
        };
        Some(OutputExcerpt { head, tail, bytes: self.bytes })
    }
}

/// What a reply shows of an output of `bytes` bytes. The tail is empty if the head is the whole output.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct OutputExcerpt {
    pub head: Bytes,
    pub tail: Bytes,
    pub bytes: u64,
}

impl OutputExcerpt {
    /// The excerpt as the API shows it. `from` is the offset of this output in the session's output.
    pub fn to_view(&self, session: &str, from: u64) -> OutputView {
        let omitted = self.bytes - (self.head.len() + self.tail.len()) as u64;
        let mut raw = Vec::with_capacity(self.head.len() + self.tail.len() + 160);
        raw.extend_from_slice(&self.head);
        if omitted > 0 {
            let start = from + self.head.len() as u64;
            let end = start + omitted;
            let marker = format!(
                "\n[... {omitted} of {} bytes not shown; read them with GET \
                 /v1/sessions/{session}/output?from={start}&to={end} ...]\n",
                self.bytes
            );
            raw.extend_from_slice(marker.as_bytes());
        }
        raw.extend_from_slice(&self.tail);
        let (text, base64) = as_text(raw, omitted);
        OutputView { text, bytes: self.bytes, from, omitted_bytes: omitted, base64 }
    }
}

/// One stream of a turn's output, as the API shows it.
pub(crate) struct StreamExcerpt<'a> {
    pub name: &'a str,
    pub session: &'a SessionId,
    pub turn: &'a TurnId,
}

impl StreamExcerpt<'_> {
    /// The view that fits `budget`. `ends` has at least so many bytes of each end, if the stream has them. Bytes of the
    /// turn's output that are not kept count as bytes of this stream: it is not known which stream they were of.
    pub fn view(&self, ends: &StreamEnds, budget: usize) -> StreamView {
        let Self { name, session, turn } = self;
        let (missing, bytes) = (ends.missing, ends.bytes + ends.missing);
        let mut raw = ends.head.clone();
        let mut omitted = 0;
        if missing > 0 || bytes > budget as u64 {
            let part = end_bytes(budget);
            let all = [&ends.head[..], &ends.tail].concat();
            // The tail begins where the head ends, unless bytes between them are missing.
            let last = if missing > 0 { &ends.tail[..] } else { &all[..] };
            let tail = &last[last.len().saturating_sub(part)..];
            raw.truncate(part);
            omitted = bytes - (raw.len() + tail.len()) as u64;
            let what = match missing {
                0 => format!("bytes of {name} not shown"),
                _ => format!("bytes not shown: {missing} bytes of this turn's output are not kept"),
            };
            let marker = format!(
                "\n[... {omitted} of {bytes} {what}; read the turn's output with GET \
                 /v1/sessions/{session}/output?turn={turn} ...]\n",
            );
            raw.extend_from_slice(marker.as_bytes());
            raw.extend_from_slice(tail);
        }
        let (text, base64) = as_text(raw, omitted);
        StreamView { text, bytes, omitted_bytes: omitted, base64 }
    }
}

/// The bytes as text, and in base64 if they are not UTF-8.
fn as_text(raw: Vec<u8>, omitted: u64) -> (String, Option<String>) {
    match String::from_utf8(raw) {
        Ok(text) => (text, None),
        Err(error) => {
            let raw = error.as_bytes();
            // If bytes were omitted, the cut may have split a character; that is no reason for base64.
            let base64 =
                (omitted == 0).then(|| base64::engine::general_purpose::STANDARD.encode(raw));
            (String::from_utf8_lossy(raw).into_owned(), base64)
        }
    }
}

#[cfg(test)]
mod tests {
    use windlass_protocol::TurnNo;

    use super::*;

    fn ends(parts: &[&[u8]]) -> OutputEnds {
        let mut ends = OutputEnds::default();
        for part in parts {
            ends.push(part);
        }
        ends
    }

    #[test]
    fn a_short_output_is_shown_whole() {
        let excerpt = ends(&[b"one ", b"two"]).excerpt(16).unwrap();
        assert_eq!((excerpt.head.as_ref(), excerpt.tail.as_ref()), (&b"one two"[..], &b""[..]));
    }

    #[test]
    fn one_stream_is_shown_whole_or_as_head_and_tail() {
        let (session, turn) = (SessionId::parse("s").unwrap(), TurnId::from_number(TurnNo(1)));
        let excerpt = StreamExcerpt { name: "standard output", session: &session, turn: &turn };
        let ends = |text: &str, budget: usize| {
            let (head, rest) = text.as_bytes().split_at(text.len().min(budget));
            let tail = rest[rest.len().saturating_sub(budget)..].to_vec();
            StreamEnds { head: head.to_vec(), tail, bytes: text.len() as u64, missing: 0 }
        };
        for (text, budget, omitted) in [("abc", 3, 0), ("", 1, 0), (&*"x".repeat(1000), 600, 656)] {
            let view = excerpt.view(&ends(text, budget), budget);
            assert_eq!((view.bytes, view.omitted_bytes), (text.len() as u64, omitted));
            match omitted {
                0 => assert_eq!(view.text, text),
                _ => assert!(view.text.len() <= budget && view.text.contains("standard output")),
            }
        }
    }

    #[test]
    fn a_stream_says_how_many_bytes_of_the_output_are_not_kept() {
        let (session, turn) = (SessionId::parse("s").unwrap(), TurnId::from_number(TurnNo(1)));
        let excerpt = StreamExcerpt { name: "standard output", session: &session, turn: &turn };
        let ends =
            StreamEnds { head: b"head".to_vec(), tail: b"tail".to_vec(), bytes: 8, missing: 100 };
        let view = excerpt.view(&ends, 1000);
        assert_eq!((view.bytes, view.omitted_bytes), (108, 100));
        assert!(
            view.text.starts_with("head\n[... 100 of 108 bytes not shown: 100 "),
            "{}",
            view.text
        );
        assert!(view.text.ends_with(" ...]\ntail"), "{}", view.text);
        // Both ends are cut to the budget.
        let view = excerpt.view(&ends, 6);
        assert_eq!((view.bytes, view.omitted_bytes), (108, 106));
        assert!(view.text.starts_with("h\n") && view.text.ends_with("\nl"), "{}", view.text);
    }

    #[test]
    fn the_reply_fits_any_budget() {
        let long = vec![b'x'; 3 * KEPT_BYTES];
        for budget in [0, 1, 2, 7, KEPT_BYTES, 2 * KEPT_BYTES] {
            for bytes in [&long[..], &long[..10], &long[..KEPT_BYTES + 5]] {
                let excerpt = ends(&[bytes]).excerpt(budget).unwrap();
                let reply = excerpt.to_view(&"s".repeat(64), u64::MAX / 2).text.len();
                assert!(reply <= budget.max(2 * MARKER_BYTES_MAX), "{budget} {}", bytes.len());
                assert!(
                    excerpt.head.len() + excerpt.tail.len() <= budget,
                    "{budget} {}",
                    bytes.len()
                );
                assert_eq!(excerpt.bytes, bytes.len() as u64);
            }
        }
    }

    #[test]
    fn head_and_tail_are_the_start_and_the_end_of_the_output() {
        let all: Vec<u8> = (0..40_000u32).map(|i| (i % 251) as u8).collect();
        let mut pieces = OutputEnds::default();
        all.chunks(777).for_each(|chunk| pieces.push(chunk));
        let excerpt = pieces.excerpt(1000).unwrap();
        assert_eq!(excerpt.head, all[..372]);
        assert_eq!(excerpt.tail, all[all.len() - 372..]);
        assert!(pieces.excerpt(100_000).is_none(), "a larger excerpt is read from the journal");
    }

    #[test]
    fn the_last_bytes_never_join_what_is_not_adjacent() {
        assert_eq!(ends(&[b"one ", b"two"]).last(5), b"e two");
        let mut long = ends(&[&vec![b'x'; KEPT_BYTES], b"tail"]);
        assert_eq!(long.last(6), b"xxtail");
        long.push(&vec![b'y'; KEPT_BYTES]);
        assert_eq!(long.last(KEPT_BYTES), vec![b'y'; KEPT_BYTES]);
        assert_eq!(long.last(2 * KEPT_BYTES), vec![b'y'; KEPT_BYTES]);
    }

    #[test]
    fn bytes_that_are_not_text_are_also_sent_in_base64() {
        let view = ends(&[b"a\xff"]).excerpt(16).unwrap().to_view("s", 0);
        assert_eq!(view.text, "a\u{fffd}");
        assert_eq!(view.base64.as_deref(), Some("Yf8="));
    }
}
