//! Tests of what is left out of a turn's output.

use proptest::prelude::*;
use windlass_protocol::TurnId;
use windlass_protocol::event::{Outcome, Stream, Usage};

use super::*;
use crate::event_stream::{StreamFrame, frames};

/// One event of a session, in short.
#[derive(Debug, Clone)]
enum TrimStep {
    Output(usize),
    Background(usize),
    Display(usize),
    /// An event that the copy has at once.
    Prompt,
    /// An event that can be withheld with output.
    Warning,
    EndTurn,
}

const OUTPUT: EventKind = EventKind::Output { stream: Stream::Stdout, background: false };
const BACKGROUND: EventKind = EventKind::Output { stream: Stream::Stderr, background: true };

/// The events of steps, numbered from 1. A new turn begins after each end.
fn events(steps: &[TrimStep]) -> Vec<(Event, Bytes)> {
    let mut turn = 1;
    let mut made = Vec::new();
    for (at, step) in steps.iter().enumerate() {
        let (kind, length) = match step {
            TrimStep::Output(length) => (OUTPUT, *length),
            TrimStep::Background(length) => (BACKGROUND, *length),
            TrimStep::Display(length) => {
                let mime = "image/png".to_owned();
                (EventKind::Display { mime, id: None, update: false, more: false }, *length)
            }
            TrimStep::Prompt => {
                let id = TurnId::from_number(TurnNo(turn + 1));
                let kind =
                    EventKind::TurnAccepted { id, deadline_ms: None, more: false, context: None };
                (kind, 3)
            }
            TrimStep::Warning => {
                (EventKind::MessagesDropped { count: 1, reason: "late".to_owned() }, 0)
            }
            TrimStep::EndTurn => (ended(), 0),
        };
        let seq = Seq(at as u64 + 1);
        let body = vec![b'a' + (at % 26) as u8; length];
        let event = Event { seq, at_ms: 5, turn: Some(TurnNo(turn)), link: None, kind };
        made.push((event, body.into()));
        if matches!(step, TrimStep::EndTurn) {
            turn += 1;
        }
    }
    made
}

fn ended() -> EventKind {
    EventKind::TurnEnded {
        outcome: Outcome::Ok,
        error: None,
        usage: Usage::default(),
        receipt: None,
        refusal: None,
        exit_code: None,
        value: None,
    }
}

/// The events of the copy.
fn copy_of(events: &[(Event, Bytes)]) -> Vec<EventItem> {
    let (mut trim, mut copied) = (OutputTrim::default(), VecDeque::new());
    for (event, body) in events {
        trim.push(event.clone(), body, &mut copied);
    }
    copied.into_iter().map(|copy| read(&copy)).collect()
}

fn read(copy: &CopyItem) -> EventItem {
    let found = frames(&Bytes::copy_from_slice(&copy.text)).unwrap();
    let [StreamFrame::Event { seq, data, .. }] = &found[..] else { panic!("{found:?}") };
    assert_eq!(*seq, copy.seq);
    serde_json::from_slice(data).unwrap()
}

/// The copy in short: `3:+100` is event 3 with 100 bytes, `4:-50` tells of 50 bytes that are left out.
fn check(steps: &[TrimStep], expected: &str) {
    let copied = copy_of(&events(steps));
    let in_short = copied.iter().map(|item| match &item.event.kind {
        EventKind::OutputDropped { bytes, .. } => format!("{}:-{bytes}", item.event.seq),
        EventKind::Output { .. } | EventKind::Display { .. } => {
            let shown = item.text.as_ref().map_or(0, String::len);
            format!("{}:+{shown}", item.event.seq)
        }
        _ => item.event.seq.to_string(),
    });
    assert_eq!(in_short.collect::<Vec<_>>().join(" "), expected, "{steps:?}");
}

#[test]
fn small_output_is_copied_at_once_and_whole() {
    use TrimStep::{EndTurn, Output, Prompt};
    check(&[Prompt, Output(10), Output(70_000)], "1 2:+10 3:+70000");
    check(&[Output(10), EndTurn, Output(20), EndTurn], "1:+10 2 3:+20 4");
}

