//! Start, state, output, results, errors and exits.

use std::time::Duration;

use serde_json::json;
use windlass_protocol::text::excerpt;
use windlass_protocol::worker::WorkerOutcome;
use windlass_protocol::{Stream, TurnNo};

use super::{CaseClass, CaseRun, ConformanceCase};
use crate::failure::{Step, fail};

/// How long a late message is waited for.
const LATE: Duration = Duration::from_millis(200);

pub(super) const CASES: &[ConformanceCase] = &[
    ConformanceCase {
        name: "ready",
        sentence: "worker_ready with protocol 1 comes within 30 s, and before every other frame.",
        class: CaseClass::Required,
        needs: &[],
        run: |_| Ok(()),
    },
    ConformanceCase {
        name: "ready-first",
        sentence: "Nothing is written to the raw pipes before worker_ready.",
        class: CaseClass::Required,
        needs: &[],
        run: ready_first,
    },
    ConformanceCase {
        name: "turn-number",
        sentence: "Turn 41 as the first turn ends with idle of turn 41.",
        class: CaseClass::Required,
        needs: &["print"],
        run: turn_number,
    },
    ConformanceCase {
        name: "output-before-idle",
        sentence: "Everything that 30 turns print is there when their idle comes, and nothing comes later.",
        class: CaseClass::Required,
        needs: &["print"],
        run: output_before_idle,
    },
    ConformanceCase {
        name: "state",
        sentence: "A variable that one turn sets is there in the next turn.",
        class: CaseClass::Required,
        needs: &["set", "get"],
        run: state,
    },
    ConformanceCase {
        name: "value",
        sentence: "The value of the last expression is shown before idle.",
        class: CaseClass::Required,
        needs: &["value"],
        run: value,
    },
    ConformanceCase {
        name: "result-long",
        sentence: "A result of 500,000 bytes arrives whole, in frames within the limits.",
        class: CaseClass::Required,
        needs: &["result_big", "print"],
        run: result_long,
    },
    ConformanceCase {
        name: "error",
        sentence: "An error is shown as traceback, then idle has the outcome error, its name and message.",
        class: CaseClass::Required,
        needs: &["error", "print"],
        run: error,
    },
    ConformanceCase {
        name: "error-long",
        sentence: "An error text of 300,000 bytes ends the turn, not the session.",
        class: CaseClass::Required,
        needs: &["error_big", "print"],
        run: |case| any_error(case, "error_big"),
    },
    ConformanceCase {
        name: "error-unicode",
        sentence: "An error text that is not valid Unicode ends the turn, not the session.",
        class: CaseClass::Required,
        needs: &["error_unicode", "print"],
        run: |case| any_error(case, "error_unicode"),
    },
    ConformanceCase {
        name: "exit-0",
        sentence: "Code that asks to exit with status 0 ends its turn; worker and state live on.",
        class: CaseClass::Required,
        needs: &["exit_0", "set", "get"],
        run: |case| exit(case, "exit_0").map(drop),
    },
    ConformanceCase {
        name: "exit-3",
        sentence: "Code that asks to exit with status 3 ends its turn; worker and state live on.",
        class: CaseClass::Required,
        needs: &["exit_3", "set", "get"],
        run: |case| exit(case, "exit_3").map(drop),
    },
    ConformanceCase {
        name: "exit-outcome",
        sentence: "Exit with status 0 has the outcome ok, exit with status 3 the outcome error.",
        class: CaseClass::Advisory,
        needs: &["exit_0", "exit_3", "set", "get"],
        run: exit_outcome,
    },
];

fn ready_first(case: &mut CaseRun<'_>) -> Step {
    match case.ready.printed.as_slice() {
        [] => Ok(()),
        printed => fail(format!("the worker printed `{}`", excerpt(printed, 80))),
    }
}

