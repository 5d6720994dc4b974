//! How a worker ends: by `shutdown`, and when its socket is closed.

use serde_json::json;
use windlass_protocol::worker::FromWorker;

use super::{CaseClass, CaseRun, ConformanceCase, STDIN};
use crate::failure::{Step, fail};
use crate::observed_turn::Said;

pub(super) const CASES: &[ConformanceCase] = &[
    ConformanceCase {
        name: "shutdown",
        sentence: "On shutdown the worker exits with status 0.",
        class: CaseClass::Required,
        needs: &[],
        run: shutdown,
    },
    ConformanceCase {
        name: "session-end",
        sentence: "session_end is the last message before the exit.",
        class: CaseClass::Advisory,
        needs: &[],
        run: session_end,
    },
    ConformanceCase {
        name: "shutdown-in-input",
        sentence: "On shutdown while code waits for input, the worker exits.",
        class: STDIN,
        needs: &["input"],
        run: in_input,
    },
    ConformanceCase {
        name: "shutdown-in-turn",
        sentence: "On shutdown while code runs, the worker exits when the code is done, if not before.",
        class: CaseClass::Required,
        needs: &["nap"],
        run: in_turn,
    },
    ConformanceCase {
        name: "socket-closed",
        sentence: "When the protocol socket is closed, the worker exits.",
        class: CaseClass::Required,
        needs: &[],
        run: closed,
    },
    ConformanceCase {
        name: "socket-closed-in-input",
        sentence: "When the protocol socket is closed while code waits for input, the worker exits.",
        class: STDIN,
        needs: &["input"],
        run: closed_in_input,
    },
];

fn send_shutdown(case: &mut CaseRun<'_>) {
    case.worker.send(&json!({"kind": "shutdown", "grace_ms": 5000}), b"");
}

fn shutdown(case: &mut CaseRun<'_>) -> Step {
    send_shutdown(case);
    let status = case.worker.until_exit()?;
    if status.success() { Ok(()) } else { fail(format!("the worker exited with {status}")) }
}

fn session_end(case: &mut CaseRun<'_>) -> Step {
    send_shutdown(case);
    case.worker.until_exit()?;
    let messages = case.worker.unread().into_iter().filter_map(|said| match said {
        Said::Message { message, .. } => Some(message),
        Said::Raw { .. } => None,
    });
    match messages.last() {
        Some(FromWorker::SessionEnd { .. }) => Ok(()),
        _ => fail("session_end did not come"),
    }
}

fn in_input(case: &mut CaseRun<'_>) -> Step {
    case.worker.start_turn(&case.code("input"));
    case.worker.until_asked()?;
    send_shutdown(case);
    case.worker.until_exit().map(drop)
}

fn in_turn(case: &mut CaseRun<'_>) -> Step {
    case.worker.start_turn(&case.code("nap"));
    case.worker.until_shown("windlass-started")?;
    send_shutdown(case);
    case.worker.until_exit().map(drop)
}

fn closed(case: &mut CaseRun<'_>) -> Step {
    case.worker.close_socket();
    case.worker.until_exit().map(drop)
}

fn closed_in_input(case: &mut CaseRun<'_>) -> Step {
    case.worker.start_turn(&case.code("input"));
    case.worker.until_asked()?;
    case.worker.close_socket();
    case.worker.until_exit().map(drop)
}
