//! The index: it is written behind the segments, never blocks them, and is rebuilt when it is lost.

use std::fs;

use windlass_journal::{CreateError, RemoveError, RetentionOptions, sessions_to_remove};

use super::*;

#[test]
fn a_turn_is_found_right_after_its_end_was_appended() {
    let state = tempfile::tempdir().unwrap();
    // The index writer waits so long that no answer can come from the index.
    let options = JournalOptions { index_gather: Duration::from_secs(3600) };
    let journal = Journal::open(state.path(), options).unwrap();
    let mut log = create(&journal, "s");
    let find = |turn: &str| journal.turn(&id("s"), &turn_id(turn)).unwrap();
    for turn in 1..100 {
        let batch = vec![accepted(turn, "1"), output(turn, b"1\n"), ended(turn)];
        let appended = log.append(batch).unwrap();
        let found = find(&format!("t{turn}")).unwrap();
        assert_eq!(found, *appended.turns[0]);
        assert_eq!(found.ended_seq, appended.last);
    }
    assert_eq!(find("t100"), None);
    journal.flush_index().unwrap();
    assert_eq!(find("t50").unwrap().number, TurnNo(50));
}

#[test]
fn far_more_turns_than_the_index_can_follow_are_all_found() {
    let state = tempfile::tempdir().unwrap();
    let options = JournalOptions { index_gather: Duration::from_secs(3600) };
    let journal = Journal::open(state.path(), options).unwrap();
    let mut log = create(&journal, "s");
    for turn in 1..10_000 {
        log.append(vec![accepted(turn, ""), ended(turn)]).unwrap();
    }
    let find = |turn: u64| journal.turn(&id("s"), &turn_id(&format!("t{turn}"))).unwrap();
    assert!(find(1).is_some() && find(5000).is_some() && find(9999).is_some());
    journal.flush_index().unwrap();
    for turn in 1..10_000 {
        assert_eq!(find(turn).unwrap().number, TurnNo(turn));
    }
}

#[test]
fn sessions_are_listed_newest_first_and_live_ones_apart() {
    let state = tempfile::tempdir().unwrap();
    let journal = open(state.path());
    let make = |name: &str, created_at_ms| {
        journal.create(NewSession { created_at_ms, ..new_session(name) }).unwrap()
    };
    let (mut a, b, c) = (make("a", 10), make("b", 30), make("c", 20));
    a.append(vec![output(1, b"x"), session_ended()]).unwrap();
    let check = |journal: &Journal| {
        let names = |limit| -> Vec<String> {
            let facts = journal.sessions(limit).unwrap();
            facts.iter().map(|facts| facts.created.id.to_string()).collect()
        };
        assert_eq!(names(10), ["b", "c", "a"]);
        assert_eq!(names(2), ["b", "c"]);
        assert_eq!(journal.live_sessions().unwrap(), [id("b"), id("c")]);
        let a = journal.session(&id("a")).unwrap().unwrap();
        assert_eq!((a.ended.unwrap().reason, a.output_bytes), (EndReason::Closed, 1));
        assert_eq!(a.created.spec["env"]["A"], "1");
        assert_eq!(journal.session(&id("nobody")).unwrap(), None);
    };
    check(&journal);
    journal.flush_index().unwrap();
    check(&journal);
    assert!(matches!(journal.create(new_session("a")), Err(CreateError::AlreadyExists(_))));
    drop((a, b, c, journal));
    check(&open(state.path()));
}

#[test]
fn a_lost_or_damaged_index_is_rebuilt_from_the_segments() {
    let state = tempfile::tempdir().unwrap();
    let journal = open(state.path());
    let mut live = create(&journal, "live");
    let mut done = create(&journal, "done");
    live.append(vec![accepted(1, "a"), ended(1), accepted(2, "b")]).unwrap();
    done.append(vec![accepted(1, "a"), ended(1), session_ended()]).unwrap();
    drop((live, done, journal));
    let path = state.path().join("index.db");
    let good = fs::read(&path).unwrap();
    let mut half = good.clone();
    half[100..].fill(0xAA);
    let old_schema = {
        let mut bytes = good.clone();
        bytes[60..64].copy_from_slice(&77u32.to_be_bytes());
        bytes
    };
    for damage in [None, Some(vec![]), Some(b"junk".repeat(2000)), Some(half), Some(old_schema)] {
        match &damage {
            None => fs::remove_file(&path).unwrap(),
            Some(bytes) => fs::write(&path, bytes).unwrap(),
        }
        let journal = open(state.path());
        assert_eq!(journal.live_sessions().unwrap(), [id("live")]);
        for name in ["live", "done"] {
            let turn = journal.turn(&id(name), &turn_id("t1")).unwrap().unwrap();
            assert_eq!(turn.usage.wall_ms, 1.5);
        }
        assert_eq!(journal.turn(&id("live"), &turn_id("t2")).unwrap(), None);
    }
}

