//! Sessions opened again: after a clean end, after a cut at any byte, and after garbage.

use std::fs;
use std::path::{Path, PathBuf};

use proptest::prelude::*;
use windlass_journal::{CreateError, LoadError, OpenSessionError};
use windlass_protocol::event::{StartedBy, StopCause};

use super::*;

/// The segment files of a session, in order.
fn segments(state: &Path, name: &str) -> Vec<PathBuf> {
    let entries = fs::read_dir(state.join("sessions").join(name)).expect("the session is there");
    let mut paths: Vec<_> = entries.map(|entry| entry.expect("readable").path()).collect();
    paths.sort();
    paths
}

fn copy_state(from: &Path, name: &str) -> tempfile::TempDir {
    let copy = tempfile::tempdir().expect("a temporary directory");
    let dir = copy.path().join("sessions").join(name);
    fs::create_dir_all(&dir).expect("a fresh directory");
    for path in segments(from, name) {
        fs::copy(&path, dir.join(path.file_name().expect("a file"))).expect("copied");
    }
    copy
}

fn worker_ready() -> EventKind {
    let start = StartedBy::Zygote;
    EventKind::WorkerReady {
        worker: "python 3".into(),
        pid: 9,
        restarts: 1,
        start,
        capabilities: None,
        figures: None,
    }
}

fn sample_events() -> Vec<NewEvent> {
    vec![
        event(None, worker_ready(), b""),
        accepted(1, "print(1)"),
        output(1, b"one\n"),
        display(1, Some("fig"), false, false, b"old"),
        display(1, Some("fig"), true, true, b"ne"),
        output(1, b"between\n"),
        display(1, Some("fig"), true, false, b"w"),
        ended(1),
        accepted_part(2, "import x\n"),
        accepted(2, "x.y()"),
        output(2, b"two"),
        event(Some(2), EventKind::StdinWait { prompt: "? ".into(), secret: true }, b""),
        event(Some(2), EventKind::InterruptAsked { cause: StopCause::Client }, b""),
        event(None, EventKind::MessagesDropped { count: 3, reason: "late".into() }, b""),
        background(1, b"later"),
        accepted(3, "z"),
    ]
}

#[test]
fn a_session_opened_again_has_the_facts_and_the_code_it_had() {
    let state = tempfile::tempdir().unwrap();
    let mut log = create(&open(state.path()), "s");
    for one in sample_events() {
        log.append(vec![one]).unwrap();
    }
    let before = log.facts().clone();
    drop(log);
    let journal = open(state.path());
    let (log, recovered) = journal.open_session(&id("s")).unwrap();
    assert_eq!(*log.facts(), before);
    let code = vec![(TurnNo(2), "import x\nx.y()".into()), (TurnNo(3), "z".into())];
    assert_eq!(recovered.code, code);
    assert_eq!(recovered.cut_bytes, 0);
    let turn = &before.open_turns[0];
    assert_eq!(turn.interrupt, Some(StopCause::Client));
    assert!(turn.stdin_wait.as_ref().is_some_and(|wait| wait.secret));
    assert_eq!((turn.output_from, turn.output_to, turn.output_bytes), (12, 15, 3));
    assert_eq!((before.output_bytes, before.messages_dropped), (20, 3));
    assert_eq!(before.last_link, LinkSeq(7));
    let first = journal.turn(&id("s"), &turn_id("t1")).unwrap().unwrap();
    assert_eq!((first.output_from, first.output_to), (0, 12));
    assert_eq!(first.displays.len(), 1);
    assert_eq!((first.displays[0].seq, first.displays[0].bytes), (Seq(7), 3));
    assert_eq!(log.reader().display(Seq(7)).unwrap().unwrap().1, "new");
    assert_eq!(log.reader().display(Seq(4)).unwrap().unwrap().1, "old");
    assert_eq!(log.reader().display(Seq(5)).unwrap(), None);
    assert!(matches!(journal.open_session(&id("s")), Err(OpenSessionError::InUse(_))));
    assert!(matches!(
        journal.open_session(&id("other")),
        Err(OpenSessionError::Load(LoadError::NotFound(_)))
    ));
}

