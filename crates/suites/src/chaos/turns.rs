//! How turns are submitted, waited for and read, whatever they do: each answer is compared with the model
//! of its session.

use std::time::{Duration, Instant};

use serde_json::{Value, json};
use windlass_protocol::Outcome;
use windlass_protocol::api::{Session, SessionState, Turn, TurnState};

use super::asker::{Asker, NoAnswer, code_of};
use super::code::{self, Program};
use super::http::Request;
use super::model::{SessionModel, Shape};
use super::random::Random;
use super::world::World;

/// How long a turn may take that is not told to run longer.
const TURN_MAX: Duration = Duration::from_secs(90);

/// Requests for one turn's output.
const RANGES_MAX: usize = 5000;

/// After so many ranges of random sizes, the rest is read in large ones.
const SMALL_RANGES_MAX: usize = 20;

/// Why an operation stops early.
#[derive(Debug)]
pub enum Stop {
    /// The session has ended, as it may.
    SessionOver,
    /// There is nothing more to do here; what was wrong is told.
    GivenUp,
}

impl From<NoAnswer> for Stop {
    fn from(_: NoAnswer) -> Self {
        Self::GivenUp
    }
}

/// How a turn is sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sending {
    Once,
    /// The same request on two connections at the same time.
    Twice,
}

/// A turn to submit.
#[derive(Debug)]
pub struct Submission {
    pub shape: Shape,
    pub program: Program,
    pub wait_ms: u64,
    pub deadline_ms: Option<u64>,
    pub sending: Sending,
}

impl Submission {
    pub fn plain(program: Program) -> Self {
        Self { shape: Shape::Plain, program, wait_ms: 0, deadline_ms: None, sending: Sending::Once }
    }

    pub fn shaped(mut self, shape: Shape) -> Self {
        self.shape = shape;
        self
    }

    pub fn waiting(mut self, wait_ms: u64) -> Self {
        self.wait_ms = wait_ms;
        self
    }

    pub fn due(mut self, deadline_ms: u64) -> Self {
        self.deadline_ms = Some(deadline_ms);
        self
    }

    pub fn sent(mut self, sending: Sending) -> Self {
        self.sending = sending;
        self
    }
}

/// Submits a turn and gives its id.
pub async fn submit(
    asker: &mut Asker,
    session: &mut SessionModel,
    submission: Submission,
) -> Result<String, Stop> {
    let id = session.next_id();
    submit_as(asker, session, &id, submission).await?;
    Ok(id)
}

/// Submits a turn whose code was written for the id.
pub async fn submit_as(
    asker: &mut Asker,
    session: &mut SessionModel,
    id: &str,
    submission: Submission,
) -> Result<(), Stop> {
    let Submission { shape, program, wait_ms, deadline_ms, sending } = submission;
    session.expect(&asker.world, id, shape, program.expected);
    let mut body = json!({"id": id, "code": session.code(id, &program.code), "wait_ms": wait_ms});
    if let Some(deadline_ms) = deadline_ms {
        body["deadline_ms"] = json!(deadline_ms);
    }
    let request = Request::post(format!("{}/turns", session.path()), &body);
    let answer = match sending {
        Sending::Once => asker.patient(&request, wait_ms).await?,
        Sending::Twice => {
            let mut other = asker.beside();
            let (first, _) =
                tokio::join!(asker.patient(&request, wait_ms), other.once(&request, wait_ms));
            first?
        }
    };
    if answer.status != 200 {
        if let Some(turn) = session.turn(id) {
            turn.refused = true;
        }
        return Err(refused(asker, session, id, code_of(&answer), &answer.shown()));
    }
    let turn: Turn = asker.read("a submitted turn", &answer).ok_or(Stop::GivenUp)?;
    check_names(asker, session, id, &turn);
    Ok(())
}

/// A refusal of a turn: only a session that may end refuses one for good.
fn refused(
    asker: &Asker,
    session: &SessionModel,
    id: &str,
    code: Option<String>,
    shown: &str,
) -> Stop {
    let over = code.as_deref() == Some("session_ended");
    if over && session.may_end(&asker.world) {
        return Stop::SessionOver;
    }
    asker.violation("submit", format!("{id} is refused: {shown}"));
    if over { Stop::SessionOver } else { Stop::GivenUp }
}

fn check_names(asker: &Asker, session: &SessionModel, id: &str, turn: &Turn) {
    if turn.id.as_str() != id || turn.session.as_str() != session.id {
        let (got, of) = (&turn.id, &turn.session);
        asker.violation("mixed", format!("asked for {id} of {}, got {got} of {of}", session.id));
    }
}

