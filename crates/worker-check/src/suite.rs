//! Runs the cases, each with a worker process and a directory of its own.

use std::io;
use std::path::Path;
use std::time::{Duration, Instant};

use crate::cases::{self, CaseClass, CaseRun, ConformanceCase};
use crate::driver::{ReadyFacts, WorkerDriver};
use crate::failure::{CaseFailure, Step};
use crate::processes::StartCommand;
use crate::report::{CaseReport, CaseVerdict, CheckReport};
use crate::snippets::SnippetSet;

/// What to check.
#[derive(Debug, Clone)]
pub struct CheckPlan {
    /// The worker's program and its arguments.
    pub command: Vec<String>,
    /// Variables of the worker's environment besides PATH, HOME, LANG and TMPDIR.
    pub environment: Vec<(String, String)>,
    pub snippets: Option<SnippetSet>,
    /// The names of the cases to run. Empty means all.
    pub cases: Vec<String>,
    /// Maximum time of one step of a case, for example the end of a turn.
    pub step_time: Duration,
}

/// The time of a step unless the user gives another.
pub const STEP_TIME: Duration = Duration::from_secs(10);

/// Why nothing could be checked.
#[derive(Debug, thiserror::Error)]
pub enum CheckError {
    #[error("there is no case `{name}`; the cases are {}", names())]
    UnknownCase { name: String },
    #[error("cannot make a directory for the worker")]
    NoDirectory(#[source] io::Error),
}

/// The names of all cases, for people.
pub fn names() -> String {
    let names: Vec<&str> = cases::all().map(|case| case.name).collect();
    names.join(", ")
}

/// Runs the cases one after the other. `done` is called after each.
pub fn check(
    plan: &CheckPlan,
    mut done: impl FnMut(&CaseReport),
) -> Result<CheckReport, CheckError> {
    let known = |name: &String| cases::all().any(|case| case.name == name);
    if let Some(name) = plan.cases.iter().find(|name| !known(name)) {
        return Err(CheckError::UnknownCase { name: name.clone() });
    }
    let mut report = CheckReport {
        command: plan.command.clone(),
        worker: None,
        capabilities: vec![],
        ready_ms: None,
        language: plan.snippets.as_ref().map(|set| set.language.clone()),
        cases: vec![],
    };
    let mut declared: Option<ReadyFacts> = None;
    let mut starts = true;
    for case in cases::all() {
        // The first case is run in any event: it learns the capabilities.
        let is_first = declared.is_none() && starts;
        let is_chosen = plan.cases.is_empty() || plan.cases.iter().any(|name| name == case.name);
        if !is_chosen && !is_first {
            continue;
        }
        let done_case = match not_applicable(case, plan, declared.as_ref(), starts) {
            Some(why) => CaseReport::new(case, CaseVerdict::NotApplicable(why)),
            None => {
                let (done_case, ready) = run_case(case, plan)?;
                starts &= ready.is_some();
                declared = declared.or(ready);
                done_case
            }
        };
        let is_failed = matches!(done_case.verdict, CaseVerdict::Failed(_));
        if is_chosen || is_failed {
            done(&done_case);
            report.cases.push(done_case);
        }
    }
    if let Some(ready) = declared {
        report.worker = Some(ready.worker);
        report.ready_ms = Some(millis(ready.after));
        report.capabilities = ready.capabilities;
    }
    Ok(report)
}

/// Why a case does not apply to this worker.
fn not_applicable(
    case: &ConformanceCase,
    plan: &CheckPlan,
    declared: Option<&ReadyFacts>,
    starts: bool,
) -> Option<String> {
    if !starts {
        return Some("the worker does not start".to_owned());
    }
    if let (CaseClass::Capability(name), Some(ready)) = (case.class, declared)
        && !ready.capabilities.iter().any(|capability| capability == name)
    {
        return Some(format!("no capability {name}"));
    }
    let has = |name: &&&str| plan.snippets.as_ref().is_some_and(|set| set.get(name).is_some());
    let missing = case.needs.iter().find(|name| !has(name))?;
    Some(format!("no snippet {missing}"))
}

fn run_case(
    case: &'static ConformanceCase,
    plan: &CheckPlan,
) -> Result<(CaseReport, Option<ReadyFacts>), CheckError> {
    let began = Instant::now();
    let directory = tempfile::Builder::new()
        .prefix("windlass-check-")
        .tempdir()
        .map_err(CheckError::NoDirectory)?;
    let command = StartCommand {
        argv: plan.command.clone(),
        environment: environment(plan, directory.path()),
    };
    let mut driver = match WorkerDriver::start(&command, directory.path(), plan.step_time) {
        Ok(driver) => driver,
        Err(error) => {
            let program = plan.command.first().map_or("", String::as_str);
            let why = format!("cannot start {program}: {error}");
            return Ok((CaseReport::new(case, CaseVerdict::Failed(why)), None));
        }
    };
    let (ready, mut result) = drive(case, plan, &mut driver);
    let ms = millis(began.elapsed());
    let (transcript, left) = driver.end();
    if !left.is_empty() && result.is_ok() {
        result = Err(CaseFailure(format!("processes could not be killed: {}", left.join(", "))));
    }
    let mut done = match result {
        Ok(()) => CaseReport::new(case, CaseVerdict::Passed),
        Err(CaseFailure(why)) => {
            let mut failed = CaseReport::new(case, CaseVerdict::Failed(why));
            failed.transcript = transcript.lines();
            failed.stderr = transcript.stderr();
            failed
        }
    };
    done.ms = ms;
    Ok((done, ready))
}

fn drive(
    case: &ConformanceCase,
    plan: &CheckPlan,
    driver: &mut WorkerDriver,
) -> (Option<ReadyFacts>, Step) {
    match driver.ready() {
        Ok(ready) => {
            let snippets = plan.snippets.as_ref();
            let mut run = CaseRun { worker: driver, ready: &ready, snippets };
            let result = (case.run)(&mut run);
            (Some(ready), result)
        }
        Err(failure) => (None, Err(failure)),
    }
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

fn environment(plan: &CheckPlan, directory: &Path) -> Vec<(String, String)> {
    let directory = directory.display().to_string();
    let mut environment = vec![
        ("PATH".to_owned(), std::env::var("PATH").unwrap_or_else(|_| "/usr/bin:/bin".to_owned())),
        ("HOME".to_owned(), directory.clone()),
        ("TMPDIR".to_owned(), directory),
        ("LANG".to_owned(), "C.UTF-8".to_owned()),
    ];
    environment.extend(plan.environment.iter().cloned());
    environment
}

impl CaseReport {
    fn new(case: &'static ConformanceCase, verdict: CaseVerdict) -> Self {
        let ConformanceCase { name, sentence, class, .. } = *case;
        Self { name, sentence, class, verdict, ms: 0, transcript: vec![], stderr: String::new() }
    }
}
