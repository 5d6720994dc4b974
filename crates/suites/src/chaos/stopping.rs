//! Turns that do not end normally: interrupted turns, turns past their deadline, killed turns, and turns that
//! end their worker.

use std::time::Duration;

use serde_json::json;
use windlass_protocol::api::Turn;

use super::code::{self, Expected, TurnProgram};
use super::http_client::{HttpClient, code_of};
use super::model::{SessionModel, TurnKind};
use super::random::Random;
use super::raw_http::RawRequest;
use super::turns::{self, EarlyStop, Submission, submit, submit_as, wait_end};

/// Statements for an endless loop.
const ENDLESS: [&str; 3] = ["time.sleep(100)", "[0 for _ in range(1000)]", "input()"];

/// The run time of the first turn, and the deadline of the turn queued behind it. The deadline is longer than
/// any fault stops a process.
const FIRST_TURN_MS: u64 = 4000;
const QUEUED_DEADLINE_MS: u64 = 3500;

fn program(code: impl Into<String>) -> TurnProgram {
    TurnProgram { code: code.into(), expected: Expected::Anything }
}

pub async fn interrupt(
    http: &mut HttpClient,
    session: &mut SessionModel,
    random: &mut Random,
) -> Result<(), EarlyStop> {
    let endless = random.pick(&ENDLESS);
    let code = format!("import time\nprint('go')\nwhile True: {endless}\n");
    let submission = Submission::plain(program(code)).of_kind(TurnKind::Interrupted);
    let id = submit(http, session, submission).await?;
    tokio::time::sleep(Duration::from_millis(*random.pick(&[0, 20, 200]))).await;
    let request = RawRequest::post(format!("{}/interrupt", session.turn_path(&id)), &json!({}));
    let answer = http.send_with_retry(&request, 0).await?;
    // A fault may have ended the turn, or the first interrupt ended it and its answer was lost. The check of
    // its outcome decides.
    let ended = match code_of(&answer).as_deref() {
        Some("turn_not_running") => true,
        Some("session_ended") => session.may_lose(&http.world),
        _ => false,
    };
    if answer.status != 200 && !ended {
        http.violation(
            "interrupt",
            format!("{id} is endless, and its interrupt failed: {}", answer.shown()),
        );
    }
    wait_end(http, session, &id, random).await.map(drop)
}

/// Interrupts an ended turn. The outcome of the turn must not change.
pub async fn interrupt_ended(
    http: &mut HttpClient,
    session: &mut SessionModel,
    random: &mut Random,
) -> Result<(), EarlyStop> {
    let Some(old) = session.an_ended(random) else { return Ok(()) };
    let (id, outcome) = (old.id.clone(), old.outcome);
    let request = RawRequest::post(format!("{}/interrupt", session.turn_path(&id)), &json!({}));
    let answer = http.send_with_retry(&request, 0).await?;
    match (answer.status, code_of(&answer).as_deref()) {
        (200, _) => {
            let turn: Turn = http.read("an ended turn", &answer).ok_or(EarlyStop::GivenUp)?;
            if turn.outcome != outcome {
                let now = turn.outcome;
                http.violation(
                    "interrupt",
                    format!("{id} ended {outcome:?}, but now it is {now:?}"),
                );
            }
        }
        (_, Some("turn_not_running")) => {}
        (_, Some("session_ended")) if session.may_end(&http.world) => {
            return Err(EarlyStop::SessionOver);
        }
        _ => http.violation(
            "interrupt",
            format!("{id} has ended, and its interrupt failed: {}", answer.shown()),
        ),
    }
    Ok(())
}

pub async fn deadline(
    http: &mut HttpClient,
    session: &mut SessionModel,
    random: &mut Random,
) -> Result<(), EarlyStop> {
    let code = "import time\nprint('go')\nwhile True: time.sleep(0.01)\n";
    let submission = Submission::plain(program(code)).of_kind(TurnKind::Late);
    let submission = submission.due(*random.pick(&[50, 300, 600]));
    let submission = submission.waiting(*random.pick(&[0, 2000]));
    turns::run(http, session, submission, random).await.map(drop)
}

/// Queues a turn for longer than its deadline. The deadline counts from the turn's start, even if the node is
/// restarted meanwhile.
pub async fn queued_deadline(
    http: &mut HttpClient,
    session: &mut SessionModel,
    random: &mut Random,
) -> Result<(), EarlyStop> {
    let first = session.next_id();
    let slow = Submission::plain(code::slow(&first, FIRST_TURN_MS));
    submit_as(http, session, &first, slow).await?;
    let id = session.next_id();
    let queued = Submission::plain(code::brief(&id)).due(QUEUED_DEADLINE_MS);
    submit_as(http, session, &id, queued).await?;
    wait_end(http, session, &first, random).await?;
    wait_end(http, session, &id, random).await.map(drop)
}

/// Runs code that ignores every interrupt. The node must kill it after the grace period.
pub async fn stubborn(
    http: &mut HttpClient,
    session: &mut SessionModel,
    random: &mut Random,
) -> Result<(), EarlyStop> {
    let code = "import time\nwhile True:\n  try: time.sleep(1)\n  except BaseException: pass\n";
    let submission = Submission::plain(program(code)).of_kind(TurnKind::Fatal).due(300);
    turns::run(http, session, submission, random).await.map(drop)
}

/// Runs code that ends its worker.
pub async fn exit(
    http: &mut HttpClient,
    session: &mut SessionModel,
    random: &mut Random,
) -> Result<(), EarlyStop> {
    let submission = Submission::plain(program("import os;os._exit(3)\n")).of_kind(TurnKind::Fatal);
    turns::run(http, session, submission.waiting(2000), random).await.map(drop)
}
