//! Every transition of the stage machine: each stage with each event.

use std::fmt::Write;
use std::time::Duration;

use expect_test::{Expect, expect};

use super::*;

const EVENTS: [&str; 13] = [
    "started",
    "not-started",
    "ready",
    "finish",
    "finish-now",
    "clear-afresh",
    "clear-stay",
    "clear-exit",
    "ended",
    "none-left",
    "others-left",
    "early",
    "late",
];

/// Steps each event from `stage`: event, stage after it, effects.
#[track_caller]
fn check(stage: fn(Instant) -> WorkerStage, expected: Expect) {
    let began = Instant::now();
    let mut lines = String::new();
    for word in EVENTS {
        let (after, effects) = stage(began).step(event(word, began));
        let effects: Vec<String> = effects.iter().map(|effect| shown(*effect)).collect();
        writeln!(lines, "{word:<13} {:<27} {}", named(after), effects.join(", ")).expect("text");
    }
    let trimmed: Vec<&str> = lines.lines().map(str::trim_end).collect();
    expected.assert_eq(&(trimmed.join("\n") + "\n"));
}

fn until(began: Instant) -> Instant {
    began + Duration::from_secs(10)
}

fn event(word: &str, began: Instant) -> StageEvent {
    let clear = |then| StageEvent::ClearAsked { then };
    match word {
        "started" => StageEvent::Started { until: until(began) },
        "not-started" => StageEvent::NotStarted,
        "ready" => StageEvent::Ready,
        "finish" => StageEvent::FinishAsked { until: Some(until(began)) },
        "finish-now" => StageEvent::FinishAsked { until: None },
        "clear-afresh" => clear(AfterClear::StartAfresh),
        "clear-stay" => clear(AfterClear::StayDown),
        "clear-exit" => clear(AfterClear::Exit),
        "ended" => StageEvent::WorkerEnded,
        "none-left" => StageEvent::NoneLeft,
        "others-left" => StageEvent::OthersLeft,
        "early" => StageEvent::TimePassed { now: began },
        "late" => StageEvent::TimePassed { now: until(began) },
        other => panic!("{other:?} is no event"),
    }
}

fn named(stage: WorkerStage) -> String {
    match stage {
        WorkerStage::Down => "Down".to_owned(),
        WorkerStage::Starting { .. } => "Starting".to_owned(),
        WorkerStage::Up => "Up".to_owned(),
        WorkerStage::Finishing { .. } => "Finishing".to_owned(),
        WorkerStage::Clearing { left, then } => format!("Clearing({left:?}, {then:?})"),
    }
}

fn shown(effect: StageEffect) -> String {
    match effect {
        StageEffect::TellReady => "tell ready".to_owned(),
        StageEffect::TellLate => "tell late".to_owned(),
        StageEffect::TellEnded => "tell ended".to_owned(),
        StageEffect::AskToFinish { .. } => "ask to finish".to_owned(),
        StageEffect::Kill => "kill".to_owned(),
        StageEffect::KillOrphans => "kill orphans".to_owned(),
        StageEffect::Start => "start".to_owned(),
    }
}

