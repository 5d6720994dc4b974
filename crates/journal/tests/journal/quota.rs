//! What a session keeps past its quota, and how the dropped bytes are counted.

use super::*;

const QUOTA: u64 = 1 << 20;

fn append_lines(log: &mut SessionLog, turn: u64, lines: std::ops::Range<u64>) {
    for number in lines {
        let line = format!("{number:0>999}\n");
        log.append(vec![output(turn, line.as_bytes())]).expect("there is room");
    }
}

fn kept(dir: &Path) -> u64 {
    let entries = std::fs::read_dir(dir).expect("the session is there");
    entries.map(|entry| entry.and_then(|entry| entry.metadata()).map_or(0, |meta| meta.len())).sum()
}

#[test]
fn past_the_quota_the_middle_is_dropped_and_counted() {
    let state = tempfile::tempdir().unwrap();
    let journal = open(state.path());
    let mut log = journal.create(NewSession { quota_bytes: QUOTA, ..new_session("s") }).unwrap();
    log.append(vec![accepted(1, "flood()")]).unwrap();
    let mut reader = log.reader();
    append_lines(&mut log, 1, 0..5000);
    let dir = state.path().join("sessions/s");
    assert!(kept(&dir) <= QUOTA, "{}", kept(&dir));
    assert!(kept(&dir) > QUOTA / 4 * 3);
    // Head, one gap, tail: every output byte is either read or counted as dropped.
    let (mut from, mut read, mut dropped, mut gaps) = (0, 0, 0, 0);
    while from < log.facts().output_bytes {
        let slice = reader.output(OutputRange { from, ..OutputRange::ALL }).unwrap();
        read += slice.bytes.len() as u64;
        dropped += slice.dropped_before;
        gaps += u64::from(slice.dropped_before > 0);
        assert_eq!(slice.from, from + slice.dropped_before);
        for line in slice.bytes.chunks(1000).take(3) {
            assert_eq!(line.len() as u64 * (slice.from / 1000), slice.from);
        }
        from = slice.next;
    }
    assert_eq!(read + dropped, 5_000_000);
    assert_eq!((dropped, gaps), (log.facts().output_dropped_bytes, 1));
    assert!(read > QUOTA / 2);
    let last = reader.tail(1000, OutputRange::ALL).unwrap();
    assert!(last.bytes.ends_with(b"4999\n"));
    let head = reader.output(OutputRange { to: 400_000, ..OutputRange::ALL }).unwrap();
    assert_eq!(head.bytes.len(), 400_000);
    let events = all_events(&mut reader);
    assert!(events.windows(2).all(|pair| pair[0].0.seq < pair[1].0.seq));
    assert_eq!(events.first().unwrap().0.seq, Seq(1));
    assert_eq!(events.last().unwrap().0.seq, Seq(5001));

    let before = log.facts().clone();
    drop(log);
    let (log, recovered) = open(state.path()).open_session(&id("s")).unwrap();
    assert_eq!(*log.facts(), before);
    assert_eq!(recovered.code, vec![(TurnNo(1), "flood()".into())]);
    let again = journal_output_len(&log);
    assert_eq!(again, read);
}

fn journal_output_len(log: &SessionLog) -> u64 {
    let (mut from, mut read) = (0, 0);
    while from < log.facts().output_bytes {
        let slice =
            log.reader().output(OutputRange { from, ..OutputRange::ALL }).expect("readable");
        read += slice.bytes.len() as u64;
        from = slice.next;
    }
    read
}

#[test]
fn the_code_of_a_waiting_turn_stays_until_it_has_run() {
    let state = tempfile::tempdir().unwrap();
    let journal = open(state.path());
    let mut log = journal.create(NewSession { quota_bytes: QUOTA, ..new_session("s") }).unwrap();
    log.append(vec![accepted(1, "flood()")]).unwrap();
    append_lines(&mut log, 1, 0..700);
    log.append(vec![accepted(2, "waits behind it")]).unwrap();
    append_lines(&mut log, 1, 700..6000);
    drop(log);
    let (mut log, recovered) = journal.open_session(&id("s")).unwrap();
    let code = vec![(TurnNo(1), "flood()".into()), (TurnNo(2), "waits behind it".into())];
    assert_eq!(recovered.code, code);
    log.append(vec![ended(1), ended(2)]).unwrap();
    journal.flush_index().unwrap();
    append_lines(&mut log, 3, 6000..9000);
    assert!(kept(&state.path().join("sessions/s")) <= QUOTA);
    let total = journal_output_len(&log) + log.facts().output_dropped_bytes;
    assert_eq!(total, log.facts().output_bytes);
    let second = journal.turn(&id("s"), &turn_id("t2")).unwrap().unwrap();
    assert_eq!(second.accepted_seq, Seq(702));
}

#[test]
fn no_segment_is_dropped_before_the_index_has_its_turns() {
    let state = tempfile::tempdir().unwrap();
    let journal = open(state.path());
    let mut log = journal.create(NewSession { quota_bytes: QUOTA, ..new_session("s") }).unwrap();
    for turn in 1..3000 {
        log.append(vec![accepted(turn, "x"), output(turn, &[b'y'; 2000]), ended(turn)]).unwrap();
    }
    drop(log);
    drop(journal);
    let journal = open(state.path());
    for turn in 1..3000 {
        let found = journal.turn(&id("s"), &turn_id(&format!("t{turn}"))).unwrap();
        assert!(found.is_some(), "turn {turn}");
    }
}
