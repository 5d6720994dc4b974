//! Turns that do not end by themselves: interrupted, past their deadline, killed, or ending their worker.

use std::time::Duration;

use serde_json::json;
use windlass_protocol::api::Turn;

use super::asker::{Asker, code_of};
use super::code::{self, Expected, Program};
use super::http::Request;
use super::model::{SessionModel, Shape};
use super::random::Random;
use super::turns::{self, Stop, Submission, submit, submit_as, wait_end};

/// Ways to run for ever.
const ENDLESS: [&str; 3] = ["time.sleep(100)", "[0 for _ in range(1000)]", "input()"];

/// A queued turn's gate, and the deadline of the turn behind it: longer than any fault stops a process.
const GATE_MS: u64 = 4000;
const BEHIND_GATE_MS: u64 = 3500;

fn program(code: impl Into<String>) -> Program {
    Program { code: code.into(), expected: Expected::Anything }
}

pub async fn interrupt(
    asker: &mut Asker,
    session: &mut SessionModel,
    random: &mut Random,
) -> Result<(), Stop> {
    let endless = random.pick(&ENDLESS);
    let code = format!("import time\nprint('go')\nwhile True: {endless}\n");
    let submission = Submission::plain(program(code)).shaped(Shape::Interrupted);
    let id = submit(asker, session, submission).await?;
    tokio::time::sleep(Duration::from_millis(*random.pick(&[0, 20, 200]))).await;
    let request = Request::post(format!("{}/interrupt", session.turn_path(&id)), &json!({}));
    let answer = asker.patient(&request, 0).await?;
    // A fault may have ended it, or the first attempt has and its answer was lost. Its outcome tells.
    let ended = match code_of(&answer).as_deref() {
        Some("turn_not_running") => true,
        Some("session_ended") => session.may_lose(&asker.world),
        _ => false,
    };
    if answer.status != 200 && !ended {
        asker.violation("interrupt", format!("{id} runs for ever: {}", answer.shown()));
    }
    wait_end(asker, session, &id, random).await.map(drop)
}

/// An ended turn is still a turn, however long ago it ended: interrupting it changes nothing.
pub async fn interrupt_ended(
    asker: &mut Asker,
    session: &mut SessionModel,
    random: &mut Random,
) -> Result<(), Stop> {
    let Some(old) = session.an_ended(random) else { return Ok(()) };
    let (id, outcome) = (old.id.clone(), old.outcome);
    let request = Request::post(format!("{}/interrupt", session.turn_path(&id)), &json!({}));
    let answer = asker.patient(&request, 0).await?;
    match (answer.status, code_of(&answer).as_deref()) {
        (200, _) => {
            let turn: Turn = asker.read("an ended turn", &answer).ok_or(Stop::GivenUp)?;
            if turn.outcome != outcome {
                let now = turn.outcome;
                asker.violation("interrupt", format!("{id} ended {outcome:?}, now {now:?}"));
            }
        }
        (_, Some("turn_not_running")) => {}
        (_, Some("session_ended")) if session.may_end(&asker.world) => {
            return Err(Stop::SessionOver);
        }
        _ => asker.violation("interrupt", format!("{id} has ended: {}", answer.shown())),
    }
    Ok(())
}

pub async fn deadline(
    asker: &mut Asker,
    session: &mut SessionModel,
    random: &mut Random,
) -> Result<(), Stop> {
    let code = "import time\nprint('go')\nwhile True: time.sleep(0.01)\n";
    let submission = Submission::plain(program(code)).shaped(Shape::Late);
    let submission = submission.due(*random.pick(&[50, 300, 600]));
    let submission = submission.waiting(*random.pick(&[0, 2000]));
    turns::run(asker, session, submission, random).await.map(drop)
}

/// A turn's deadline counts from its start, also when it waited for longer than that, and also when the
/// node was replaced meanwhile.
pub async fn queued_deadline(
    asker: &mut Asker,
    session: &mut SessionModel,
    random: &mut Random,
) -> Result<(), Stop> {
    let gate = session.next_id();
    let gated = Submission::plain(code::slow(&gate, GATE_MS));
    submit_as(asker, session, &gate, gated).await?;
    let id = session.next_id();
    let behind = Submission::plain(code::brief(&id)).due(BEHIND_GATE_MS);
    submit_as(asker, session, &id, behind).await?;
    wait_end(asker, session, &gate, random).await?;
    wait_end(asker, session, &id, random).await.map(drop)
}

/// Code that swallows every interrupt: it is killed after the grace.
pub async fn stubborn(
    asker: &mut Asker,
    session: &mut SessionModel,
    random: &mut Random,
) -> Result<(), Stop> {
    let code = "import time\nwhile True:\n  try: time.sleep(1)\n  except BaseException: pass\n";
    let submission = Submission::plain(program(code)).shaped(Shape::Fatal).due(300);
    turns::run(asker, session, submission, random).await.map(drop)
}

/// Code that ends its worker.
pub async fn exit(
    asker: &mut Asker,
    session: &mut SessionModel,
    random: &mut Random,
) -> Result<(), Stop> {
    let submission = Submission::plain(program("import os;os._exit(3)\n")).shaped(Shape::Fatal);
    turns::run(asker, session, submission.waiting(2000), random).await.map(drop)
}