#[test]
fn without_a_worker() {
    check(
        |_| WorkerStage::Down,
        expect![[r#"
        started       Starting
        not-started   Down
        ready         Down
        finish        Clearing(Others, Exit)      kill
        finish-now    Clearing(Others, Exit)      kill
        clear-afresh  Clearing(Others, StartAfresh) kill
        clear-stay    Clearing(Others, StayDown)  kill
        clear-exit    Clearing(Others, Exit)      kill
        ended         Down
        none-left     Down
        others-left   Down
        early         Down
        late          Down
    "#]],
    );
}

#[test]
fn while_a_worker_starts() {
    check(
        |began| WorkerStage::Starting { until: until(began) },
        expect![[r#"
            started       Starting
            not-started   Starting
            ready         Up                          tell ready
            finish        Clearing(Worker, Exit)      kill
            finish-now    Clearing(Worker, Exit)      kill
            clear-afresh  Clearing(Worker, StartAfresh) kill
            clear-stay    Clearing(Worker, StayDown)  kill
            clear-exit    Clearing(Worker, Exit)      kill
            ended         Down                        tell ended
            none-left     Starting
            others-left   Starting
            early         Starting
            late          Clearing(Worker, StayDown)  tell late, kill
        "#]],
    );
}

#[test]
fn while_a_worker_is_up() {
    check(
        |_| WorkerStage::Up,
        expect![[r#"
            started       Up
            not-started   Up
            ready         Up
            finish        Finishing                   ask to finish
            finish-now    Clearing(Worker, Exit)      kill
            clear-afresh  Clearing(Worker, StartAfresh) kill
            clear-stay    Clearing(Worker, StayDown)  kill
            clear-exit    Clearing(Worker, Exit)      kill
            ended         Down                        tell ended
            none-left     Up
            others-left   Up
            early         Up
            late          Up
        "#]],
    );
}

#[test]
fn while_a_worker_finishes() {
    check(
        |began| WorkerStage::Finishing { until: until(began) },
        expect![[r#"
            started       Finishing
            not-started   Finishing
            ready         Finishing
            finish        Clearing(Worker, Exit)      kill
            finish-now    Clearing(Worker, Exit)      kill
            clear-afresh  Clearing(Worker, Exit)      kill
            clear-stay    Clearing(Worker, Exit)      kill
            clear-exit    Clearing(Worker, Exit)      kill
            ended         Clearing(Others, Exit)      kill
            none-left     Finishing
            others-left   Finishing
            early         Finishing
            late          Clearing(Worker, Exit)      kill
        "#]],
    );
}

#[test]
fn while_a_worker_is_killed_for_the_next() {
    check(
        |_| clearing(ToReap::Worker, AfterClear::StartAfresh),
        expect![[r#"
            started       Starting
            not-started   Down
            ready         Clearing(Worker, StartAfresh)
            finish        Clearing(Worker, Exit)      kill
            finish-now    Clearing(Worker, Exit)      kill
            clear-afresh  Clearing(Worker, StartAfresh) kill
            clear-stay    Clearing(Worker, StayDown)  kill
            clear-exit    Clearing(Worker, Exit)      kill
            ended         Clearing(Others, StartAfresh) tell ended
            none-left     Clearing(Worker, StartAfresh)
            others-left   Clearing(Worker, StartAfresh)
            early         Clearing(Worker, StartAfresh)
            late          Clearing(Worker, StartAfresh)
        "#]],
    );
    check(
        |_| clearing(ToReap::Others, AfterClear::StartAfresh),
        expect![[r#"
            started       Starting
            not-started   Down
            ready         Clearing(Others, StartAfresh)
            finish        Clearing(Others, Exit)      kill
            finish-now    Clearing(Others, Exit)      kill
            clear-afresh  Clearing(Others, StartAfresh) kill
            clear-stay    Clearing(Others, StayDown)  kill
            clear-exit    Clearing(Others, Exit)      kill
            ended         Clearing(Others, StartAfresh)
            none-left     Clearing(Others, StartAfresh) start
            others-left   Clearing(Others, StartAfresh) kill orphans
            early         Clearing(Others, StartAfresh)
            late          Clearing(Others, StartAfresh)
        "#]],
    );
}

#[test]
fn while_a_worker_is_killed_for_good() {
    check(
        |_| clearing(ToReap::Worker, AfterClear::StayDown),
        expect![[r#"
            started       Starting
            not-started   Down
            ready         Clearing(Worker, StayDown)
            finish        Clearing(Worker, Exit)      kill
            finish-now    Clearing(Worker, Exit)      kill
            clear-afresh  Clearing(Worker, StartAfresh) kill
            clear-stay    Clearing(Worker, StayDown)  kill
            clear-exit    Clearing(Worker, Exit)      kill
            ended         Clearing(Others, StayDown)  tell ended
            none-left     Clearing(Worker, StayDown)
            others-left   Clearing(Worker, StayDown)
            early         Clearing(Worker, StayDown)
            late          Clearing(Worker, StayDown)
        "#]],
    );
    check(
        |_| clearing(ToReap::Others, AfterClear::StayDown),
        expect![[r#"
            started       Starting
            not-started   Down
            ready         Clearing(Others, StayDown)
            finish        Clearing(Others, Exit)      kill
            finish-now    Clearing(Others, Exit)      kill
            clear-afresh  Clearing(Others, StartAfresh) kill
            clear-stay    Clearing(Others, StayDown)  kill
            clear-exit    Clearing(Others, Exit)      kill
            ended         Clearing(Others, StayDown)
            none-left     Down
            others-left   Clearing(Others, StayDown)  kill orphans
            early         Clearing(Others, StayDown)
            late          Clearing(Others, StayDown)
        "#]],
    );
}

#[test]
fn while_everything_is_killed_since_the_keeper_exits() {
    check(
        |_| clearing(ToReap::Worker, AfterClear::Exit),
        expect![[r#"
        started       Starting
        not-started   Down
        ready         Clearing(Worker, Exit)
        finish        Clearing(Worker, Exit)      kill
        finish-now    Clearing(Worker, Exit)      kill
        clear-afresh  Clearing(Worker, Exit)      kill
        clear-stay    Clearing(Worker, Exit)      kill
        clear-exit    Clearing(Worker, Exit)      kill
        ended         Clearing(Others, Exit)
        none-left     Clearing(Worker, Exit)
        others-left   Clearing(Worker, Exit)
        early         Clearing(Worker, Exit)
        late          Clearing(Worker, Exit)
    "#]],
    );
    check(
        |_| clearing(ToReap::Others, AfterClear::Exit),
        expect![[r#"
        started       Starting
        not-started   Down
        ready         Clearing(Others, Exit)
        finish        Clearing(Others, Exit)      kill
        finish-now    Clearing(Others, Exit)      kill
        clear-afresh  Clearing(Others, Exit)      kill
        clear-stay    Clearing(Others, Exit)      kill
        clear-exit    Clearing(Others, Exit)      kill
        ended         Clearing(Others, Exit)
        none-left     Clearing(Others, Exit)
        others-left   Clearing(Others, Exit)      kill orphans
        early         Clearing(Others, Exit)
        late          Clearing(Others, Exit)
    "#]],
    );
}

fn clearing(left: ToReap, then: AfterClear) -> WorkerStage {
    WorkerStage::Clearing { left, then }
}
