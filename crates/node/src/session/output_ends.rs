//! A turn's output within bounds: what is kept in memory while it runs, and what a reply shows.
//! Memory does not depend on how much is printed.

use std::collections::VecDeque;

use base64::Engine as _;
use bytes::Bytes;
use windlass_protocol::api::OutputView;

/// Bytes kept of a turn's first output, and as many of its last.
pub(crate) const KEPT_BYTES: usize = 8 * 1024;

/// What the marker between head and tail takes of a budget, and the characters that the cuts go
/// through. A budget under twice this keeps half of itself for output, and only then the marker
/// goes over it.
const MARKER_BYTES_MAX: usize = 256;

/// How much of each end fits a budget that cannot hold all.
pub(crate) fn end_bytes(budget: usize) -> usize {
    (budget - MARKER_BYTES_MAX.min(budget / 2)) / 2
}

/// The head and tail of a turn's output so far.
#[derive(Debug, Clone, Default)]
pub(crate) struct OutputEnds {
    head: Vec<u8>,
    tail: VecDeque<u8>,
    pub bytes: u64,
    /// Some of it was printed before this node's time, and only the journal has it.
    elsewhere: bool,
}

impl OutputEnds {
    /// The ends of an output that is in the journal.
    pub fn elsewhere(bytes: u64) -> Self {
        Self { bytes, elsewhere: bytes > 0, ..Self::default() }
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

    /// What fits `budget`, if the ends hold enough for it.
    pub fn shown(&self, budget: usize) -> Option<OutputExcerpt> {
        if self.elsewhere {
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
        // A head shorter than KEPT_BYTES means that there is no tail: then the head has both ends.
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

/// What a reply shows of an output of `bytes` bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct OutputExcerpt {
    pub head: Bytes,
    pub tail: Bytes,
    pub bytes: u64,
}

impl OutputExcerpt {
    /// The reply's form. `from` is where the output starts in the session's.
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
        let (text, base64) = match String::from_utf8(raw) {
            Ok(text) => (text, None),
            Err(error) => {
                let raw = error.as_bytes();
                // A cut through a character is the budget's doing and no reason for base64.
                let base64 =
                    (omitted == 0).then(|| base64::engine::general_purpose::STANDARD.encode(raw));
                (String::from_utf8_lossy(raw).into_owned(), base64)
            }
        };
        OutputView { text, bytes: self.bytes, from, omitted_bytes: omitted, base64 }
    }
}

#[cfg(test)]
mod tests {
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
        let shown = ends(&[b"one ", b"two"]).shown(16).unwrap();
        assert_eq!((shown.head.as_ref(), shown.tail.as_ref()), (&b"one two"[..], &b""[..]));
    }

    #[test]
    fn any_budget_holds_whatever_the_lines_are() {
        let long = vec![b'x'; 3 * KEPT_BYTES];
        for budget in [0, 1, 2, 7, KEPT_BYTES, 2 * KEPT_BYTES] {
            for bytes in [&long[..], &long[..10], &long[..KEPT_BYTES + 5]] {
                let shown = ends(&[bytes]).shown(budget).unwrap();
                let reply = shown.to_view(&"s".repeat(64), u64::MAX / 2).text.len();
                assert!(reply <= budget.max(2 * MARKER_BYTES_MAX), "{budget} {}", bytes.len());
                assert!(shown.head.len() + shown.tail.len() <= budget, "{budget} {}", bytes.len());
                assert_eq!(shown.bytes, bytes.len() as u64);
            }
        }
    }

    #[test]
    fn head_and_tail_are_the_ends_of_what_was_printed() {
        let all: Vec<u8> = (0..40_000u32).map(|i| (i % 251) as u8).collect();
        let mut pieces = OutputEnds::default();
        all.chunks(777).for_each(|chunk| pieces.push(chunk));
        let shown = pieces.shown(1000).unwrap();
        assert_eq!(shown.head, all[..372]);
        assert_eq!(shown.tail, all[all.len() - 372..]);
        assert!(pieces.shown(100_000).is_none(), "more than is kept is read from the journal");
    }

    #[test]
    fn bytes_that_are_not_text_come_in_base64_too() {
        let view = ends(&[b"a\xff"]).shown(16).unwrap().to_view("s", 0);
        assert_eq!(view.text, "a\u{fffd}");
        assert_eq!(view.base64.as_deref(), Some("Yf8="));
    }
}
