//! A turn that asks for input, and gets it once, also when the connection breaks while it is given.

use std::time::Duration;

use serde_json::json;
use windlass_protocol::Outcome;
use windlass_protocol::api::TurnState;

use super::asker::{Asker, NoAnswer, code_of};
use super::code::{Expected, Program};
use super::http::Request;
use super::model::SessionModel;
use super::random::Random;
use super::turns::{Stop, Submission, look_until, read_output, submit_as, wait_end};

/// How often an input is given whose fate is not known.
const ATTEMPTS_MAX: usize = 40;

/// Before a turn is looked at again that may have got its input.
const LOOK_AGAIN: Duration = Duration::from_millis(200);

pub async fn input(
    asker: &mut Asker,
    session: &mut SessionModel,
    random: &mut Random,
) -> Result<(), Stop> {
    let id = session.next_id();
    let word = format!("word{:016x}", random.next());
    let code = format!("x=input('give {id}>')\nprint('GOT',x)\n");
    let program = Program { code, expected: Expected::Anything };
    let submission = Submission::plain(program).waiting(*random.pick(&[0, 2000]));
    submit_as(asker, session, &id, submission).await?;
    let turn = look_until(asker, session, &id, random, &[TurnState::AwaitingInput]).await?;
    if turn.state != TurnState::Ended {
        let prompt = turn.stdin_wait.map(|wait| wait.prompt).unwrap_or_default();
        if prompt != format!("give {id}>") {
            asker.violation("mixed", format!("{id} asks with {prompt:?}"));
        }
        give(asker, session, &id, &word, random).await?;
    }
    let turn = wait_end(asker, session, &id, random).await?;
    read_output(asker, session, &id, random).await?;
    // Output that a full disk dropped cannot be compared.
    let Some(output) = session.turn(&id).and_then(|turn| turn.output.clone()) else {
        return Ok(());
    };
    let text = String::from_utf8_lossy(&output).into_owned();
    if turn.outcome == Some(Outcome::Ok) && !text.contains(&format!("GOT {word}")) {
        asker.violation("input", format!("{id} was given {word}, and printed {text:?}"));
    }
    Ok(())
}

/// Gives the word until the turn does not wait for it any more. Giving is not repeatable: after a broken
/// connection the turn is looked at first.
async fn give(
    asker: &mut Asker,
    session: &mut SessionModel,
    id: &str,
    word: &str,
    random: &mut Random,
) -> Result<(), Stop> {
    let path = format!("{}/input", session.turn_path(id));
    let request = Request::post(path, &json!({"text": format!("{word}\n")}));
    for _ in 0..ATTEMPTS_MAX {
        match asker.once(&request, 0).await {
            Ok(answer) => match code_of(&answer).as_deref() {
                None => return Ok(()),
                Some("shutting_down" | "overloaded" | "disk_full") => {}
                Some("turn_not_running" | "session_ended") if session.may_lose(&asker.world) => {
                    return Ok(());
                }
                // The first attempt may have got through although its connection broke.
                Some("turn_not_running") => return Ok(()),
                Some(_) => {
                    asker.violation("input", format!("{id} waits: {}", answer.shown()));
                    return Ok(());
                }
            },
            Err(NoAnswer::Cut(_)) => {}
            Err(_) => return Err(Stop::GivenUp),
        }
        tokio::time::sleep(LOOK_AGAIN).await;
        let states = [TurnState::AwaitingInput, TurnState::Running];
        let turn = look_until(asker, session, id, random, &states).await?;
        if turn.state == TurnState::Ended {
            return Ok(());
        }
        if turn.state == TurnState::Running {
            tokio::time::sleep(LOOK_AGAIN).await;
        }
    }
    asker.violation("input", format!("{id}: {ATTEMPTS_MAX} attempts did not reach it"));
    Ok(())
}