#[test]
fn an_index_that_stayed_behind_catches_up() {
    let state = tempfile::tempdir().unwrap();
    let options = JournalOptions { index_gather: Duration::from_secs(3600) };
    let journal = Journal::open(state.path(), options).unwrap();
    let mut log = create(&journal, "s");
    log.append(vec![accepted(1, "a"), ended(1)]).unwrap();
    // As if the node were killed here: the first journal never writes its index.
    let again = open(state.path());
    assert!(again.turn(&id("s"), &turn_id("t1")).unwrap().is_some());
    assert_eq!(again.live_sessions().unwrap(), [id("s")]);
}

#[test]
fn retention_removes_ended_sessions_and_the_oldest_first() {
    let state = tempfile::tempdir().unwrap();
    let journal = open(state.path());
    let mut logs = Vec::new();
    for (name, at_ms) in [("a", 1_000), ("b", 2_000), ("c", 3_000), ("d", 4_000)] {
        let mut log = create(&journal, name);
        log.append(vec![output(1, &[0; 10_000])]).unwrap();
        if name != "b" {
            log.append(vec![NewEvent { at_ms, ..session_ended() }]).unwrap();
        }
        logs.push(log);
    }
    assert!(matches!(journal.remove(&id("a")), Err(RemoveError::InUse(_))));
    drop(logs);
    let day = Duration::from_secs(86_400);
    let prune = |max_age, max_total_bytes| -> Vec<String> {
        let options = RetentionOptions { max_age, max_total_bytes };
        let (ended, live) = journal.ended().unwrap();
        let due = sessions_to_remove(&ended, &live, |_| None, options, 5_000);
        assert!(due.iter().all(|id| journal.remove(id).unwrap() >= 10_000));
        due.iter().map(SessionId::to_string).collect()
    };
    assert!(prune(day, 1 << 30).is_empty());
    assert_eq!(prune(Duration::from_millis(3_500), 1 << 30), ["a"]);
    assert_eq!(prune(day, 25_000), ["c"]);
    assert_eq!(journal.sessions(9).unwrap().len(), 2);
    assert_eq!(prune(day, 0), ["d"]);
    assert_eq!(journal.live_sessions().unwrap(), [id("b")]);
    assert_eq!(fs::read_dir(state.path().join("sessions")).unwrap().count(), 1);
    assert!(journal.reader(&id("a")).is_err());
    journal.remove(&id("b")).unwrap();
    journal.remove(&id("b")).unwrap();
    drop(create(&journal, "b"));
}

#[test]
fn epochs_increase_even_if_the_index_is_lost() {
    let state = tempfile::tempdir().unwrap();
    let journal = open(state.path());
    assert_eq!(journal.next_epoch().unwrap().0, 1);
    assert_eq!(journal.next_epoch().unwrap().0, 2);
    drop(journal);
    fs::remove_file(state.path().join("index.db")).unwrap();
    assert_eq!(open(state.path()).next_epoch().unwrap().0, 3);
}

#[test]
fn sessions_that_come_and_go_leave_no_descriptor_behind() {
    let state = tempfile::tempdir().unwrap();
    let journal = open(state.path());
    let descriptors = || {
        let entries = fs::read_dir("/proc/self/fd").unwrap();
        let targets = entries.filter_map(|entry| fs::read_link(entry.unwrap().path()).ok());
        targets.filter(|target| target.starts_with(state.path().join("sessions"))).count()
    };
    let mut logs: Vec<_> = (0..20).map(|n| create(&journal, &format!("s{n}"))).collect();
    for log in &mut logs {
        log.append(vec![output(1, b"x"), session_ended()]).unwrap();
        assert_eq!(all_events(&mut log.reader()).len(), 2);
    }
    assert!(descriptors() >= 20);
    drop(logs);
    journal.flush_index().unwrap();
    // The sync thread may still have some descriptors open. Dropping the journal waits for the thread.
    drop(journal);
    assert_eq!(descriptors(), 0);
}
