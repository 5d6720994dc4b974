//! The operations that a client performs on a session, with their weights. Operations of more than a few
//! lines are in `input`, `misbehaving` and `stopping`.

use serde_json::json;
use windlass_protocol::api::{Turn, TurnState};

use super::code::{self, TurnProgram};
use super::http_client::HttpClient;
use super::model::{SessionModel, TurnKind};
use super::random::Random;
use super::raw_http::RawRequest;
use super::turns::{
    self, EarlyStop, Sending, Submission, look_until, read_output, submit, submit_as, wait_end,
};
use super::{input, misbehaving, stopping};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Operation {
    Brief,
    Numbered,
    OddBytes,
    TwoStreams,
    Slow,
    WaitThatPasses,
    Failing,
    State,
    Variable,
    Queue,
    Resend,
    Look,
    Input,
    Interrupt,
    InterruptEnded,
    Deadline,
    QueuedDeadline,
    Stubborn,
    Exit,
    Cut,
    HalfBody,
    LateBody,
    Malformed,
    Vanish,
    /// The client performs these two itself, because they create or end sessions.
    Fork,
    Close,
}

/// Operations with their weights. Short operations come most often, so that many turns run. Operations that
/// take seconds are rare.
pub const OPERATIONS: [(Operation, u64); 26] = [
    (Operation::Brief, 20),
    (Operation::Numbered, 12),
    (Operation::OddBytes, 4),
    (Operation::TwoStreams, 5),
    (Operation::Slow, 2),
    (Operation::WaitThatPasses, 2),
    (Operation::Failing, 5),
    (Operation::State, 10),
    (Operation::Variable, 6),
    (Operation::Queue, 10),
    (Operation::Resend, 6),
    (Operation::Look, 4),
    (Operation::Input, 4),
    (Operation::Interrupt, 4),
    (Operation::InterruptEnded, 2),
    (Operation::Deadline, 2),
    (Operation::QueuedDeadline, 1),
    (Operation::Stubborn, 1),
    (Operation::Exit, 1),
    (Operation::Cut, 5),
    (Operation::HalfBody, 2),
    (Operation::LateBody, 2),
    (Operation::Malformed, 4),
    (Operation::Vanish, 3),
    (Operation::Fork, 2),
    (Operation::Close, 2),
];

/// The longest run time of a slow turn.
const SLOW_MS_MAX: u64 = 800;

/// The most turns that one client queues at once.
const QUEUED_MAX: u64 = 12;

pub async fn perform(
    operation: Operation,
    http: &mut HttpClient,
    session: &mut SessionModel,
    random: &mut Random,
) -> Result<(), EarlyStop> {
    let plain = Submission::plain;
    match operation {
        Operation::Brief => {
            let id = session.next_id();
            named(http, session, &id, plain(code::brief(&id)).waiting(2000), random).await
        }
        Operation::Numbered => {
            let id = session.next_id();
            let program = code::numbered(&id, random);
            let sending = if random.chance(30) { Sending::Twice } else { Sending::Once };
            let submission = plain(program).waiting(*random.pick(&[0, 1000])).sent(sending);
            named(http, session, &id, submission, random).await
        }
        Operation::OddBytes => {
            let program = code::odd_bytes(random);
            turns::run(http, session, plain(program).waiting(1000), random).await.map(drop)
        }
        Operation::TwoStreams => {
            let id = session.next_id();
            let program = code::two_streams(&id, random);
            named(http, session, &id, plain(program).waiting(1000), random).await
        }
        Operation::Slow => {
            let id = session.next_id();
            let program = code::slow(&id, random.below(SLOW_MS_MAX));
            named(http, session, &id, plain(program), random).await
        }
        Operation::WaitThatPasses => wait_that_passes(http, session, random).await,
        Operation::Failing => {
            let id = session.next_id();
            let submission = plain(code::failing(&id)).of_kind(TurnKind::Failing).waiting(1000);
            named(http, session, &id, submission, random).await
        }
        Operation::State => turns::read_state(http, session, random).await.map(drop),
        Operation::Variable => variable(http, session, random).await,
        Operation::Queue => queue(http, session, random).await,
        Operation::Resend => resend(http, session, random).await,
        Operation::Look => turns::look_at_session(http, session).await.map(drop),
        Operation::Input => input::input(http, session, random).await,
        Operation::Interrupt => stopping::interrupt(http, session, random).await,
        Operation::InterruptEnded => stopping::interrupt_ended(http, session, random).await,
        Operation::Deadline => stopping::deadline(http, session, random).await,
        Operation::QueuedDeadline => stopping::queued_deadline(http, session, random).await,
        Operation::Stubborn => stopping::stubborn(http, session, random).await,
        Operation::Exit => stopping::exit(http, session, random).await,
        Operation::Cut => misbehaving::cut(http, session, random).await,
        Operation::HalfBody => misbehaving::half_body(http, session, random).await,
        Operation::LateBody => misbehaving::late_body(http, session, random).await,
        Operation::Malformed => misbehaving::malformed(http, session, random).await,
        Operation::Vanish => misbehaving::vanish(http, session, random).await,
        Operation::Fork | Operation::Close => Ok(()),
    }
}

