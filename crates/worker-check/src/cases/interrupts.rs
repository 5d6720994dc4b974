//! Interrupts at every moment: before, within and after a turn.

use std::time::{Duration, Instant};

use serde_json::json;
use windlass_protocol::TurnNo;
use windlass_protocol::worker::{FromWorker, WorkerOutcome};

use super::{CaseClass, CaseRun, ConformanceCase, INTERRUPT};
use crate::failure::{Step, fail};
use crate::observed_turn::Said;

/// Rounds of the case that interrupts displays.
const DISPLAY_ROUNDS: usize = 60;

/// Rounds of cases with a signal between turns.
const SIGNAL_ROUNDS: usize = 20;

/// Bytes of each of the frames that fill the worker's socket.
const FILLER_BYTES: usize = 150_000;

/// How long the end of an unread frame comes after the SIGINT.
const HELD_TIME: Duration = Duration::from_millis(30);

/// Time in which a worker fills a socket that is not read.
const FILL_TIME: Duration = Duration::from_millis(10);

/// How long a sleep of 0.6 s lasts at least, as far as the check can see.
const SLEEP_MIN: Duration = Duration::from_millis(500);

pub(super) const CASES: &[ConformanceCase] = &[
    ConformanceCase {
        name: "interrupt-sleep",
        sentence: "An interrupt ends a sleep with the outcome interrupted; the state is kept.",
        class: INTERRUPT,
        needs: &["sleep", "print"],
        run: |case| running(case, "sleep"),
    },
    ConformanceCase {
        name: "interrupt-loop",
        sentence: "An interrupt ends a busy loop with the outcome interrupted; the state is kept.",
        class: INTERRUPT,
        needs: &["loop", "print"],
        run: |case| running(case, "loop"),
    },
    ConformanceCase {
        name: "interrupt-child",
        sentence: "An interrupt ends code that waits for a child process.",
        class: INTERRUPT,
        needs: &["child", "print"],
        run: |case| running(case, "child"),
    },
    ConformanceCase {
        name: "interrupt-before-start",
        sentence: "An interrupt that arrives before its turn_start keeps the code from running.",
        class: INTERRUPT,
        needs: &["print"],
        run: before_start,
    },
    ConformanceCase {
        name: "interrupt-between-chunks",
        sentence: "An interrupt between two frames of a turn_start keeps the code from running.",
        class: INTERRUPT,
        needs: &["print"],
        run: between_chunks,
    },
    ConformanceCase {
        name: "interrupt-behind-frames",
        sentence: "A SIGINT whose interrupt frame is still behind two large unread frames ends the turn.",
        class: INTERRUPT,
        needs: &["loop", "print"],
        run: behind_frames,
    },
    ConformanceCase {
        name: "interrupt-old-turn",
        sentence: "An interrupt that names an earlier turn leaves the running turn alone.",
        class: INTERRUPT,
        needs: &["nap", "print"],
        run: old_turn,
    },
    ConformanceCase {
        name: "interrupt-caught",
        sentence: "Code that catches the interrupt continues, and its next sleep lasts under SIGURG.",
        class: INTERRUPT,
        needs: &["catch", "print"],
        run: caught,
    },
    ConformanceCase {
        name: "sigint-after-idle",
        sentence: "A SIGINT between turns ends nothing, and the next turn is not interrupted.",
        class: CaseClass::Required,
        needs: &["print"],
        run: after_idle,
    },
    ConformanceCase {
        name: "interrupt-displays",
        sentence: "60 interrupts among 400 displays each leave whole frames, one idle and a worker that works.",
        class: INTERRUPT,
        needs: &["display_many", "print"],
        run: among_displays,
    },
];

fn running(case: &mut CaseRun<'_>, snippet: &str) -> Step {
    let state = case.optional("set").zip(case.optional("get"));
    if let Some((set, _)) = &state {
        case.worker.run(set)?;
    }
    case.worker.start_turn(&case.code(snippet));
    case.worker.until_shown("windlass-started")?;
    case.worker.interrupt(case.worker.turn());
    case.worker.until_outcome(WorkerOutcome::Interrupted)?;
    if let Some((_, get)) = &state
        && !case.worker.run(get)?.shown().contains("windlass-state")
    {
        return fail("the state is lost");
    }
    case.still_works()
}

/// Waits for the end of a turn that must not have run.
fn unrun(case: &mut CaseRun<'_>) -> Step {
    let record = case.worker.until_idle()?;
    if record.shown().contains("windlass-print") {
        return fail("the code was run");
    }
    if record.outcome != WorkerOutcome::Interrupted {
        return fail(format!("the outcome is {:?}, not Interrupted", record.outcome));
    }
    case.still_works()
}

