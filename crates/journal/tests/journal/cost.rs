//! Measures the cost of an append and of a read. Ignored by default: it only prints figures. Run it on
//! a release build (`cargo test --release -p windlass-journal cost -- --ignored --nocapture`).

use std::time::Instant;

use super::*;

fn report(what: &str, rounds: u32, mut act: impl FnMut()) {
    let mut times: Vec<_> = (0..rounds)
        .map(|_| {
            let start = Instant::now();
            act();
            start.elapsed()
        })
        .collect();
    times.sort_unstable();
    let at = |part: usize| times[times.len() * part / 100];
    println!("{what}: p50 {:?}, p95 {:?}, n {rounds}", at(50), at(95));
}

#[test]
#[ignore = "prints figures, checks nothing"]
fn the_cost_of_a_turn_and_of_a_flood() {
    let state = tempfile::tempdir().unwrap();
    let journal = Journal::open(state.path(), JournalOptions::default()).unwrap();
    let mut log = create(&journal, "s");
    let mut turn = 0;
    report("append of accepted + output + ended", 50_000, || {
        turn += 1;
        log.append(vec![accepted(turn, "1+1"), output(turn, b"2\n"), ended(turn)]).unwrap();
    });
    let (mut reader, mut after) = (log.reader(), log.facts().last_seq);
    report("append of 3, then a follower reads them", 20_000, || {
        turn += 1;
        log.append(vec![accepted(turn, "1+1"), output(turn, b"2\n"), ended(turn)]).unwrap();
        after = reader.events(after, 100, 1 << 20).unwrap().last().unwrap().0.seq;
    });
    report("the last output by range", 20_000, || {
        let to = log.facts().output_bytes;
        let range = OutputRange { from: to - 2, to, scope: OutputScope::Turn(TurnNo(turn)) };
        assert_eq!(log.reader().output(range).unwrap().bytes, "2\n");
    });
    report("a turn by id", 20_000, || {
        assert!(journal.turn(&id("s"), &turn_id("t77")).unwrap().is_some());
    });
    let chunk = Bytes::from(vec![b'z'; 64 * 1024]);
    let start = Instant::now();
    for _ in 0..16 * 1024 {
        let flood = NewEvent { body: chunk.clone(), ..output(turn, b"") };
        log.append(vec![flood]).unwrap();
    }
    println!("1 GiB of output: {:?}", start.elapsed());
    let start = Instant::now();
    let found = log.reader().search(b"nowhere", OutputRange::ALL, 10).unwrap();
    println!("search of what is kept: {:?}, found {}", start.elapsed(), found.matches.len());
}