#[test]
fn of_bulk_output_the_beginning_and_the_end_are_copied() {
    use TrimStep::{EndTurn, Output};
    let (half, full) = (TAIL_BYTES / 2 - 1000, HEAD_BYTES);
    check(&[Output(full), Output(9), EndTurn], "1:+65536 2:+9 3");
    check(&[Output(full), Output(half), Output(half)], "1:+65536");
    let steps = [Output(full), Output(9), Output(half), Output(half), Output(2000), EndTurn];
    let copied = format!("1:+65536 3:-{} 4:+{half} 5:+2000 6", 9 + half);
    check(&steps, &copied);
    // The next turn has its own beginning.
    check(&[Output(full), Output(9), EndTurn, Output(5)], "1:+65536 2:+9 3 4:+5");
}

#[test]
fn output_before_another_event_is_left_out_and_its_bytes_are_told() {
    use TrimStep::{Display, EndTurn, Output, Prompt, Warning};
    let full = HEAD_BYTES;
    check(&[Output(full), Output(9), Prompt, Output(8), EndTurn], "1:+65536 2:-9 3 4:+8 5");
    check(&[Output(full), Output(9), Display(4), EndTurn], "1:+65536 2:-9 3:+4 4");
    // What announces the end of the turn takes no output with it.
    check(&[Output(full), Output(9), Warning, EndTurn], "1:+65536 2:+9 3 4");
    check(&[Output(full), Output(9), Warning, Prompt], "1:+65536 2:-9 3 4");
    check(&[Warning, Output(1)], "1 2:+1");
}

#[test]
fn background_output_between_turns_takes_nothing_of_the_next_turn() {
    use TrimStep::{Background, EndTurn, Output, Prompt};
    let full = HEAD_BYTES;
    let steps = [EndTurn, Background(full), Background(9), Output(full), Output(7), EndTurn];
    check(&steps, "1 2:+65536 3:-9 4:+65536 5:+7 6");
    let steps = [EndTurn, Background(full), Background(9), Prompt, Output(5), EndTurn];
    check(&steps, "1 2:+65536 3:-9 4 5:+5 6");
    // While a turn writes, background output counts for it.
    check(&[Output(1), Background(full), Background(9), Output(7)], "1:+1 2:+65536");
}

#[test]
fn an_event_that_is_longer_than_the_end_is_cut_or_left_out() {
    use TrimStep::{EndTurn, Output};
    let (full, long) = (HEAD_BYTES, TAIL_BYTES + 7);
    check(&[Output(full), Output(long), EndTurn], &format!("1:+65536 2:-{long} 3"));
    let steps = [Output(full), Output(1), Output(long), EndTurn];
    check(&steps, &format!("1:+65536 2:-8 3:+{TAIL_BYTES} 4"));
}

#[test]
fn output_that_the_journal_has_dropped_is_told_with_its_bytes() {
    let events = events(&[TrimStep::Output(10), TrimStep::EndTurn, TrimStep::Output(5)]);
    let mut read = ReadOutput::behind(Seq(0));
    for (event, body) in &events[..2] {
        read.add(&event.kind, body.len() as u64);
    }
    let next = Event { seq: Seq(40), ..events[2].0.clone() };
    let told = read.dropped_before(&next, Some(110)).unwrap();
    let expected = EventKind::OutputDropped { bytes: 100, reason: DropReason::NotCopied };
    assert_eq!((told.seq, told.turn, told.kind), (Seq(39), None, expected));
    read.add(&next.kind, 5);
    // An event of a later release is missing, and no output.
    assert_eq!(read.dropped_before(&next, None), None);
    assert_eq!(read.dropped_before(&next, Some(115)), None);
    // Where the output was at the beginning is not known.
    let mut read = ReadOutput::behind(Seq(7));
    assert_eq!(read.dropped_before(&next, Some(110)), None);
    assert!(read.dropped_before(&next, Some(111)).is_some());
}

