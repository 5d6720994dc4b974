//! Output by range, by tail and by search.

use proptest::prelude::*;
use windlass_journal::LINE_BYTES_MAX;
use windlass_protocol::event::DropReason;

use super::*;

fn range(from: u64, to: u64) -> OutputRange {
    OutputRange { from, to, scope: OutputScope::Session }
}

#[test]
fn output_is_read_by_range_tail_and_turn() {
    let state = tempfile::tempdir().unwrap();
    let mut log = create(&open(state.path()), "s");
    log.append(vec![accepted(1, ""), output(1, b"hello "), output(1, b"world\n"), ended(1)])
        .unwrap();
    log.append(vec![accepted(2, ""), output(2, b"AB"), background(1, b"xx"), output(2, b"CD")])
        .unwrap();
    let reader = log.reader();
    let read = |from, to| reader.output(range(from, to)).unwrap();
    assert_eq!(read(0, u64::MAX).bytes, "hello world\nABxxCD");
    assert_eq!(read(3, 8).bytes, "lo wo");
    assert_eq!((read(3, 8).from, read(3, 8).next), (3, 8));
    assert_eq!(read(18, 90).bytes, "");
    assert_eq!(read(50, 20).bytes, "");
    assert_eq!(reader.tail(4, OutputRange::ALL).unwrap().bytes, "xxCD");
    let own = OutputRange { scope: OutputScope::Turn(TurnNo(2)), ..OutputRange::ALL };
    let slice = reader.output(own).unwrap();
    assert_eq!((slice.bytes.as_ref(), slice.from, slice.next), (&b"ABCD"[..], 12, 18));
    assert_eq!(reader.tail(4, own).unwrap().bytes, "CD");
    let turn = &log.facts().open_turns[0];
    assert_eq!((turn.output_from, turn.output_to, turn.output_bytes), (12, 18, 4));
}

#[test]
fn output_lost_to_a_full_disk_is_a_gap_with_its_size() {
    let state = tempfile::tempdir().unwrap();
    let mut log = create(&open(state.path()), "s");
    let lost = EventKind::OutputDropped { bytes: 10, reason: DropReason::DiskFull };
    log.append(vec![output(1, b"abc"), event(Some(1), lost.clone(), b""), output(1, b"def")])
        .unwrap();
    let reader = log.reader();
    let first = reader.output(range(0, u64::MAX)).unwrap();
    assert_eq!((first.bytes.as_ref(), first.next, first.dropped_before), (&b"abc"[..], 3, 0));
    let second = reader.output(range(first.next, u64::MAX)).unwrap();
    assert_eq!((second.bytes.as_ref(), second.from, second.dropped_before), (&b"def"[..], 13, 10));
    assert_eq!(reader.tail(100, OutputRange::ALL).unwrap().bytes, "def");
    let inside = reader.output(range(5, 9)).unwrap();
    assert_eq!((inside.bytes.len(), inside.next, inside.dropped_before), (0, 9, 4));
    log.append(vec![event(Some(1), lost, b"")]).unwrap();
    let last = reader.output(range(16, u64::MAX)).unwrap();
    assert_eq!((last.bytes.len(), last.next, last.dropped_before), (0, 26, 10));
    assert_eq!(log.facts().output_dropped_bytes, 20);
}

#[test]
fn a_long_range_comes_in_slices_of_at_most_a_mebibyte() {
    let state = tempfile::tempdir().unwrap();
    let mut log = create(&open(state.path()), "s");
    let mut all = Vec::new();
    for round in 0..30u8 {
        let piece = vec![round; 100_003];
        all.extend_from_slice(&piece);
        log.append(vec![output(1, &piece)]).unwrap();
    }
    let (reader, mut from, mut read) = (log.reader(), 0, Vec::new());
    while from < all.len() as u64 {
        let slice = reader.output(range(from, u64::MAX)).unwrap();
        assert!(slice.bytes.len() <= 1024 * 1024 && slice.from == from);
        read.extend_from_slice(&slice.bytes);
        from = slice.next;
    }
    assert!(read == all);
}

#[test]
fn a_search_finds_text_over_the_edges_of_records() {
    let state = tempfile::tempdir().unwrap();
    let mut log = create(&open(state.path()), "s");
    for piece in ["first line\nsec", "ond ne", "ed", "le line\nthird needle needle\n", "nee"] {
        log.append(vec![output(1, piece.as_bytes())]).unwrap();
    }
    let reader = log.reader();
    let found = reader.search(b"needle", OutputRange::ALL, 10).unwrap();
    let lines: Vec<_> = found.matches.iter().map(|hit| (hit.offset, hit.line.as_str())).collect();
    assert_eq!(lines, [(18, "second needle line"), (36, "third needle needle")]);
    assert!(!found.more);
    let one = reader.search(b"needle", OutputRange::ALL, 1).unwrap();
    assert_eq!((one.matches.len(), one.more), (1, true));
    assert_eq!(reader.search(b"needle", range(19, 40), 10).unwrap().matches.len(), 0);
    assert_eq!(reader.search(b"", OutputRange::ALL, 10).unwrap().matches.len(), 0);
}

#[test]
fn a_match_in_an_endless_line_shows_a_part_of_it() {
    let state = tempfile::tempdir().unwrap();
    let mut log = create(&open(state.path()), "s");
    for _ in 0..40 {
        log.append(vec![output(1, "é".repeat(50_000).as_bytes())]).unwrap();
    }
    log.append(vec![output(1, b"HERE"), output(1, "é".repeat(9_000).as_bytes())]).unwrap();
    let found = log.reader().search(b"HERE", OutputRange::ALL, 10).unwrap();
    assert_eq!(found.matches.len(), 1);
    assert_eq!(found.matches[0].offset, 4_000_000);
    let line = &found.matches[0].line;
    assert!(line.contains("HERE") && line.len() <= LINE_BYTES_MAX);
    assert!(!line.contains('\u{FFFD}'));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 40, ..ProptestConfig::default() })]

    #[test]
    fn a_search_finds_what_a_search_in_memory_finds(
        text in "[ab\n]{0,4000}", needle in "[ab]{1,6}", piece in 1usize..700,
    ) {
        let state = tempfile::tempdir().unwrap();
        let mut log = create(&open(state.path()), "s");
        for part in text.as_bytes().chunks(piece) {
            log.append(vec![output(1, part)]).unwrap();
        }
        let found = log.reader().search(needle.as_bytes(), OutputRange::ALL, 100_000).unwrap();
        let (mut expected, mut offset) = (Vec::new(), 0);
        for line in text.split('\n') {
            if line.len() <= LINE_BYTES_MAX && let Some(at) = line.find(&needle) {
                expected.push(((offset + at) as u64, line.to_owned()));
            }
            offset += line.len() + 1;
        }
        let found: Vec<_> = found.matches.into_iter()
            .filter(|hit| hit.line.len() < LINE_BYTES_MAX)
            .map(|hit| (hit.offset, hit.line)).collect();
        if text.split('\n').all(|line| line.len() < LINE_BYTES_MAX) {
            prop_assert_eq!(found, expected);
        }
    }
}
