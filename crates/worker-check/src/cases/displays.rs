//! Rich output.

use windlass_protocol::worker::WorkerOutcome;

use super::{CaseRun, ConformanceCase, DISPLAY};
use crate::failure::{Step, fail};

pub(super) const CASES: &[ConformanceCase] = &[ConformanceCase {
    name: "display",
    sentence: "Rich output arrives once, whole, before idle.",
    class: DISPLAY,
    needs: &["display"],
    run: display,
}];

fn display(case: &mut CaseRun<'_>) -> Step {
    case.worker.start_turn(&case.code("display"));
    let record = case.worker.until_outcome(WorkerOutcome::Ok)?;
    match record.displays() {
        1 => Ok(()),
        count => fail(format!("{count} displays arrived, not 1")),
    }
}
