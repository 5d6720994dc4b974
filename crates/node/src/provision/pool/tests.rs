//! Tables of the pool's transitions, and a property test of its bounds.

use std::collections::BTreeSet;
use std::fmt::Write;

use expect_test::{Expect, expect};
use proptest::prelude::*;

use super::*;

/// Steps a pool with two workers per key through `script`: `<ms> <event> [<key or worker>]`, with `short` in
/// front if the machine is short of memory. Each line of the result has the event, the keys with
/// their workers (`A*2+1`: key A has workers, two ready and one being made), and the effects.
#[track_caller]
fn check(script: &str, expected: Expect) {
    let mut pool = WorkerPool::new(2);
    let mut lines = String::new();
    for line in script.split(';').map(str::trim) {
        let (memory, rest) = match line.strip_prefix("short ") {
            Some(rest) => (FreeMemory::Short, rest),
            None => (FreeMemory::Enough, line),
        };
        let (at, said) = rest.split_once(' ').expect("a time and an event");
        let now = Duration::from_millis(at.parse().expect("milliseconds"));
        let effects = pool.step(event(said), now, memory);
        let effects: Vec<String> = effects.iter().map(shown).collect();
        writeln!(lines, "{line:<18} {:<26} {}", state(&pool), effects.join(", ")).expect("text");
    }
    let trimmed: Vec<&str> = lines.lines().map(str::trim_end).collect();
    expected.assert_eq(&(trimmed.join("\n") + "\n"));
}

fn event(said: &str) -> PoolEvent {
    let (word, what) = said.split_once(' ').unwrap_or((said, ""));
    let key = || PoolKey(u64::from(what.as_bytes()[0]));
    let worker = || WorkerNo(what.parse().expect("a number"));
    match word {
        "expect" => PoolEvent::Expected(key()),
        "claim" => PoolEvent::Claimed(key()),
        "made" => PoolEvent::Made(worker()),
        "failed" => PoolEvent::MakeFailed(worker()),
        "ended" => PoolEvent::Ended(worker()),
        "stale" => PoolEvent::Stale(key()),
        "gone" => PoolEvent::ZygoteGone,
        "tick" => PoolEvent::Tick,
        other => panic!("unknown event {other:?}"),
    }
}

fn letter(key: PoolKey) -> char {
    char::from(u8::try_from(key.0).expect("a letter"))
}

fn shown(effect: &PoolEffect) -> String {
    match effect {
        PoolEffect::Give(worker) => format!("give {}", worker.0),
        PoolEffect::Make(key, worker) => format!("make {} for {}", worker.0, letter(*key)),
        PoolEffect::End(worker) => format!("end {}", worker.0),
        PoolEffect::Forget(key) => format!("forget {}", letter(*key)),
    }
}

fn state(pool: &WorkerPool) -> String {
    let slot = |slot: &KeySlot| {
        let (key, star) = (letter(slot.key), if slot.filled { "*" } else { "" });
        format!("{key}{star}{}+{}", slot.ready.len(), slot.making.len())
    };
    pool.keys.iter().map(slot).collect::<Vec<_>>().join(" ")
}

