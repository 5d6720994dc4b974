//! What a client can do to a session, and how often it does each. The operations that need more than a
//! few lines have files of their own.

use serde_json::json;
use windlass_protocol::api::{Turn, TurnState};

use super::asker::Asker;
use super::code::{self, Program};
use super::http::Request;
use super::model::{SessionModel, Shape};
use super::random::Random;
use super::turns::{
    self, Sending, Stop, Submission, look_until, read_output, submit, submit_as, wait_end,
};
use super::{input, rude, stopping};

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
    /// The client does these itself: they make or end sessions.
    Fork,
    Close,
}

/// Operations by weight: brief ones most often, so that many turns run; those that take seconds rarely.
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

/// The longest time between two pieces of a slow turn's client.
const SLOW_MS_MAX: u64 = 800;

/// Turns that one client queues at once.
const QUEUED_MAX: u64 = 12;

pub async fn perform(
    operation: Operation,
    asker: &mut Asker,
    session: &mut SessionModel,
    random: &mut Random,
) -> Result<(), Stop> {
    let plain = Submission::plain;
    match operation {
        Operation::Brief => {
            let id = session.next_id();
            named(asker, session, &id, plain(code::brief(&id)).waiting(2000), random).await
        }
        Operation::Numbered => {
            let id = session.next_id();
            let program = code::numbered(&id, random);
            let sending = if random.chance(30) { Sending::Twice } else { Sending::Once };
            let submission = plain(program).waiting(*random.pick(&[0, 1000])).sent(sending);
            named(asker, session, &id, submission, random).await
        }
        Operation::OddBytes => {
            let program = code::odd_bytes(random);
            turns::run(asker, session, plain(program).waiting(1000), random).await.map(drop)
        }
        Operation::TwoStreams => {
            let id = session.next_id();
            let program = code::two_streams(&id, random);
            named(asker, session, &id, plain(program).waiting(1000), random).await
        }
        Operation::Slow => {
            let id = session.next_id();
            let program = code::slow(&id, random.below(SLOW_MS_MAX));
            named(asker, session, &id, plain(program), random).await
        }
        Operation::WaitThatPasses => wait_that_passes(asker, session, random).await,
        Operation::Failing => {
            let id = session.next_id();
            let submission = plain(code::failing(&id)).shaped(Shape::Failing).waiting(1000);
            named(asker, session, &id, submission, random).await
        }
        Operation::State => turns::read_state(asker, session, random).await.map(drop),
        Operation::Variable => variable(asker, session, random).await,
        Operation::Queue => queue(asker, session, random).await,
        Operation::Resend => resend(asker, session, random).await,
        Operation::Look => turns::look_at_session(asker, session).await.map(drop),
        Operation::Input => input::input(asker, session, random).await,
        Operation::Interrupt => stopping::interrupt(asker, session, random).await,
        Operation::InterruptEnded => stopping::interrupt_ended(asker, session, random).await,
        Operation::Deadline => stopping::deadline(asker, session, random).await,
        Operation::QueuedDeadline => stopping::queued_deadline(asker, session, random).await,
        Operation::Stubborn => stopping::stubborn(asker, session, random).await,
        Operation::Exit => stopping::exit(asker, session, random).await,
        Operation::Cut => rude::cut(asker, session, random).await,
        Operation::HalfBody => rude::half_body(asker, session, random).await,
        Operation::LateBody => rude::late_body(asker, session, random).await,
        Operation::Malformed => rude::malformed(asker, session, random).await,
        Operation::Vanish => rude::vanish(asker, session, random).await,
        Operation::Fork | Operation::Close => Ok(()),
    }
}

/// Runs a turn whose program names its id.
async fn named(
    asker: &mut Asker,
    session: &mut SessionModel,
    id: &str,
    submission: Submission,
    random: &mut Random,
) -> Result<(), Stop> {
    submit_as(asker, session, id, submission).await?;
    wait_end(asker, session, id, random).await?;
    read_output(asker, session, id, random).await
}

