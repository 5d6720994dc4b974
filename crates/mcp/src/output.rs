//! The part of a turn's output that a reply shows: all of it or what is new, within a budget. Offsets count from
//! the start of the turn's output. Remembers how far the replies to a client went.

use std::collections::VecDeque;
use std::sync::{Mutex, PoisonError};

use bytes::Bytes;
use serde_json::json;
use windlass_client::{Client, ClientError, OutputBytes};
use windlass_protocol::api::{OutputQuery, Turn, TurnState};
use windlass_protocol::{SessionId, TurnId};

/// Bytes of a budget that are reserved for the marker between head and tail.
const MARKER_BYTES_MAX: u64 = 256;

/// Number of turns whose offset is remembered.
const SEEN_TURNS_MAX: usize = 256;

/// Stands for the end of a turn's output, whatever its offset is.
pub(crate) const ALL_SEEN: u64 = u64::MAX;

/// Where the output in a reply begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum OutputStart {
    Begin,
    /// The byte that the client names.
    At(u64),
    /// Where the last reply to this client ended. If that is not known, the beginning.
    Unseen,
}

/// The output in a reply. Offsets count from the start of the turn's output, as those of `read_output` do.
/// Background output of other turns counts too, and is not shown.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct OutputPart {
    /// The text, or head, marker and tail. Bytes that are not UTF-8 are shown as U+FFFD.
    pub text: String,
    pub from: u64,
    /// Where the next reply begins.
    pub next: u64,
    /// Bytes between head and tail that are not shown.
    pub omitted: u64,
}

impl OutputPart {
    /// Reads what the turn has printed, from `from` on. An offset beyond the end stands for the beginning, so that a
    /// wrong one hides nothing.
    pub async fn read(
        client: &Client,
        turn: &Turn,
        from: u64,
        budget: usize,
    ) -> Result<Self, ClientError> {
        if let Some(part) = Self::of_view(turn, from) {
            return Ok(part);
        }
        let budget = budget as u64;
        let mut all = range(client, turn, (from, from.saturating_add(budget)), None).await?;
        let from = match from {
            ALL_SEEN => all.total,
            from if from > all.total => {
                all = range(client, turn, (0, budget), None).await?;
                0
            }
            from => from,
        };
        if all.next >= all.total && all.from == from {
            return Ok(Self::of_ends(turn, from, &all, None));
        }
        // The output is longer than the budget, or the quota of kept output made a gap.
        let end = (budget - MARKER_BYTES_MAX.min(budget / 2)) / 2;
        let mut head = range(client, turn, (from, from + end), None).await?;
        if head.from > from {
            head = OutputBytes { bytes: Bytes::new(), from, next: from, ..head };
        }
        let tail = range(client, turn, (head.next, all.total), Some(end)).await?;
        Ok(Self::of_ends(turn, from, &head, Some(&tail)))
    }

    /// The whole output of a turn that has ended, if `turn` holds it.
    fn of_view(turn: &Turn, from: u64) -> Option<Self> {
        let view = &turn.output;
        let is_all = view.base64.is_none() && view.text.len() as u64 == view.bytes;
        (turn.state == TurnState::Ended && from == 0 && is_all).then(|| Self {
            text: view.text.clone(),
            from,
            next: view.bytes,
            omitted: 0,
        })
    }

    /// Joins the start of a turn's output from `from` on, and its end. Without an end, the start is all.
    fn of_ends(turn: &Turn, from: u64, head: &OutputBytes, tail: Option<&OutputBytes>) -> Self {
        let shown = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let last = tail.unwrap_or(head);
        // The rest of a character may still be on its way.
        let held = if turn.state == TurnState::Ended { 0 } else { cut_at_end(last) };
        let next = last.next - held as u64;
        let Some(tail) = tail else {
            let text = shown(&head.bytes[..head.bytes.len() - held]);
            return Self { text, from, next, omitted: 0 };
        };
        let cut = cut_at_end(head);
        let omitted_from = head.next - cut as u64;
        let rest = rest_of_character(&tail.bytes).min(tail.bytes.len() - held);
        let omitted = (tail.from + rest as u64).saturating_sub(omitted_from);
        let call = json!({"session": turn.session, "turn": turn.id, "from": omitted_from});
        let text = format!(
            "{}\n[... {omitted} of {} bytes not shown; read_output has them: {call} ...]\n{}",
            shown(&head.bytes[..head.bytes.len() - cut]),
            last.next - from,
            shown(&tail.bytes[rest..tail.bytes.len() - held])
        );
        Self { text, from, next, omitted }
    }
}

/// A range of a turn's output up to its first gap, or the last bytes of it after its last gap.
async fn range(
    client: &Client,
    turn: &Turn,
    (from, to): (u64, u64),
    tail: Option<u64>,
) -> Result<OutputBytes, ClientError> {
    let id = Some(turn.id.to_string());
    let query = OutputQuery { turn: id, from: Some(from), to: Some(to), tail };
    client.output(&turn.session, &query).await
}

/// As [`cut_character`]. 0 if the range has bytes that are not shown: then the bytes do not tell offsets.
fn cut_at_end(part: &OutputBytes) -> usize {
    let is_whole = part.next - part.from == part.bytes.len() as u64;
    if is_whole { cut_character(&part.bytes) } else { 0 }
}

/// Number of bytes at the end that begin a UTF-8 character and do not complete it.
pub(crate) fn cut_character(bytes: &[u8]) -> usize {
    for (count, byte) in (1..4).zip(bytes.iter().rev()) {
        let width = match byte {
            0x80..=0xBF => continue,
            0xC2..=0xDF => 2,
            0xE0..=0xEF => 3,
            0xF0..=0xF4 => 4,
            _ => 1,
        };
        return if count < width { count } else { 0 };
    }
    0
}