/// Looks at a turn until it is in one of the states, or has ended.
pub async fn look_until(
    asker: &mut Asker,
    session: &mut SessionModel,
    id: &str,
    random: &mut Random,
    states: &[TurnState],
) -> Result<Turn, Stop> {
    let began = Instant::now();
    loop {
        let wait_ms = *random.pick(&[0, 200, 2000, 2000]);
        let budget = *random.pick(&[0, 100, 16384]);
        let path = session.turn_path(id);
        let path = format!("{path}?wait_ms={wait_ms}&output_bytes_max={budget}");
        let answer = asker.patient(&Request::get(path), wait_ms).await?;
        if answer.status != 200 {
            asker.violation("turn", format!("{id} was accepted, and now: {}", answer.shown()));
            return Err(Stop::GivenUp);
        }
        let turn: Turn = asker.read("a turn", &answer).ok_or(Stop::GivenUp)?;
        check_names(asker, session, id, &turn);
        if turn.state == TurnState::Ended {
            if let Some(fault) = session.ended(&asker.world, &turn) {
                asker.violation("outcome", fault);
            }
            return Ok(turn);
        }
        if states.contains(&turn.state) {
            return Ok(turn);
        }
        if began.elapsed() > TURN_MAX {
            asker.violation("hang", format!("{id} is {:?} after {TURN_MAX:?}", turn.state));
            return Err(Stop::GivenUp);
        }
        if wait_ms == 0 {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
}

pub async fn wait_end(
    asker: &mut Asker,
    session: &mut SessionModel,
    id: &str,
    random: &mut Random,
) -> Result<Turn, Stop> {
    look_until(asker, session, id, random, &[]).await
}

/// Submits, waits, and reads the output where there is something to compare.
pub async fn run(
    asker: &mut Asker,
    session: &mut SessionModel,
    submission: Submission,
    random: &mut Random,
) -> Result<Turn, Stop> {
    let id = submit(asker, session, submission).await?;
    let turn = wait_end(asker, session, &id, random).await?;
    read_output(asker, session, &id, random).await?;
    Ok(turn)
}

/// Reads a turn's output in ranges of random sizes, and compares it with what was expected.
pub async fn read_output(
    asker: &mut Asker,
    session: &mut SessionModel,
    id: &str,
    random: &mut Random,
) -> Result<(), Stop> {
    let mut got = Vec::new();
    let mut at = 0;
    for round in 0..RANGES_MAX {
        let size = *random.pick(&[1, 10, 777, 65_536, 1 << 20]);
        let range = match round > SMALL_RANGES_MAX || random.chance(60) {
            true if random.chance(5) => format!("from={at}&to={}", u64::MAX),
            true => format!("from={at}"),
            false => format!("from={at}&to={}", at + size),
        };
        let path = format!("{}/output?turn={id}&{range}", session.path());
        let answer = asker.patient(&Request::get(path), 0).await?;
        let number = |name: &str| answer.header(name).and_then(|text| text.parse::<u64>().ok());
        let (next, total) = (number("windlass-output-next"), number("windlass-output-total"));
        let (Some(next), Some(total), 200) = (next, total, answer.status) else {
            asker.violation("output", format!("{id}: {range}: {}", answer.shown()));
            return Ok(());
        };
        if number("windlass-output-dropped") != Some(0) {
            return dropped(asker, session, id);
        }
        got.extend_from_slice(&answer.body);
        if next >= total {
            break;
        }
        if next <= at {
            asker.violation("output", format!("{id}: {range} leads to {next} of {total}"));
            return Ok(());
        }
        at = next;
    }
    let Some(turn) = session.turn(id) else { return Ok(()) };
    if let Some(fault) = code::difference(&turn.expected, &got, turn.outcome == Some(Outcome::Ok)) {
        let text = format!("{id} ({:?}, {:?}): {fault}", turn.shape, turn.outcome);
        asker.violation("output", text);
    }
    turn.output = Some(got);
    Ok(())
}

/// Bytes may be missing only where the disk was full meanwhile.
fn dropped(asker: &Asker, session: &mut SessionModel, id: &str) -> Result<(), Stop> {
    let Some(turn) = session.turn(id) else { return Ok(()) };
    match asker.world.disk.since(turn.disk) {
        true => asker.world.ledger.count("turns with dropped output"),
        false => {
            asker.violation("output", format!("{id}: bytes are missing, and no disk was full"))
        }
    }
    Ok(())
}

/// Runs a turn that tells what the session's memory holds; gives that, when the turn ended well.
pub async fn read_state(
    asker: &mut Asker,
    session: &mut SessionModel,
    random: &mut Random,
) -> Result<Option<Vec<String>>, Stop> {
    let program = Program { code: code::state().to_owned(), expected: code::Expected::Anything };
    let sending = if random.chance(30) { Sending::Twice } else { Sending::Once };
    let submission = Submission::plain(program).waiting(3000).sent(sending);
    let turn = run(asker, session, submission, random).await?;
    if turn.outcome != Some(Outcome::Ok) {
        return Ok(None);
    }
    let token = session.token.clone();
    let Some(model) = session.turn(turn.id.as_str()) else { return Ok(None) };
    let said: Value = model
        .output
        .as_deref()
        .and_then(|output| serde_json::from_slice(output).ok())
        .unwrap_or_default();
    let marks = said[1].as_array().map(|marks| {
        marks.iter().filter_map(|mark| mark.as_str().map(str::to_owned)).collect::<Vec<_>>()
    });
    model.seen.clone_from(&marks);
    if model.output.is_some() && (said[0] != token.as_str() || marks.is_none()) {
        asker.violation("mixed", format!("{} sees {said}, not its own {token}", turn.id));
    }
    Ok(marks)
}

/// Looks at the session: ended only where it may be, and then by name.
pub async fn look_at_session(asker: &mut Asker, session: &SessionModel) -> Result<Session, Stop> {
    let answer = asker.patient(&Request::get(session.path()), 0).await?;
    if answer.status != 200 {
        asker.violation("session", format!("{}: {}", session.id, answer.shown()));
        return Err(Stop::GivenUp);
    }
    let found: Session = asker.read("a session", &answer).ok_or(Stop::GivenUp)?;
    check_session(&asker.world, asker, session, &found);
    Ok(found)
}

fn check_session(world: &World, asker: &Asker, session: &SessionModel, found: &Session) {
    if found.id.as_str() != session.id {
        asker.violation("mixed", format!("asked for {}, got {}", session.id, found.id));
    }
    if found.state != SessionState::Ended {
        return;
    }
    match &found.ended {
        None => asker.violation("session", format!("{} ended without a reason", session.id)),
        Some(ended) if !session.facts.closing() && !session.may_end_by(world, ended.reason) => {
            asker.violation("session", format!("{} ended by itself: {ended:?}", session.id));
        }
        Some(_) => {}
    }
}