#[test]
fn a_cut_text_begins_with_a_whole_character() {
    let text = "é".repeat(TAIL_BYTES);
    let cut = end_of(text.as_bytes(), TAIL_BYTES - 1);
    assert!(text.is_char_boundary(cut));
    assert_eq!(end_of(b"\xff\xff\xff\xff", 3), 1, "this is no text");
}

#[test]
fn displays_over_the_limit_are_copied_without_their_bodies() {
    use TrimStep::{Display, EndTurn};
    let long = 200 * 1024;
    let mut steps = vec![Display(long); 6];
    steps.extend([EndTurn, Display(long)]);
    let shown: Vec<_> = (1..=5).map(|seq| format!("{seq}:+{long}")).collect();
    check(&steps, &format!("{} 6:+0 7 8:+{long}", shown.join(" ")));
    let last = &copy_of(&events(&steps))[5];
    assert_eq!((last.bytes, &last.text), (long as u64, &None));
}

#[test]
fn an_event_that_the_store_does_not_take_is_copied_without_its_body() {
    let (mut trim, mut copied) = (OutputTrim::default(), VecDeque::new());
    let (event, _) = events(&[TrimStep::Output(0)]).remove(0);
    // Each zero byte has six characters in JSON.
    let body = Bytes::from(vec![0u8; 100 * 1024]);
    trim.push(event, &body, &mut copied);
    let item = read(&copied[0]);
    assert!(copied[0].text.len() < 1000);
    assert_eq!((item.bytes, item.text), (100 * 1024, None));
}

fn step() -> impl Strategy<Value = TrimStep> {
    prop_oneof![
        6 => (0..40_000usize).prop_map(TrimStep::Output),
        2 => (0..300usize).prop_map(TrimStep::Output),
        1 => (60_000..200_000usize).prop_map(TrimStep::Output),
        1 => (0..40_000usize).prop_map(TrimStep::Background),
        1 => (0..5000usize).prop_map(TrimStep::Display),
        1 => Just(TrimStep::Prompt),
        1 => Just(TrimStep::Warning),
        2 => Just(TrimStep::EndTurn),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 96, ..ProptestConfig::default() })]

    #[test]
    fn the_copy_has_all_but_bulk_output_in_order(
        mut steps in proptest::collection::vec(step(), 0..40)
    ) {
        steps.push(TrimStep::EndTurn);
        let events = events(&steps);
        let copied = copy_of(&events);
        let numbers: Vec<_> = copied.iter().map(|item| item.event.seq).collect();
        prop_assert!(numbers.is_sorted_by(|a, b| a < b), "{numbers:?}");
        let is_output = |kind: &EventKind| {
            matches!(kind, EventKind::Output { .. } | EventKind::OutputDropped { .. })
        };
        let others = events.iter().map(|(event, _)| event).filter(|event| !is_output(&event.kind));
        let others_copied = copied.iter().map(|item| &item.event);
        let others_copied = others_copied.filter(|event| !is_output(&event.kind));
        prop_assert!(others.eq(others_copied));
        let longest = events.iter().map(|(_, body)| body.len()).max().unwrap_or_default();
        let mut of_turn = 0;
        for item in &copied {
            match item.event.kind {
                EventKind::Output { .. } => of_turn += item.bytes as usize,
                EventKind::TurnEnded { .. } => of_turn = 0,
                _ => {}
            }
            // Background output before the turn's own has a beginning, too.
            prop_assert!(of_turn <= 2 * (HEAD_BYTES + longest) + TAIL_BYTES, "{of_turn}");
        }
        let printed = events.iter().filter(|(event, _)| is_output(&event.kind));
        let printed: u64 = printed.map(|(_, body)| body.len() as u64).sum();
        let told = copied.iter().map(|item| match item.event.kind {
            EventKind::Output { .. } => item.bytes,
            EventKind::OutputDropped { bytes, .. } => bytes,
            _ => 0,
        });
        prop_assert_eq!(told.sum::<u64>(), printed);
    }
}
