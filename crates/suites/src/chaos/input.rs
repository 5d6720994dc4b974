//! A turn that asks for input and must get it exactly once, even if the connection breaks while the client
//! sends it.

use std::time::Duration;

use serde_json::json;
use windlass_protocol::Outcome;
use windlass_protocol::api::TurnState;

use super::code::{Expected, TurnProgram};
use super::http_client::{HttpClient, NoAnswer, code_of};
use super::model::SessionModel;
use super::random::Random;
use super::raw_http::RawRequest;
use super::turns::{EarlyStop, Submission, look_until, read_output, submit_as, wait_end};

/// The most attempts to send one input.
const ATTEMPTS_MAX: usize = 40;

/// The time before the turn is read again to see whether it got the input.
const LOOK_AGAIN: Duration = Duration::from_millis(200);

pub async fn input(
    http: &mut HttpClient,
    session: &mut SessionModel,
    random: &mut Random,
) -> Result<(), EarlyStop> {
    let id = session.next_id();
    let word = format!("word{:016x}", random.next());
    let code = format!("x=input('give {id}>')\nprint('GOT',x)\n");
    let program = TurnProgram { code, expected: Expected::Anything };
    let submission = Submission::plain(program).waiting(*random.pick(&[0, 2000]));
    submit_as(http, session, &id, submission).await?;
    let turn = look_until(http, session, &id, random, &[TurnState::AwaitingInput]).await?;
    if turn.state != TurnState::Ended {
        let prompt = turn.stdin_wait.map(|wait| wait.prompt).unwrap_or_default();
        if prompt != format!("give {id}>") {
            http.violation("mixed", format!("{id} asks with the prompt {prompt:?}"));
        }
        send_input(http, session, &id, &word, random).await?;
    }
    let turn = wait_end(http, session, &id, random).await?;
    read_output(http, session, &id, random).await?;
    // Output that was dropped because the disk was full cannot be compared.
    let Some(output) = session.turn(&id).and_then(|turn| turn.output.clone()) else {
        return Ok(());
    };
    let text = String::from_utf8_lossy(&output).into_owned();
    if turn.outcome == Some(Outcome::Ok) && !text.contains(&format!("GOT {word}")) {
        http.violation("input", format!("{id} got the input {word}, but printed {text:?}"));
    }
    Ok(())
}

/// Sends the word until the turn no longer waits for input. Sending input is not idempotent, so after a
/// broken connection the turn is read first.
async fn send_input(
    http: &mut HttpClient,
    session: &mut SessionModel,
    id: &str,
    word: &str,
    random: &mut Random,
) -> Result<(), EarlyStop> {
    let path = format!("{}/input", session.turn_path(id));
    let request = RawRequest::post(path, &json!({"text": format!("{word}\n")}));
    for _ in 0..ATTEMPTS_MAX {
        match http.send_once(&request, 0).await {
            Ok(answer) => match code_of(&answer).as_deref() {
                None => return Ok(()),
                Some("shutting_down" | "overloaded" | "disk_full") => {}
                Some("turn_not_running" | "session_ended") if session.may_lose(&http.world) => {
                    return Ok(());
                }
                // The first attempt may have arrived although its connection broke.
                Some("turn_not_running") => return Ok(()),
                Some(_) => {
                    http.violation(
                        "input",
                        format!("{id} waits for input, but: {}", answer.shown()),
                    );
                    return Ok(());
                }
            },
            Err(NoAnswer::Cut(_)) => {}
            Err(_) => return Err(EarlyStop::GivenUp),
        }
        tokio::time::sleep(LOOK_AGAIN).await;
        let states = [TurnState::AwaitingInput, TurnState::Running];
        let turn = look_until(http, session, id, random, &states).await?;
        if turn.state == TurnState::Ended {
            return Ok(());
        }
        if turn.state == TurnState::Running {
            tokio::time::sleep(LOOK_AGAIN).await;
        }
    }
    http.violation("input", format!("{id} did not get its input in {ATTEMPTS_MAX} attempts"));
    Ok(())
}
