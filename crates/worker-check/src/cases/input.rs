//! Input: questions, answers in pieces, answers for others, the end of input.

use serde_json::json;
use windlass_protocol::TurnNo;
use windlass_protocol::text::excerpt;
use windlass_protocol::worker::WorkerOutcome;

use super::{CaseRun, ConformanceCase, INTERRUPT, STDIN};
use crate::failure::{Step, fail};

/// Bytes of an answer that needs two frames.
const LONG_BYTES: usize = 300_000;

/// Bytes of one frame of a long answer.
const CHUNK_BYTES: usize = 180_000;

pub(super) const CASES: &[ConformanceCase] = &[
    ConformanceCase {
        name: "input",
        sentence: "Code that reads a line sends stdin_wait with its prompt and gets the answer.",
        class: STDIN,
        needs: &["input"],
        run: |case| asked(case, "input", b"ada\n", "got:ada"),
    },
    ConformanceCase {
        name: "input-wrong-turn",
        sentence: "A turn_input of another turn is dropped.",
        class: STDIN,
        needs: &["input"],
        run: wrong_turn,
    },
    ConformanceCase {
        name: "input-chunked",
        sentence: "An answer of 300,000 bytes in two frames is joined.",
        class: STDIN,
        needs: &["input_length"],
        run: chunked,
    },
    ConformanceCase {
        name: "input-leftover",
        sentence: "Input that the code has not read does not reach the next turn.",
        class: STDIN,
        needs: &["input"],
        run: leftover,
    },
    ConformanceCase {
        name: "input-eof",
        sentence: "The end of input is seen once, without a second question; the next turn asks again.",
        class: STDIN,
        needs: &["input_eof", "input"],
        run: end_of_input,
    },
    ConformanceCase {
        name: "prompt-long",
        sentence: "A prompt of 200,000 bytes is asked in a valid frame.",
        class: STDIN,
        needs: &["prompt_big", "print"],
        run: |case| {
            asked(case, "prompt_big", b"ada\n", "got:ada")?;
            case.still_works()
        },
    },
    ConformanceCase {
        name: "interrupt-input",
        sentence: "An interrupt ends code that waits for input; the next turn asks again.",
        class: INTERRUPT,
        needs: &["input"],
        run: interrupted,
    },
];

/// Runs a snippet that asks once, and checks what it prints.
fn asked(case: &mut CaseRun<'_>, snippet: &str, answer: &[u8], text: &str) -> Step {
    case.worker.start_turn(&case.code(snippet));
    case.worker.until_asked()?;
    case.worker.answer(answer);
    expect(case, text)
}

fn expect(case: &mut CaseRun<'_>, text: &str) -> Step {
    let record = case.worker.until_outcome(WorkerOutcome::Ok)?;
    let printed = record.shown();
    if printed.contains(text) {
        return Ok(());
    }
    fail(format!("the code printed `{}`, not `{text}`", excerpt(printed.as_bytes(), 80)))
}

fn wrong_turn(case: &mut CaseRun<'_>) -> Step {
    case.worker.start_turn(&case.code("input"));
    case.worker.until_asked()?;
    let earlier = TurnNo(case.worker.turn().0 - 1);
    case.worker.send(&json!({"kind": "turn_input", "turn": earlier}), b"wrong\n");
    case.worker.answer(b"ada\n");
    expect(case, "got:ada")
}

fn chunked(case: &mut CaseRun<'_>) -> Step {
    case.worker.start_turn(&case.code("input_length"));
    case.worker.until_asked()?;
    let turn = case.worker.turn();
    let header = json!({"kind": "turn_input", "turn": turn, "more": true});
    case.worker.send(&header, &[b'x'; CHUNK_BYTES]);
    let rest = [&[b'x'; LONG_BYTES - CHUNK_BYTES][..], b"\n"].concat();
    case.worker.answer(&rest);
    expect(case, "length:300000")
}

fn leftover(case: &mut CaseRun<'_>) -> Step {
    asked(case, "input", b"one\ntwo\n", "got:one")?;
    asked(case, "input", b"three\n", "got:three")
}

fn end_of_input(case: &mut CaseRun<'_>) -> Step {
    case.worker.start_turn(&case.code("input_eof"));
    case.worker.until_asked()?;
    let turn = case.worker.turn();
    case.worker.send(&json!({"kind": "turn_input", "turn": turn, "eof": true}), b"");
    expect(case, "windlass-eof")?;
    asked(case, "input", b"ada\n", "got:ada")
}

fn interrupted(case: &mut CaseRun<'_>) -> Step {
    case.worker.start_turn(&case.code("input"));
    case.worker.until_asked()?;
    case.worker.interrupt(case.worker.turn());
    case.worker.until_outcome(WorkerOutcome::Interrupted)?;
    asked(case, "input", b"ada\n", "got:ada")
}