#[test]
fn a_journal_cut_or_garbled_at_any_byte_opens_to_its_last_whole_record() {
    let state = tempfile::tempdir().unwrap();
    let journal = open(state.path());
    let mut log = create(&journal, "s");
    let path = segments(state.path(), "s").remove(0);
    // Where each record ends, and the facts there.
    let mut ends = vec![(fs::metadata(&path).unwrap().len(), log.facts().clone())];
    for one in sample_events() {
        log.append(vec![one]).unwrap();
        ends.push((fs::metadata(&path).unwrap().len(), log.facts().clone()));
    }
    let events = all_events(&mut log.reader());
    let whole = fs::read(&path).unwrap();
    let copy = copy_state(state.path(), "s");
    let path = segments(copy.path(), "s").remove(0);
    let journal = open(copy.path());
    let check = |bytes: &[u8], good: usize, what: &str| {
        fs::write(&path, bytes).unwrap();
        let opened = journal.open_session(&id("s"));
        let Some((_, facts)) = ends.iter().rev().find(|(end, _)| *end <= good as u64) else {
            assert!(opened.is_err(), "{what} {good}");
            return;
        };
        let (mut log, recovered) = opened.expect("a whole record is left");
        assert_eq!(log.facts().last_seq, facts.last_seq, "{what} {good}");
        assert_eq!(log.facts().output_bytes, facts.output_bytes, "{what} {good}");
        assert_eq!(recovered.code.len(), facts.open_turns.len(), "{what} {good}");
        let last = facts.last_seq.0 as usize;
        assert_eq!(all_events(&mut log.reader()), events[..last], "{what} {good}");
        log.append(vec![accepted(9, "next")]).unwrap();
        assert_eq!(all_events(&mut log.reader()).len(), last + 1, "{what} {good}");
        drop(log);
        // The next round starts from one segment again.
        journal.flush_index().unwrap();
        for extra in segments(copy.path(), "s").into_iter().skip(1) {
            fs::remove_file(extra).unwrap();
        }
    };
    for cut in 0..=whole.len() {
        check(&whole[..cut], cut, "cut at");
    }
    for place in 0..whole.len() {
        let mut garbled = whole.clone();
        garbled[place] ^= 0x41;
        check(&garbled, place, "garbled at");
    }
    let mut longer = whole.clone();
    longer.extend_from_slice(&[0; 4096]);
    check(&longer, whole.len(), "zeros after");
}

#[test]
fn a_cut_in_a_later_segment_falls_back_to_the_segment_before() {
    let state = tempfile::tempdir().unwrap();
    let journal = open(state.path());
    let mut log = journal.create(NewSession { quota_bytes: 1 << 20, ..new_session("s") }).unwrap();
    let mut facts = vec![log.facts().clone()];
    for _ in 0..5 {
        log.append(vec![output(1, &[b'x'; 30_000])]).unwrap();
        facts.push(log.facts().clone());
    }
    let paths = segments(state.path(), "s");
    assert_eq!(paths.len(), 2);
    let head = fs::metadata(&paths[1]).unwrap().len() as usize - 2 * 30_100;
    let whole = fs::read(&paths[1]).unwrap();
    for cut in (0..head).step_by(13).chain([head - 1, whole.len() - 1]) {
        let copy = copy_state(state.path(), "s");
        fs::write(&segments(copy.path(), "s")[1], &whole[..cut]).unwrap();
        let (mut log, _) = open(copy.path()).open_session(&id("s")).unwrap();
        let last = if cut < head { 3 } else { 4 };
        assert_eq!(*log.facts(), facts[last], "cut at {cut}");
        log.append(vec![output(1, b"again")]).unwrap();
        assert_eq!(all_events(&mut log.reader()).len(), last + 1);
    }
}

#[test]
fn a_turn_whose_code_was_cut_can_be_sent_again() {
    let state = tempfile::tempdir().unwrap();
    let mut log = create(&open(state.path()), "s");
    log.append(vec![accepted_part(1, "half of ")]).unwrap();
    drop(log);
    for _ in 0..2 {
        let journal = open(state.path());
        let (log, recovered) = journal.open_session(&id("s")).unwrap();
        assert!(log.facts().open_turns.is_empty() && recovered.code.is_empty());
    }
    let (mut log, _) = open(state.path()).open_session(&id("s")).unwrap();
    log.append(vec![accepted_part(1, "all of "), accepted(1, "it")]).unwrap();
    let before = log.facts().clone();
    drop(log);
    let (log, recovered) = open(state.path()).open_session(&id("s")).unwrap();
    assert_eq!(*log.facts(), before);
    assert_eq!(recovered.code, vec![(TurnNo(1), "all of it".into())]);
}