/// Number of bytes at the start that belong to a UTF-8 character before them.
fn rest_of_character(bytes: &[u8]) -> usize {
    bytes.iter().take(3).take_while(|byte| matches!(byte, 0x80..=0xBF)).count()
}

/// How far the replies to one client went. Best effort: a turn that is forgotten is shown from its beginning.
#[derive(Debug, Default)]
pub(crate) struct SeenOutput {
    turns: Mutex<VecDeque<(SessionId, TurnId, u64)>>,
}

impl SeenOutput {
    pub fn next(&self, session: &SessionId, turn: &TurnId) -> u64 {
        let turns = self.turns.lock().unwrap_or_else(PoisonError::into_inner);
        let found = turns.iter().find(|(of, id, _)| of == session && id == turn);
        found.map_or(0, |(_, _, next)| *next)
    }

    pub fn record(&self, session: &SessionId, turn: &TurnId, next: u64) {
        let mut turns = self.turns.lock().unwrap_or_else(PoisonError::into_inner);
        let known = turns.iter().position(|(of, id, _)| of == session && id == turn);
        let before = known.and_then(|index| turns.remove(index)).map_or(0, |(_, _, next)| next);
        if turns.len() >= SEEN_TURNS_MAX {
            turns.pop_front();
        }
        turns.push_back((session.clone(), turn.clone(), next.max(before)));
    }
}

#[cfg(test)]
mod tests {
    use serde_json::Value;
    use windlass_protocol::TurnNo;

    use super::*;

    fn turn(state: &str, output: Value) -> Turn {
        let turn =
            json!({"id": "t1", "session": "s", "number": 1, "state": state, "output": output});
        serde_json::from_value(turn).unwrap()
    }

    fn long(state: &str) -> Turn {
        turn(state, json!({"text": "", "bytes": 20, "from": 100, "omitted_bytes": 20}))
    }

    fn bytes(from: u64, bytes: &[u8]) -> OutputBytes {
        let next = from + bytes.len() as u64;
        OutputBytes { bytes: Bytes::copy_from_slice(bytes), from, next, total: next, dropped: 0 }
    }

    #[test]
    fn a_turn_that_has_ended_needs_no_further_read() {
        let view = json!({"text": "one\ntwo\n", "bytes": 8, "from": 100});
        let part = OutputPart { text: "one\ntwo\n".to_owned(), from: 0, next: 8, omitted: 0 };
        assert_eq!(OutputPart::of_view(&turn("ended", view.clone()), 0), Some(part));
        assert_eq!(OutputPart::of_view(&turn("ended", view.clone()), 4), None);
        assert_eq!(OutputPart::of_view(&turn("running", view), 0), None);
        assert_eq!(OutputPart::of_view(&long("ended"), 0), None);
    }

    #[test]
    fn what_is_left_out_is_read_with_a_tool() {
        let (head, tail) = (bytes(3, b"head"), bytes(16, b"tail"));
        let part = OutputPart::of_ends(&long("ended"), 3, &head, Some(&tail));
        let said = "head\n[... 9 of 17 bytes not shown; read_output has them: \
                    {\"session\":\"s\",\"turn\":\"t1\",\"from\":7} ...]\ntail";
        assert_eq!((part.text.as_str(), part.from, part.next, part.omitted), (said, 3, 20, 9));
    }

    #[test]
    fn a_character_that_a_cut_splits_is_shown_once_and_whole() {
        let text = "aé→𝄞".as_bytes();
        for cut in 0..=text.len() {
            let (first, rest) = text.split_at(cut);
            let held = cut_character(first);
            let (first, rest) = (&first[..cut - held], [&first[cut - held..], rest].concat());
            assert!(str::from_utf8(first).is_ok() && str::from_utf8(&rest).is_ok(), "{cut}");
        }
        assert_eq!((cut_character(b"\xff"), cut_character(b"\x80\x80\x80\x80")), (0, 0));

        let all = |state: &str, shown: &[u8]| {
            let part = OutputPart::of_ends(&long(state), 0, &bytes(0, shown), None);
            (part.text, part.next)
        };
        assert_eq!(all("running", "aé".as_bytes()), ("aé".to_owned(), 3));
        assert_eq!(all("running", b"a\xc3"), ("a".to_owned(), 1));
        assert_eq!(all("ended", b"a\xc3"), ("a\u{fffd}".to_owned(), 2));

        let (head, tail) = (bytes(0, b"a\xc3"), bytes(18, b"\xa9b"));
        let split = OutputPart::of_ends(&long("ended"), 0, &head, Some(&tail));
        assert!(split.text.starts_with("a\n[... 18 of 20 ") && split.text.ends_with("]\nb"));
        assert!(split.text.contains("\"from\":1}"), "{}", split.text);
    }

    #[test]
    fn the_memory_of_a_client_is_bounded_and_never_goes_back() {
        let session = SessionId::parse("s").unwrap();
        let turn = |number: usize| TurnId::from_number(TurnNo(number as u64));
        let seen = SeenOutput::default();
        seen.record(&session, &turn(1), 9);
        seen.record(&session, &turn(1), 7);
        assert_eq!((seen.next(&session, &turn(1)), seen.next(&session, &turn(2))), (9, 0));
        (2..SEEN_TURNS_MAX + 2).for_each(|number| seen.record(&session, &turn(number), 1));
        assert_eq!(seen.turns.lock().unwrap().len(), SEEN_TURNS_MAX);
        assert_eq!(seen.next(&session, &turn(1)), 0);
    }
}
