//! Readers that follow a log while it is written.

use std::thread;

use super::*;

#[test]
fn a_reader_on_another_thread_sees_every_event_once_and_in_order() {
    const EVENTS: u64 = 20_000;
    let state = tempfile::tempdir().unwrap();
    let journal = open(state.path());
    let mut log = create(&journal, "s");
    let mut reader = log.reader();
    let follower = thread::spawn(move || {
        let mut after = Seq(0);
        let mut offset = 0;
        while after < Seq(EVENTS) {
            let Some(event) = reader.events(after, 100, 1 << 16).unwrap().unless_empty(after)
            else {
                thread::yield_now();
                continue;
            };
            for (event, body) in event {
                assert_eq!(event.seq, after.next());
                assert_eq!(body, format!("line {}\n", event.seq));
                after = event.seq;
                offset += body.len() as u64;
            }
            let seen =
                reader.output(OutputRange { from: 0, to: offset, scope: OutputScope::Session });
            assert_eq!(seen.unwrap().dropped_before, 0);
        }
        reader.output_end() == offset
    });
    for number in 1..=EVENTS {
        log.append(vec![output(1, format!("line {number}\n").as_bytes())]).unwrap();
    }
    assert!(follower.join().unwrap());
}

/// A quota that gives segments of 64 KiB and keeps all events of the test.
const SMALL_SEGMENTS: u64 = 1024 * 1024;

#[test]
fn a_reader_close_behind_misses_nothing_where_a_segment_ends() {
    const EVENTS: u64 = 8_000;
    const SESSIONS: u64 = 20;
    let state = tempfile::tempdir().unwrap();
    let journal = open(state.path());
    for session in 0..SESSIONS {
        let name = format!("s{session}");
        let new = NewSession { quota_bytes: SMALL_SEGMENTS, ..new_session(&name) };
        let mut log = journal.create(new).unwrap();
        let mut reader = log.reader();
        let follower = thread::spawn(move || {
            let mut after = Seq(0);
            while after < Seq(EVENTS) {
                for (event, _) in reader.events(after, 1000, 1 << 20).unwrap() {
                    assert_eq!(event.seq, after.next(), "in session {session}");
                    after = event.seq;
                }
            }
        });
        for number in 1..=EVENTS {
            log.append(vec![output(1, format!("line {number}\n").as_bytes())]).unwrap();
        }
        follower.join().unwrap();
    }
    let segments = std::fs::read_dir(state.path().join("sessions/s0")).unwrap().count();
    assert!(segments > 5, "only {segments} segments: nothing was tested");
}

trait Portion {
    fn unless_empty(self, after: Seq) -> Option<Vec<(Event, Bytes)>>;
}

impl Portion for Vec<(Event, Bytes)> {
    /// The portion, unless it is empty. Checks that its first event is the next one.
    fn unless_empty(self, after: Seq) -> Option<Vec<(Event, Bytes)>> {
        let (first, _) = self.first()?;
        assert_eq!(first.seq, after.next());
        Some(self)
    }
}

#[test]
fn events_are_bounded_by_count_and_by_bytes_but_never_stall() {
    let state = tempfile::tempdir().unwrap();
    let mut log = create(&open(state.path()), "s");
    log.append((0..10).map(|_| output(1, &[b'x'; 1000])).collect()).unwrap();
    let mut reader = log.reader();
    let mut count = |after, events, bytes| reader.events(Seq(after), events, bytes).unwrap().len();
    assert_eq!(count(0, 3, 1 << 20), 3);
    assert_eq!(count(3, 100, 2500), 2);
    assert_eq!(count(5, 100, 10), 1);
    assert_eq!(count(2, 100, 1 << 20), 8);
    assert_eq!(count(10, 100, 1 << 20), 0);
    assert_eq!(count(99, 100, 1 << 20), 0);
}

#[test]
fn a_session_that_has_ended_takes_no_more_events() {
    let state = tempfile::tempdir().unwrap();
    let journal = open(state.path());
    let mut log = create(&journal, "s");
    log.append(vec![output(1, b"bye"), session_ended()]).unwrap();
    assert!(log.append(vec![output(1, b"late")]).is_err());
    drop(log);
    journal.flush_index().unwrap();
    let mut reader = journal.reader(&id("s")).unwrap();
    assert_eq!(all_events(&mut reader).len(), 2);
    assert_eq!(reader.tail(3, OutputRange::ALL).unwrap().bytes, "bye");
}