#[test]
fn an_expected_key_is_filled_and_its_workers_are_given_in_order() {
    check(
        "0 expect A; 1 made 1; 2 made 2; 10 claim A; 11 claim A; 12 claim A",
        expect![[r#"
            0 expect A         A*0+2                      make 1 for A, make 2 for A
            1 made 1           A*1+1
            2 made 2           A*2+0
            10 claim A         A*1+0                      give 1
            11 claim A         A*0+0                      give 2
            12 claim A         A*0+0
        "#]],
    );
}

#[test]
fn the_pool_is_refilled_after_a_pause_and_in_a_series_of_claims_after_a_longer_one() {
    check(
        "0 expect A; 1 made 1; 2 made 2; 10 claim A; 39 tick; 40 tick; 45 made 3; 50 claim A; \
         75 claim A; 100 claim A; 125 claim A; 150 claim A; 175 claim A; 200 claim A; 225 claim A; \
         249 tick; 250 tick",
        expect![[r#"
            0 expect A         A*0+2                      make 1 for A, make 2 for A
            1 made 1           A*1+1
            2 made 2           A*2+0
            10 claim A         A*1+0                      give 1
            39 tick            A*1+0
            40 tick            A*1+1                      make 3 for A
            45 made 3          A*2+0
            50 claim A         A*1+0                      give 2
            75 claim A         A*0+0                      give 3
            100 claim A        A*0+0
            125 claim A        A*0+0
            150 claim A        A*0+0
            175 claim A        A*0+0
            200 claim A        A*0+0
            225 claim A        A*0+0
            249 tick           A*0+0
            250 tick           A*0+2                      make 4 for A, make 5 for A
        "#]],
    );
}

#[test]
fn the_pool_is_refilled_after_a_rush() {
    let at = Duration::from_millis;
    for (gap_ms, made) in [(12, 0), (13, 2)] {
        let mut pool = WorkerPool::new(2);
        let claims = (0..30).flat_map(|claim| {
            pool.step(PoolEvent::Claimed(PoolKey(1)), at(claim * gap_ms), FreeMemory::Enough)
        });
        assert_eq!(claims.count(), made, "claims every {gap_ms} ms");
        let last = 29 * gap_ms;
        assert_eq!(pool.next_tick(at(last)), (made == 0).then(|| at(last) + REFILL_PAUSE));
    }
}

#[test]
fn a_new_key_gets_workers_at_its_first_claim_while_there_is_room() {
    check(
        "0 expect A; 1 made 1; 2 made 2; 10 claim B; 40 tick; 50 made 3; 51 made 4; 60 claim B; 61 claim A",
        expect![[r#"
            0 expect A         A*0+2                      make 1 for A, make 2 for A
            1 made 1           A*1+1
            2 made 2           A*2+0
            10 claim B         A*2+0 B*0+0
            40 tick            A*2+0 B*0+2                make 3 for B, make 4 for B
            50 made 3          A*2+0 B*1+1
            51 made 4          A*2+0 B*2+0
            60 claim B         A*2+0 B*1+0                give 3
            61 claim A         A*1+0 B*1+0                give 1
        "#]],
    );
}

#[test]
fn a_key_above_the_limit_replaces_one_that_was_not_claimed_between_its_last_two_claims() {
    check(
        "0 claim A; 1 claim B; 2 claim C; 3 claim D; 4 claim E; 5 claim A; 6 claim B; 7 claim E; 8 claim E",
        expect![[r#"
            0 claim A          A*0+0
            1 claim B          A*0+0 B*0+0
            2 claim C          A*0+0 B*0+0 C*0+0
            3 claim D          A*0+0 B*0+0 C*0+0 D*0+0
            4 claim E          A*0+0 B*0+0 C*0+0 D*0+0 E0+0
            5 claim A          A*0+0 B*0+0 C*0+0 D*0+0 E0+0
            6 claim B          A*0+0 B*0+0 C*0+0 D*0+0 E0+0
            7 claim E          A*0+0 B*0+0 D*0+0 E*0+0    forget C
            8 claim E          A*0+0 B*0+0 D*0+0 E*0+0
        "#]],
    );
}

#[test]
fn alternating_keys_above_the_limit_do_not_end_each_others_workers() {
    check(
        "0 claim A; 1 claim B; 2 claim C; 3 claim D; 4 claim E; 5 claim A; 6 claim B; 7 claim C; \
         8 claim D; 9 claim E",
        expect![[r#"
            0 claim A          A*0+0
            1 claim B          A*0+0 B*0+0
            2 claim C          A*0+0 B*0+0 C*0+0
            3 claim D          A*0+0 B*0+0 C*0+0 D*0+0
            4 claim E          A*0+0 B*0+0 C*0+0 D*0+0 E0+0
            5 claim A          A*0+0 B*0+0 C*0+0 D*0+0 E0+0
            6 claim B          A*0+0 B*0+0 C*0+0 D*0+0 E0+0
            7 claim C          A*0+0 B*0+0 C*0+0 D*0+0 E0+0
            8 claim D          A*0+0 B*0+0 C*0+0 D*0+0 E0+0
            9 claim E          A*0+0 B*0+0 C*0+0 D*0+0 E0+0
        "#]],
    );
}

#[test]
fn keys_without_workers_are_forgotten_when_too_many_are_known() {
    check(
        "0 claim A; 1 claim B; 2 claim C; 3 claim D; 4 claim E; 5 claim F; 6 claim G; 7 claim H; 8 claim I",
        expect![[r#"
            0 claim A          A*0+0
            1 claim B          A*0+0 B*0+0
            2 claim C          A*0+0 B*0+0 C*0+0
            3 claim D          A*0+0 B*0+0 C*0+0 D*0+0
            4 claim E          A*0+0 B*0+0 C*0+0 D*0+0 E0+0
            5 claim F          A*0+0 B*0+0 C*0+0 D*0+0 E0+0 F0+0
            6 claim G          A*0+0 B*0+0 C*0+0 D*0+0 E0+0 F0+0 G0+0
            7 claim H          A*0+0 B*0+0 C*0+0 D*0+0 E0+0 F0+0 G0+0 H0+0
            8 claim I          A*0+0 B*0+0 C*0+0 D*0+0 F0+0 G0+0 H0+0 I0+0 forget E
        "#]],
    );
}

#[test]
fn a_worker_that_ends_is_replaced_at_once_and_one_that_fails_after_a_pause() {
    check(
        "0 expect A; 1 failed 1; 2 failed 2; 9000 tick; 10002 tick; 10003 made 3; 10004 made 4; 10005 ended 3",
        expect![[r#"
            0 expect A         A*0+2                      make 1 for A, make 2 for A
            1 failed 1         A*0+1
            2 failed 2         A*0+0
            9000 tick          A*0+0
            10002 tick         A*0+2                      make 3 for A, make 4 for A
            10003 made 3       A*1+1
            10004 made 4       A*2+0
            10005 ended 3      A*1+1                      make 5 for A
        "#]],
    );
}

#[test]
fn a_key_whose_workers_cannot_be_made_does_not_pause_another() {
    check(
        "0 expect A; 1 made 1; 2 made 2; 10 claim B; 40 tick; 41 failed 3; 42 failed 4; 50 claim A; 80 tick",
        expect![[r#"
            0 expect A         A*0+2                      make 1 for A, make 2 for A
            1 made 1           A*1+1
            2 made 2           A*2+0
            10 claim B         A*2+0 B*0+0
            40 tick            A*2+0 B*0+2                make 3 for B, make 4 for B
            41 failed 3        A*2+0 B*0+1
            42 failed 4        A*2+0 B*0+0
            50 claim A         A*1+0 B*0+0                give 1
            80 tick            A*1+1 B*0+0                make 5 for A
        "#]],
    );
}

#[test]
fn no_tick_is_due_while_a_worker_is_made_again() {
    let (at, key) = (Duration::from_millis, PoolKey(1));
    let mut pool = WorkerPool::new(1);
    pool.step(PoolEvent::Expected(key), at(0), FreeMemory::Enough);
    pool.step(PoolEvent::MakeFailed(WorkerNo(1)), at(0), FreeMemory::Enough);
    assert_eq!(pool.next_tick(at(1)), Some(RETRY));
    assert_eq!(
        pool.step(PoolEvent::Tick, RETRY, FreeMemory::Enough),
        [PoolEffect::Make(key, WorkerNo(2))]
    );
    assert_eq!(pool.next_tick(RETRY), None, "the answer of the one that is made tells more");
}

#[test]
fn workers_of_a_stale_key_or_an_ended_zygote_are_ended() {
    check(
        "0 expect A; 1 made 1; 2 stale A; 3 made 2; 4 claim A; 34 tick; 35 made 3; 36 gone; 37 failed 4; 38 expect A",
        expect![[r#"
            0 expect A         A*0+2                      make 1 for A, make 2 for A
            1 made 1           A*1+1
            2 stale A                                     end 1, forget A
            3 made 2                                      end 2
            4 claim A          A*0+0
            34 tick            A*0+2                      make 3 for A, make 4 for A
            35 made 3          A*1+1
            36 gone                                       end 3, forget A
            37 failed 4
            38 expect A        A*0+2                      make 5 for A, make 6 for A
        "#]],
    );
}

#[test]
fn without_memory_nothing_is_made_and_the_least_recently_used_key_loses_its_workers() {
    check(
        "0 expect A; 1 made 1; 2 made 2; 10 claim B; 40 tick; 41 made 3; 42 made 4; short 50 claim B; \
         short 90 tick; 100 claim A; 130 tick",
        expect![[r#"
            0 expect A         A*0+2                      make 1 for A, make 2 for A
            1 made 1           A*1+1
            2 made 2           A*2+0
            10 claim B         A*2+0 B*0+0
            40 tick            A*2+0 B*0+2                make 3 for B, make 4 for B
            41 made 3          A*2+0 B*1+1
            42 made 4          A*2+0 B*2+0
            short 50 claim B   A*2+0 B*1+0                give 3
            short 90 tick      B*1+0                      end 1, end 2, forget A
            100 claim A        B*1+0 A*0+0
            130 tick           B*1+0 A*0+2                make 5 for A, make 6 for A
        "#]],
    );
}

#[test]
fn an_unclaimed_key_is_forgotten_unless_it_is_the_last() {
    check(
        "0 expect A; 1 made 1; 2 made 2; 10 claim B; 40 tick; 41 made 3; 42 made 4; 300009 tick; 300010 tick; 900000 tick",
        expect![[r#"
            0 expect A         A*0+2                      make 1 for A, make 2 for A
            1 made 1           A*1+1
            2 made 2           A*2+0
            10 claim B         A*2+0 B*0+0
            40 tick            A*2+0 B*0+2                make 3 for B, make 4 for B
            41 made 3          A*2+0 B*1+1
            42 made 4          A*2+0 B*2+0
            300009 tick        B*2+0                      end 1, end 2, forget A
            300010 tick        B*2+0
            900000 tick        B*2+0
        "#]],
    );
}

fn any_event() -> impl Strategy<Value = (u64, PoolEvent, bool)> {
    let key = (0..10_u64).prop_map(PoolKey);
    let worker = (1..40_u64).prop_map(WorkerNo);
    let event = prop_oneof![
        1 => key.clone().prop_map(PoolEvent::Expected),
        6 => key.clone().prop_map(PoolEvent::Claimed),
        6 => worker.clone().prop_map(PoolEvent::Made),
        1 => worker.clone().prop_map(PoolEvent::MakeFailed),
        1 => worker.prop_map(PoolEvent::Ended),
        1 => key.prop_map(PoolEvent::Stale),
        1 => Just(PoolEvent::ZygoteGone),
        4 => Just(PoolEvent::Tick),
    ];
    (0..200_u64, event, prop::bool::weighted(0.1))
}

proptest! {
    /// Every worker that was made is in the pool, was given once or was ended once, and every limit holds.
    #[test]
    fn no_worker_is_lost_or_given_twice(
        size in 0..4_usize,
        events in prop::collection::vec(any_event(), 0..200),
    ) {
        let mut pool = WorkerPool::new(size);
        let (mut making, mut alive) = (BTreeSet::new(), BTreeSet::new());
        let mut now = Duration::ZERO;
        for (wait, event, short) in events {
            now += Duration::from_millis(wait);
            match event {
                // Skip events that cannot happen: only a worker that is being made can be made, and only a
                // pooled worker can end.
                PoolEvent::Made(worker) if making.remove(&worker) => {
                    alive.insert(worker);
                }
                PoolEvent::MakeFailed(worker) if making.remove(&worker) => {}
                PoolEvent::Ended(worker) if alive.remove(&worker) => {}
                PoolEvent::Made(_) | PoolEvent::MakeFailed(_) | PoolEvent::Ended(_) => continue,
                _ => {}
            }
            let memory = if short { FreeMemory::Short } else { FreeMemory::Enough };
            for effect in pool.step(event, now, memory) {
                match effect {
                    PoolEffect::Give(worker) | PoolEffect::End(worker) => {
                        prop_assert!(alive.remove(&worker), "{worker:?} is not in the pool");
                    }
                    PoolEffect::Make(_, worker) => {
                        prop_assert!(!short && making.insert(worker));
                    }
                    PoolEffect::Forget(_) => {}
                }
            }
            let ready: BTreeSet<WorkerNo> =
                pool.keys.iter().flat_map(|slot| slot.ready.iter().copied()).collect();
            prop_assert_eq!(&ready, &alive);
            prop_assert!(making.len() <= MAKING_MAX);
            prop_assert!(pool.keys.len() <= KEYS_KNOWN_MAX && pool.filled() <= KEYS_MAX);
            for slot in &pool.keys {
                let has = slot.ready.len() + slot.making.len();
                let most = if slot.filled { size } else { 0 };
                prop_assert!(has <= most);
            }
            let (count, wanted) = pool.counts();
            prop_assert!(count == alive.len() && count <= wanted);
        }
    }
}
