//! Frames in any pieces, and messages that a worker does not know.

use std::time::Duration;

use serde_json::json;
use windlass_protocol::worker::WorkerOutcome;

use super::{CaseClass, CaseRun, ConformanceCase};
use crate::failure::{Step, fail};

pub(super) const CASES: &[ConformanceCase] = &[
    ConformanceCase {
        name: "frame-in-pieces",
        sentence: "A turn_start that arrives byte by byte is run.",
        class: CaseClass::Required,
        needs: &["print"],
        run: in_pieces,
    },
    ConformanceCase {
        name: "frames-together",
        sentence: "Frames that arrive in one write are all taken.",
        class: CaseClass::Required,
        needs: &["print"],
        run: together,
    },
    ConformanceCase {
        name: "unknown-kind",
        sentence: "A message of an unknown kind is dropped, also between two frames of a turn_start.",
        class: CaseClass::Required,
        needs: &["print"],
        run: unknown_kind,
    },
    ConformanceCase {
        name: "unknown-fields",
        sentence: "Unknown fields of a message are ignored.",
        class: CaseClass::Required,
        needs: &["print"],
        run: unknown_fields,
    },
    ConformanceCase {
        name: "frames-valid",
        sentence: "In a session with output, result, error and state, every frame is valid.",
        class: CaseClass::Required,
        needs: &["print"],
        run: valid,
    },
];

/// Time between two pieces, so that the worker reads each one by itself.
const PIECE_TIME: Duration = Duration::from_millis(1);

fn printed(case: &mut CaseRun<'_>) -> Step {
    let record = case.worker.until_outcome(WorkerOutcome::Ok)?;
    match record.shown().matches("windlass-print").count() {
        1 => Ok(()),
        count => fail(format!("the snippet `print` printed {count} times")),
    }
}

fn in_pieces(case: &mut CaseRun<'_>) -> Step {
    let turn = case.worker.next_turn();
    let code = case.code("print");
    let header = json!({"kind": "turn_start", "turn": turn});
    for byte in case.worker.encode(&header, code.as_bytes()) {
        case.worker.send_bytes(&[byte]);
        case.worker.linger(PIECE_TIME)?;
    }
    printed(case)
}

fn together(case: &mut CaseRun<'_>) -> Step {
    let turn = case.worker.next_turn();
    let code = case.code("print");
    let (first, second) = code.as_bytes().split_at(code.len() / 2);
    let header = json!({"kind": "turn_start", "turn": turn, "more": true});
    let mut bytes = case.worker.encode(&json!({"kind": "windlass_check"}), b"body");
    bytes.extend(case.worker.encode(&header, first));
    bytes.extend(case.worker.encode(&json!({"kind": "turn_start", "turn": turn}), second));
    case.worker.send_bytes(&bytes);
    printed(case)
}

fn unknown_kind(case: &mut CaseRun<'_>) -> Step {
    case.worker.send(&json!({"kind": "windlass_check", "turn": 1, "more": true}), b"print");
    let turn = case.worker.next_turn();
    let code = case.code("print");
    let (first, second) = code.as_bytes().split_at(code.len() / 2);
    case.worker.send(&json!({"kind": "turn_start", "turn": turn, "more": true}), first);
    case.worker.send(&json!({"kind": "windlass_check", "turn": turn}), &[b'x'; 100_000]);
    case.worker.send(&json!({"kind": "turn_start", "turn": turn}), second);
    printed(case)
}

fn unknown_fields(case: &mut CaseRun<'_>) -> Step {
    let turn = case.worker.next_turn();
    let code = case.code("print");
    let header = json!({
        "windlass_check": {"kind": "shutdown", "list": [1, null, {"a": "\u{1f600}"}]},
        "kind": "turn_start", "turn": turn, "more": false, "flag": true,
    });
    case.worker.send(&header, code.as_bytes());
    printed(case)
}

/// The driver checks each frame.
fn valid(case: &mut CaseRun<'_>) -> Step {
    for snippet in ["print", "value", "error", "set", "get", "print"] {
        if let Some(code) = case.optional(snippet) {
            case.worker.run(&code)?;
        }
    }
    Ok(())
}
