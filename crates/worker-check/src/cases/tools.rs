//! Host tools: answers for others, long answers, failures, interrupts.

use std::time::Duration;

use serde_json::{Value, json};
use windlass_protocol::CallNo;
use windlass_protocol::text::excerpt;
use windlass_protocol::worker::{FromWorker, WorkerOutcome};

use super::{CaseRun, ConformanceCase, TOOLS};
use crate::failure::{Step, fail};
use crate::observed_turn::Said;

/// Characters of a long result.
const LONG: usize = 500_000;

/// Bytes of one frame of a long result.
const CHUNK_BYTES: usize = 190_000;

pub(super) const CASES: &[ConformanceCase] = &[
    ConformanceCase {
        name: "tool",
        sentence: "A tool call arrives with its arguments as a JSON object, and the code gets the result.",
        class: TOOLS,
        needs: &["tool"],
        run: tool,
    },
    ConformanceCase {
        name: "tool-wrong-call",
        sentence: "A tool_result for another call is dropped.",
        class: TOOLS,
        needs: &["tool"],
        run: wrong_call,
    },
    ConformanceCase {
        name: "tool-chunked",
        sentence: "A result of 500,000 bytes in three frames is joined, with frames of another call between.",
        class: TOOLS,
        needs: &["tool_length"],
        run: chunked,
    },
    ConformanceCase {
        name: "tool-fails-halfway",
        sentence: "A failure after a part of a result voids that part and raises an error in the code.",
        class: TOOLS,
        needs: &["tool"],
        run: halfway,
    },
    ConformanceCase {
        name: "tool-interrupted",
        sentence: "An interrupt while a long call is being sent still closes the call with a last frame.",
        class: TOOLS,
        needs: &["tool_big", "tool"],
        run: interrupted,
    },
];

/// Waits for a complete call of `check.echo`. Returns its number and its arguments.
fn until_called(case: &mut CaseRun<'_>) -> Step<(CallNo, Value)> {
    let mut arguments = Vec::new();
    loop {
        let (call, name, more, body) = case.worker.until("tool_call", |said| match said {
            Said::Message { message: FromWorker::ToolCall { call, name, more, .. }, body } => {
                Some(Ok((*call, name.clone(), *more, body.clone())))
            }
            Said::Message { message: FromWorker::Idle { .. }, .. } => {
                Some(fail("the turn ended without a tool call"))
            }
            _ => None,
        })??;
        arguments.extend_from_slice(&body);
        if name != "check.echo" {
            return fail(format!("the code called `{name}`, not `check.echo`"));
        }
        if more {
            continue;
        }
        return match serde_json::from_slice(&arguments) {
            Ok(arguments @ Value::Object(_)) => Ok((call, arguments)),
            _ => fail("the arguments are not a JSON object"),
        };
    }
}

fn result(case: &mut CaseRun<'_>, call: CallNo, fields: &[(&str, bool)], body: &[u8]) {
    let mut header = json!({"kind": "tool_result", "turn": case.worker.turn(), "call": call});
    for (name, value) in fields {
        header[*name] = json!(value);
    }
    case.worker.send(&header, body);
}

fn expect(case: &mut CaseRun<'_>, text: &str) -> Step {
    let record = case.worker.until_outcome(WorkerOutcome::Ok)?;
    let printed = record.shown();
    if printed.contains(text) {
        return Ok(());
    }
    fail(format!("the code printed `{}`, not `{text}`", excerpt(printed.as_bytes(), 80)))
}

fn tool(case: &mut CaseRun<'_>) -> Step {
    case.worker.start_turn(&case.code("tool"));
    let (call, arguments) = until_called(case)?;
    if arguments != json!({"text": "hello"}) {
        return fail(format!("the arguments are {arguments}, not {{\"text\": \"hello\"}}"));
    }
    result(case, call, &[("ok", true)], b"\"windlass-tool\"");
    expect(case, "tool:windlass-tool")
}

fn wrong_call(case: &mut CaseRun<'_>) -> Step {
    case.worker.start_turn(&case.code("tool"));
    let (call, _) = until_called(case)?;
    result(case, CallNo(call.0 + 1000), &[("ok", true)], b"\"wrong\"");
    result(case, call, &[("ok", true)], b"\"windlass-tool\"");
    expect(case, "tool:windlass-tool")?;
    // A late answer to a call of a turn that is over.
    result(case, call, &[("ok", true)], b"\"late\"");
    tool(case)
}

fn chunked(case: &mut CaseRun<'_>) -> Step {
    case.worker.start_turn(&case.code("tool_length"));
    let (call, _) = until_called(case)?;
    let body = json!("x".repeat(LONG)).to_string();
    let chunks: Vec<&[u8]> = body.as_bytes().chunks(CHUNK_BYTES).collect();
    for (index, chunk) in chunks.iter().enumerate() {
        let more = index + 1 < chunks.len();
        result(case, call, &[("ok", true), ("more", more)], chunk);
        result(case, CallNo(call.0 + 1000), &[("ok", true), ("more", more)], b"1");
    }
    expect(case, "length:500000")
}

fn halfway(case: &mut CaseRun<'_>) -> Step {
    case.worker.start_turn(&case.code("tool"));
    let (call, _) = until_called(case)?;
    result(case, call, &[("ok", true), ("more", true)], b"\"half");
    let error = json!({"message": "windlass-tool-failed", "type": "CheckError"}).to_string();
    result(case, call, &[("ok", false)], error.as_bytes());
    let record = case.worker.until_outcome(WorkerOutcome::Error)?;
    if !record.everything().contains("windlass-tool-failed") {
        return fail("the error in the code does not have the tool's message");
    }
    tool(case)
}

fn interrupted(case: &mut CaseRun<'_>) -> Step {
    case.worker.start_turn(&case.code("tool_big"));
    let more = case.worker.until("tool_call", |said| match said {
        Said::Message { message: FromWorker::ToolCall { more, .. }, .. } => Some(Ok(*more)),
        Said::Message { message: FromWorker::Idle { .. }, .. } => {
            Some(fail("the turn ended without a tool call"))
        }
        _ => None,
    })??;
    if !more {
        return fail("a call with 1,000,000 bytes of arguments came in one frame");
    }
    case.worker.pause_reading();
    case.worker.interrupt(case.worker.turn());
    case.worker.linger(Duration::from_millis(100))?;
    case.worker.resume_reading();
    case.worker.until_outcome(WorkerOutcome::Interrupted)?;
    tool(case)
}