/// Runs a turn whose code contains the turn's id.
async fn named(
    http: &mut HttpClient,
    session: &mut SessionModel,
    id: &str,
    submission: Submission,
    random: &mut Random,
) -> Result<(), EarlyStop> {
    submit_as(http, session, id, submission).await?;
    wait_end(http, session, id, random).await?;
    read_output(http, session, id, random).await
}

/// The wait of a submission ends before the turn does. The answer shows the running turn, and the turn goes
/// on.
async fn wait_that_passes(
    http: &mut HttpClient,
    session: &mut SessionModel,
    random: &mut Random,
) -> Result<(), EarlyStop> {
    let id = session.next_id();
    submit_as(http, session, &id, Submission::plain(code::slow(&id, 300)).waiting(20)).await?;
    let all = [TurnState::Running, TurnState::Waiting];
    look_until(http, session, &id, random, &all).await?;
    wait_end(http, session, &id, random).await?;
    read_output(http, session, &id, random).await
}

/// One turn sets a variable and the next one reads it.
async fn variable(
    http: &mut HttpClient,
    session: &mut SessionModel,
    random: &mut Random,
) -> Result<(), EarlyStop> {
    let value = random.next();
    let set =
        TurnProgram { code: format!("kept={value}\n"), expected: code::Expected::Exactly(vec![]) };
    turns::run(http, session, Submission::plain(set).waiting(1000), random).await?;
    let read = TurnProgram { code: "print(kept)\n".to_owned(), expected: code::Expected::Anything };
    // If the worker is killed between the two turns, the variable is lost.
    let submission = Submission::plain(read).of_kind(TurnKind::Either).waiting(1000);
    let id = submit(http, session, submission).await?;
    let turn = wait_end(http, session, &id, random).await?;
    read_output(http, session, &id, random).await?;
    check_value(http, session, &turn, value);
    Ok(())
}

fn check_value(http: &HttpClient, session: &mut SessionModel, turn: &Turn, value: u64) {
    let ended_ok = turn.outcome == Some(windlass_protocol::Outcome::Ok);
    let output = session.turn(turn.id.as_str()).and_then(|turn| turn.output.clone());
    if let Some(output) = output.filter(|_| ended_ok)
        && output != format!("{value}\n").into_bytes()
    {
        let got = String::from_utf8_lossy(&output).into_owned();
        http.violation(
            "variable",
            format!("{}: the variable was set to {value}, and is {got:?}", turn.id),
        );
    }
}

/// Submits several turns at once, some of them twice.
async fn queue(
    http: &mut HttpClient,
    session: &mut SessionModel,
    random: &mut Random,
) -> Result<(), EarlyStop> {
    let mut ids = Vec::new();
    for _ in 0..random.within(2, QUEUED_MAX) {
        let id = session.next_id();
        let sending = if random.chance(20) { Sending::Twice } else { Sending::Once };
        submit_as(http, session, &id, Submission::plain(code::brief(&id)).sent(sending)).await?;
        ids.push(id);
    }
    for id in ids {
        wait_end(http, session, &id, random).await?;
        read_output(http, session, &id, random).await?;
    }
    Ok(())
}

/// Submits the id of an ended turn again, with other code. The answer must be the old turn, and no code may
/// run.
async fn resend(
    http: &mut HttpClient,
    session: &mut SessionModel,
    random: &mut Random,
) -> Result<(), EarlyStop> {
    let Some(old) = session.an_ended(random) else { return Ok(()) };
    let (id, outcome) = (old.id.clone(), old.outcome);
    let body = json!({"id": id, "code": session.code(&id, "print('AGAIN')\n"), "wait_ms": 1000});
    let request = RawRequest::post(format!("{}/turns", session.path()), &body);
    let answer = http.send_with_retry(&request, 1000).await?;
    if answer.status != 200 {
        if session.may_end(&http.world) {
            return Err(EarlyStop::SessionOver);
        }
        http.violation("twice", format!("{id} was submitted again: {}", answer.shown()));
        return Ok(());
    }
    let turn: Turn = http.read("a turn sent again", &answer).ok_or(EarlyStop::GivenUp)?;
    if turn.outcome != outcome {
        let now = (turn.state, turn.outcome);
        http.violation("twice", format!("{id} ended {outcome:?}; submitted again, it is {now:?}"));
    }
    Ok(())
}
