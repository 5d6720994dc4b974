//! Turns that do not end by themselves: interrupted, past their deadline, killed, or ending their worker.

use std::time::Duration;

use serde_json::json;
use windlass_protocol::api::Turn;

use super::code::{self, Expected, TurnProgram};
use super::http_client::{HttpClient, code_of};
use super::model::{SessionModel, TurnKind};
use super::random::Random;
use super::raw_http::RawRequest;
use super::turns::{self, EarlyStop, Submission, submit, submit_as, wait_end};

/// Ways to run for ever.
const ENDLESS: [&str; 3] = ["time.sleep(100)", "[0 for _ in range(1000)]", "input()"];

/// A queued turn's gate, and the deadline of the turn behind it: longer than any fault stops a process.
const GATE_MS: u64 = 4000;
const BEHIND_GATE_MS: u64 = 3500;

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
    let submission = Submission::plain(program(code)).shaped(TurnKind::Interrupted);
    let id = submit(http, session, submission).await?;
    tokio::time::sleep(Duration::from_millis(*random.pick(&[0, 20, 200]))).await;
    let request = RawRequest::post(format!("{}/interrupt", session.turn_path(&id)), &json!({}));
    let answer = http.send_with_retry(&request, 0).await?;
    // A fault may have ended it, or the first attempt has and its answer was lost. Its outcome tells.
    let ended = match code_of(&answer).as_deref() {
        Some("turn_not_running") => true,
        Some("session_ended") => session.may_lose(&http.world),
        _ => false,
    };
    if answer.status != 200 && !ended {
        http.violation("interrupt", format!("{id} runs for ever: {}", answer.shown()));
    }
    wait_end(http, session, &id, random).await.map(drop)
}

/// An ended turn is still a turn, however long ago it ended: interrupting it changes nothing.
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
                http.violation("interrupt", format!("{id} ended {outcome:?}, now {now:?}"));
            }
        }
        (_, Some("turn_not_running")) => {}
        (_, Some("session_ended")) if session.may_end(&http.world) => {
            return Err(EarlyStop::SessionOver);
        }
        _ => http.violation("interrupt", format!("{id} has ended: {}", answer.shown())),
    }
    Ok(())
}

pub async fn deadline(
    http: &mut HttpClient,
    session: &mut SessionModel,
    random: &mut Random,
) -> Result<(), EarlyStop> {
    let code = "import time\nprint('go')\nwhile True: time.sleep(0.01)\n";
    let submission = Submission::plain(program(code)).shaped(TurnKind::Late);
    let submission = submission.due(*random.pick(&[50, 300, 600]));
    let submission = submission.waiting(*random.pick(&[0, 2000]));
    turns::run(http, session, submission, random).await.map(drop)
}

/// A turn's deadline counts from its start, also when it waited for longer than that, and also when the
/// node was replaced meanwhile.
pub async fn queued_deadline(
    http: &mut HttpClient,
    session: &mut SessionModel,
    random: &mut Random,
) -> Result<(), EarlyStop> {
    let gate = session.next_id();
    let gated = Submission::plain(code::slow(&gate, GATE_MS));
    submit_as(http, session, &gate, gated).await?;
    let id = session.next_id();
    let behind = Submission::plain(code::brief(&id)).due(BEHIND_GATE_MS);
    submit_as(http, session, &id, behind).await?;
    wait_end(http, session, &gate, random).await?;
    wait_end(http, session, &id, random).await.map(drop)
}

/// Code that swallows every interrupt: it is killed after the grace.
pub async fn stubborn(
    http: &mut HttpClient,
    session: &mut SessionModel,
    random: &mut Random,
) -> Result<(), EarlyStop> {
    let code = "import time\nwhile True:\n  try: time.sleep(1)\n  except BaseException: pass\n";
    let submission = Submission::plain(program(code)).shaped(TurnKind::Fatal).due(300);
    turns::run(http, session, submission, random).await.map(drop)
}

/// Code that ends its worker.
pub async fn exit(
    http: &mut HttpClient,
    session: &mut SessionModel,
    random: &mut Random,
) -> Result<(), EarlyStop> {
    let submission = Submission::plain(program("import os;os._exit(3)\n")).shaped(TurnKind::Fatal);
    turns::run(http, session, submission.waiting(2000), random).await.map(drop)
}