#[test]
fn a_journal_of_a_newer_format_is_refused_and_left_alone() {
    let state = tempfile::tempdir().unwrap();
    drop(create(&open(state.path()), "s"));
    let path = segments(state.path(), "s").remove(0);
    let mut bytes = fs::read(&path).unwrap();
    let version = bytes.windows(12).position(|part| part == br#"{"journal":1"#).unwrap();
    bytes[version + 11] = b'2';
    let sum = crc32fast::hash(&bytes[8..]);
    bytes[4..8].copy_from_slice(&sum.to_be_bytes());
    fs::write(&path, &bytes).unwrap();
    let refused = open(state.path()).open_session(&id("s"));
    let newer = matches!(refused, Err(OpenSessionError::Load(LoadError::Newer { version: 2, .. })));
    assert!(newer);
    assert_eq!(fs::read(&path).unwrap(), bytes);
}

#[test]
fn an_event_of_an_unknown_kind_is_passed_over_and_not_cut_off() {
    let state = tempfile::tempdir().unwrap();
    let mut log = create(&open(state.path()), "s");
    let kind = EventKind::WorkerEnded {
        cause: "x".into(),
        limit: None,
        replaced: false,
        exit_code: None,
        stderr: String::new(),
    };
    log.append(vec![event(None, kind, b""), output(1, b"after")]).unwrap();
    drop(log);
    let path = segments(state.path(), "s").remove(0);
    let mut bytes = fs::read(&path).unwrap();
    let kind = bytes.windows(12).position(|part| part == b"worker_ended").unwrap();
    bytes[kind] = b'W';
    let first = 8 + u32::from_be_bytes(bytes[..4].try_into().unwrap()) as usize;
    let length = u32::from_be_bytes(bytes[first..first + 4].try_into().unwrap()) as usize;
    let sum = crc32fast::hash(&bytes[first + 8..first + 8 + length]);
    bytes[first + 4..first + 8].copy_from_slice(&sum.to_be_bytes());
    fs::write(&path, &bytes).unwrap();
    let (log, recovered) = open(state.path()).open_session(&id("s")).unwrap();
    assert_eq!((log.facts().last_seq, recovered.cut_bytes), (Seq(2), 0));
    let events = all_events(&mut log.reader());
    assert_eq!(events.len(), 1);
    assert_eq!(events[0].1, "after");
}

fn any_event() -> impl Strategy<Value = NewEvent> {
    let bytes = prop::collection::vec(any::<u8>(), 0..200);
    let large = (16_000usize..40_000).prop_map(|length| vec![b'L'; length]);
    prop_oneof![
        8 => bytes.clone().prop_map(|bytes| output(1, &bytes)),
        1 => large.prop_map(|bytes| output(1, &bytes)),
        2 => bytes.clone().prop_map(|bytes| background(1, &bytes)),
        2 => (bytes, any::<bool>()).prop_map(|(bytes, more)| display(1, None, false, more, &bytes)),
        1 => Just(accepted(1, "code")),
        1 => Just(ended(1)),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 40, ..ProptestConfig::default() })]

    #[test]
    fn any_split_into_batches_and_any_reopening_reads_the_same(
        events in prop::collection::vec(any_event(), 1..60),
        cuts in prop::collection::vec((1usize..8, any::<bool>()), 60),
    ) {
        let state = tempfile::tempdir().unwrap();
        let journal = open(state.path());
        let mut whole = journal.create(new_session("whole")).unwrap();
        whole.append(events.clone()).unwrap();
        let small = NewSession { quota_bytes: 1 << 20, ..new_session("split") };
        let mut split = journal.create(small).unwrap();
        let mut rest = &events[..];
        for (count, reopen) in cuts {
            let (batch, later) = rest.split_at(count.min(rest.len()));
            split.append(batch.to_vec()).unwrap();
            rest = later;
            if reopen {
                drop(split);
                split = journal.open_session(&id("split")).unwrap().0;
            }
        }
        split.append(rest.to_vec()).unwrap();
        prop_assert_eq!(all_events(&mut split.reader()), all_events(&mut whole.reader()));
        let read = |log: &SessionLog| log.reader().output(OutputRange::ALL).unwrap();
        prop_assert_eq!(read(&split), read(&whole));
        let (mut one, mut other) = (split.facts().clone(), whole.facts().clone());
        (one.created, other.created) = (new_session("x"), new_session("x"));
        prop_assert_eq!(one, other);
    }
}

/// The names of all entries in the sessions' directory.
fn among_sessions(dir: &Path) -> Vec<String> {
    let entries = fs::read_dir(dir.join("sessions")).expect("the sessions are there");
    let mut names: Vec<String> =
        entries.map(|entry| entry.expect("readable").file_name().display().to_string()).collect();
    names.sort();
    names
}

#[test]
fn a_session_is_made_whole_or_not_at_all() {
    let dir = tempfile::tempdir().unwrap();
    let journal = open(dir.path());
    let mut log = journal.create(new_session("s")).unwrap();
    assert_eq!(among_sessions(dir.path()), ["s"]);
    log.append(vec![accepted(1, "a = 1")]).unwrap();
    drop(log);

    let twice = journal.create(new_session("s"));
    assert!(matches!(twice, Err(CreateError::AlreadyExists(_))), "{twice:?}");
    assert_eq!(among_sessions(dir.path()), ["s"]);

    // An earlier node died while it created a session.
    drop(journal);
    let half = dir.path().join("sessions/.new-1-t");
    fs::create_dir(&half).unwrap();
    fs::write(half.join("half"), "").unwrap();
    let journal = open(dir.path());
    assert_eq!(among_sessions(dir.path()), ["s"]);
    let (log, _) = journal.open_session(&id("s")).unwrap();
    assert_eq!(log.facts().last_turn, TurnNo(1));
}