/// Runs the snippet `print`.
pub(super) fn print(case: &mut CaseRun<'_>) -> Step {
    let record = case.worker.run(&case.code("print"))?;
    if record.outcome != WorkerOutcome::Ok {
        return fail(format!("the snippet `print` ended with {:?}", record.outcome));
    }
    let text = record.shown();
    if text.matches("windlass-print").count() == 1 {
        return Ok(());
    }
    fail(format!("the snippet `print` showed `{}` before idle", excerpt(text.as_bytes(), 80)))
}

fn turn_number(case: &mut CaseRun<'_>) -> Step {
    let code = case.code("print");
    case.worker.begin_turn(TurnNo(41));
    case.worker.send(&json!({"kind": "turn_start", "turn": 41}), code.as_bytes());
    case.worker.until_outcome(WorkerOutcome::Ok).map(drop)
}

fn output_before_idle(case: &mut CaseRun<'_>) -> Step {
    for _ in 0..30 {
        print(case)?;
    }
    case.worker.linger(LATE)?;
    match case.worker.unread().first() {
        None => Ok(()),
        Some(said) => {
            fail(format!("after idle came {}", excerpt(format!("{said:?}").as_bytes(), 120)))
        }
    }
}

fn state(case: &mut CaseRun<'_>) -> Step {
    case.worker.start_turn(&case.code("set"));
    case.worker.until_outcome(WorkerOutcome::Ok)?;
    check_state(case)
}

fn check_state(case: &mut CaseRun<'_>) -> Step {
    let record = case.worker.run(&case.code("get"))?;
    if record.outcome == WorkerOutcome::Ok && record.shown().contains("windlass-state") {
        return Ok(());
    }
    let text = record.everything();
    fail(format!("the variable is lost: `get` showed `{}`", excerpt(text.as_bytes(), 120)))
}

fn value(case: &mut CaseRun<'_>) -> Step {
    case.worker.start_turn(&case.code("value"));
    let record = case.worker.until_outcome(WorkerOutcome::Ok)?;
    let text = record.shown();
    if text.contains("42") {
        return Ok(());
    }
    fail(format!("the turn showed `{}`, not 42", excerpt(text.as_bytes(), 80)))
}

fn result_long(case: &mut CaseRun<'_>) -> Step {
    case.worker.start_turn(&case.code("result_big"));
    let record = case.worker.until_outcome(WorkerOutcome::Ok)?;
    let count = record.shown().matches('r').count();
    if count != 500_000 {
        return fail(format!("{count} of 500,000 characters arrived"));
    }
    case.still_works()
}

fn error(case: &mut CaseRun<'_>) -> Step {
    case.worker.start_turn(&case.code("error"));
    let record = case.worker.until_outcome(WorkerOutcome::Error)?;
    let traceback = [record.stream(Stream::Traceback), record.stream(Stream::Stderr)].concat();
    if !String::from_utf8_lossy(&traceback).contains("windlass-error") {
        return fail("neither the stream `traceback` nor standard error has the error's text");
    }
    match &record.error {
        Some(error) if !error.name.is_empty() => {}
        _ => return fail("idle has no `error` with a name and a message"),
    }
    case.still_works()
}

fn any_error(case: &mut CaseRun<'_>, snippet: &str) -> Step {
    case.worker.start_turn(&case.code(snippet));
    case.worker.until_outcome(WorkerOutcome::Error)?;
    case.still_works()
}

fn exit(case: &mut CaseRun<'_>, snippet: &str) -> Step<WorkerOutcome> {
    case.worker.start_turn(&case.code("set"));
    case.worker.until_outcome(WorkerOutcome::Ok)?;
    let record = case.worker.run(&case.code(snippet))?;
    if record.outcome == WorkerOutcome::Interrupted {
        return fail("the outcome is Interrupted, but nothing was interrupted");
    }
    check_state(case)?;
    Ok(record.outcome)
}

fn exit_outcome(case: &mut CaseRun<'_>) -> Step {
    for (snippet, expected) in [("exit_0", WorkerOutcome::Ok), ("exit_3", WorkerOutcome::Error)] {
        let outcome = exit(case, snippet)?;
        if outcome != expected {
            return fail(format!("the snippet `{snippet}` ended with {outcome:?}"));
        }
    }
    Ok(())
}
