//! What processes that the code starts can reach.

use rustix::process::Pid;
use windlass_protocol::worker::FD_VARIABLE;

use super::{CaseClass, CaseRun, ConformanceCase};
use crate::failure::{Step, fail};
use crate::processes::has_variable;

pub(super) const CASES: &[ConformanceCase] = &[
    ConformanceCase {
        name: "socket-in-child",
        sentence: "A program that the code starts does not have the protocol socket.",
        class: CaseClass::Required,
        needs: &["child"],
        run: |case| no_socket(case, "child"),
    },
    ConformanceCase {
        name: "socket-in-fork",
        sentence: "A process that the code forks does not have the protocol socket.",
        class: CaseClass::Required,
        needs: &["fork"],
        run: |case| no_socket(case, "fork"),
    },
    ConformanceCase {
        name: "environment",
        sentence: "WINDLASS_FD is not in the environment of a program that the code starts.",
        class: CaseClass::Advisory,
        needs: &["child"],
        run: environment,
    },
];

/// The processes below the worker while a snippet waits for its child.
fn below(case: &mut CaseRun<'_>, snippet: &str) -> Step<Vec<Pid>> {
    case.worker.start_turn(&case.code(snippet));
    case.worker.until_shown("windlass-started")?;
    match case.worker.process().descendants() {
        found if found.is_empty() => fail("there is no process below the worker"),
        found => Ok(found),
    }
}

fn no_socket(case: &mut CaseRun<'_>, snippet: &str) -> Step {
    for pid in below(case, snippet)? {
        if case.worker.process().reaches_socket(pid) {
            return fail(format!("process {pid} has the protocol socket"));
        }
    }
    Ok(())
}

fn environment(case: &mut CaseRun<'_>) -> Step {
    for pid in below(case, "child")? {
        // A process that has just ended has no environment.
        if has_variable(pid, FD_VARIABLE).unwrap_or(false) {
            return fail(format!("process {pid} has {FD_VARIABLE} in its environment"));
        }
    }
    Ok(())
}