fn before_start(case: &mut CaseRun<'_>) -> Step {
    let turn = case.worker.next_turn();
    case.worker.interrupt(turn);
    let code = case.code("print");
    case.worker.send(&json!({"kind": "turn_start", "turn": turn}), code.as_bytes());
    unrun(case)
}

fn between_chunks(case: &mut CaseRun<'_>) -> Step {
    let turn = case.worker.next_turn();
    let code = case.code("print");
    let (first, second) = code.as_bytes().split_at(code.len() / 2);
    case.worker.send(&json!({"kind": "turn_start", "turn": turn, "more": true}), first);
    case.worker.interrupt(turn);
    case.worker.linger(Duration::from_millis(50))?;
    case.worker.send(&json!({"kind": "turn_start", "turn": turn}), second);
    unrun(case)
}

fn behind_frames(case: &mut CaseRun<'_>) -> Step {
    case.worker.start_turn(&case.code("loop"));
    case.worker.until_shown("windlass-started")?;
    let turn = case.worker.turn();
    let filler = json!({"kind": "turn_input", "turn": TurnNo(turn.0 - 1)});
    let mut bytes = case.worker.encode(&filler, &[b'x'; FILLER_BYTES]);
    bytes.extend(case.worker.encode(&filler, &[b'x'; FILLER_BYTES]));
    let rest = bytes.split_off(bytes.len() - FILLER_BYTES / 2);
    // A full socket keeps the rest of the second frame back, and the interrupt behind it.
    case.worker.send_bytes(&bytes);
    case.worker.sigint();
    case.worker.linger(HELD_TIME)?;
    case.worker.send_bytes(&rest);
    case.worker.interrupt_without_signal(turn);
    case.worker.until_outcome(WorkerOutcome::Interrupted)?;
    case.still_works()
}

fn old_turn(case: &mut CaseRun<'_>) -> Step {
    case.still_works()?;
    let earlier = case.worker.turn();
    case.worker.start_turn(&case.code("nap"));
    case.worker.until_shown("windlass-started")?;
    case.worker.interrupt(earlier);
    let record = case.worker.until_outcome(WorkerOutcome::Ok)?;
    if record.shown().contains("windlass-rested") {
        return case.still_works();
    }
    fail("the code did not run to its end")
}

fn caught(case: &mut CaseRun<'_>) -> Step {
    case.worker.start_turn(&case.code("catch"));
    case.worker.until_shown("windlass-started")?;
    // From the interrupt on: a busy machine may show the text late, when the worker already sleeps.
    let began = Instant::now();
    case.worker.interrupt(case.worker.turn());
    case.worker.until_shown("windlass-caught")?;
    case.worker.until_shown("windlass-slept")?;
    let slept = began.elapsed();
    case.worker.until_idle()?;
    if slept < SLEEP_MIN {
        return fail(format!("a sleep of 600 ms lasted {} ms", slept.as_millis()));
    }
    case.still_works()
}

fn after_idle(case: &mut CaseRun<'_>) -> Step {
    for round in 0..SIGNAL_ROUNDS {
        case.still_works()?;
        if round % 2 == 0 {
            // The interrupt of a turn that has just ended.
            case.worker.interrupt(case.worker.turn());
        } else {
            case.worker.sigint();
        }
    }
    case.still_works()
}

fn among_displays(case: &mut CaseRun<'_>) -> Step {
    let code = case.code("display_many");
    let mut interrupted = 0;
    for round in 0..DISPLAY_ROUNDS {
        case.worker.start_turn(&code);
        for _ in 0..(round * 7 % 300) {
            let is_over = case.worker.until("a display", |said| match said {
                Said::Message { message: FromWorker::Display { .. }, .. } => Some(false),
                Said::Message { message: FromWorker::Idle { .. }, .. } => Some(true),
                _ => None,
            })?;
            if is_over {
                return fail("the turn ended before its 400 displays");
            }
        }
        if round % 2 == 1 {
            // The worker's socket fills up, and the worker is in the middle of a frame.
            case.worker.pause_reading();
            case.worker.linger(FILL_TIME)?;
        }
        case.worker.interrupt(case.worker.turn());
        case.worker.resume_reading();
        let record = case.worker.until_idle()?;
        match record.outcome {
            WorkerOutcome::Interrupted => interrupted += 1,
            WorkerOutcome::Ok => {}
            WorkerOutcome::Error => return fail(format!("round {round} ended with an error")),
        }
        if round % 10 == 9 {
            case.still_works()?;
        }
    }
    if interrupted == 0 {
        return fail("none of 60 interrupts ended a turn");
    }
    Ok(())
}