/// A reply whose wait passes comes with the turn still there, and does not end it.
async fn wait_that_passes(
    asker: &mut Asker,
    session: &mut SessionModel,
    random: &mut Random,
) -> Result<(), Stop> {
    let id = session.next_id();
    submit_as(asker, session, &id, Submission::plain(code::slow(&id, 300)).waiting(20)).await?;
    let all = [TurnState::Running, TurnState::Waiting];
    look_until(asker, session, &id, random, &all).await?;
    wait_end(asker, session, &id, random).await?;
    read_output(asker, session, &id, random).await
}

/// A variable that one turn sets and the next one reads.
async fn variable(
    asker: &mut Asker,
    session: &mut SessionModel,
    random: &mut Random,
) -> Result<(), Stop> {
    let value = random.next();
    let set =
        Program { code: format!("kept={value}\n"), expected: code::Expected::Exactly(vec![]) };
    turns::run(asker, session, Submission::plain(set).waiting(1000), random).await?;
    let read = Program { code: "print(kept)\n".to_owned(), expected: code::Expected::Anything };
    // A worker that was killed between the two has forgotten it.
    let submission = Submission::plain(read).shaped(Shape::Either).waiting(1000);
    let id = submit(asker, session, submission).await?;
    let turn = wait_end(asker, session, &id, random).await?;
    read_output(asker, session, &id, random).await?;
    check_value(asker, session, &turn, value);
    Ok(())
}

fn check_value(asker: &Asker, session: &mut SessionModel, turn: &Turn, value: u64) {
    let ended_ok = turn.outcome == Some(windlass_protocol::Outcome::Ok);
    let output = session.turn(turn.id.as_str()).and_then(|turn| turn.output.clone());
    if let Some(output) = output.filter(|_| ended_ok)
        && output != format!("{value}\n").into_bytes()
    {
        let got = String::from_utf8_lossy(&output).into_owned();
        asker.violation("variable", format!("{}: {value} was set, and is {got:?}", turn.id));
    }
}

/// Several turns at once, some sent twice; they run in the order accepted.
async fn queue(
    asker: &mut Asker,
    session: &mut SessionModel,
    random: &mut Random,
) -> Result<(), Stop> {
    let mut ids = Vec::new();
    for _ in 0..random.within(2, QUEUED_MAX) {
        let id = session.next_id();
        let sending = if random.chance(20) { Sending::Twice } else { Sending::Once };
        submit_as(asker, session, &id, Submission::plain(code::brief(&id)).sent(sending)).await?;
        ids.push(id);
    }
    for id in ids {
        wait_end(asker, session, &id, random).await?;
        read_output(asker, session, &id, random).await?;
    }
    Ok(())
}

/// An old turn's id once more, with other code: the same turn, and nothing runs.
async fn resend(
    asker: &mut Asker,
    session: &mut SessionModel,
    random: &mut Random,
) -> Result<(), Stop> {
    let Some(old) = session.an_ended(random) else { return Ok(()) };
    let (id, outcome) = (old.id.clone(), old.outcome);
    let body = json!({"id": id, "code": session.code(&id, "print('AGAIN')\n"), "wait_ms": 1000});
    let request = Request::post(format!("{}/turns", session.path()), &body);
    let answer = asker.patient(&request, 1000).await?;
    if answer.status != 200 {
        if session.may_end(&asker.world) {
            return Err(Stop::SessionOver);
        }
        asker.violation("twice", format!("{id} sent again: {}", answer.shown()));
        return Ok(());
    }
    let turn: Turn = asker.read("a turn sent again", &answer).ok_or(Stop::GivenUp)?;
    if turn.outcome != outcome {
        let now = (turn.state, turn.outcome);
        asker.violation("twice", format!("{id} ended {outcome:?}; sent again, it is {now:?}"));
    }
    Ok(())
}
