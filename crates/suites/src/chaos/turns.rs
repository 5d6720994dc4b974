//! Submits turns, waits for them and reads their output. Each answer is compared with the model of the
//! session.

use std::time::{Duration, Instant};

use serde_json::{Value, json};
use windlass_protocol::Outcome;
use windlass_protocol::api::{Session, SessionState, Turn, TurnState};

use super::code::{self, TurnProgram};
use super::http_client::{HttpClient, NoAnswer, code_of};
use super::model::{SessionModel, TurnKind};
use super::random::Random;
use super::raw_http::RawRequest;
use super::world::World;

/// How long a turn may take.
const TURN_MAX: Duration = Duration::from_secs(90);

/// The most requests for one turn's output.
const RANGES_MAX: usize = 5000;

/// After this many ranges of random size, the rest is read in large ranges.
const SMALL_RANGES_MAX: usize = 20;

/// Why an operation stops early.
#[derive(Debug)]
pub enum EarlyStop {
    /// The session has ended.
    SessionOver,
    /// The operation cannot go on. The violation, if any, is recorded.
    GivenUp,
}

impl From<NoAnswer> for EarlyStop {
    fn from(_: NoAnswer) -> Self {
        Self::GivenUp
    }
}

/// How a submission is sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sending {
    Once,
    /// The same request on two connections at the same time.
    Twice,
}

/// A turn to submit.
#[derive(Debug)]
pub struct Submission {
    pub kind: TurnKind,
    pub program: TurnProgram,
    pub wait_ms: u64,
    pub deadline_ms: Option<u64>,
    pub sending: Sending,
}

impl Submission {
    pub fn plain(program: TurnProgram) -> Self {
        Self {
            kind: TurnKind::Plain,
            program,
            wait_ms: 0,
            deadline_ms: None,
            sending: Sending::Once,
        }
    }

    pub fn of_kind(mut self, kind: TurnKind) -> Self {
        self.kind = kind;
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

/// Submits a turn and returns its id.
pub async fn submit(
    http: &mut HttpClient,
    session: &mut SessionModel,
    submission: Submission,
) -> Result<String, EarlyStop> {
    let id = session.next_id();
    submit_as(http, session, &id, submission).await?;
    Ok(id)
}

/// Submits a turn with the given id.
pub async fn submit_as(
    http: &mut HttpClient,
    session: &mut SessionModel,
    id: &str,
    submission: Submission,
) -> Result<(), EarlyStop> {
    let Submission { kind, program, wait_ms, deadline_ms, sending } = submission;
    session.expect(&http.world, id, kind, program.expected);
    let mut body = json!({"id": id, "code": session.code(id, &program.code), "wait_ms": wait_ms});
    if let Some(deadline_ms) = deadline_ms {
        body["deadline_ms"] = json!(deadline_ms);
    }
    let request = RawRequest::post(format!("{}/turns", session.path()), &body);
    let answer = match sending {
        Sending::Once => http.send_with_retry(&request, wait_ms).await?,
        Sending::Twice => {
            let mut other = http.another_connection();
            let (first, _) = tokio::join!(
                http.send_with_retry(&request, wait_ms),
                other.send_once(&request, wait_ms)
            );
            first?
        }
    };
    if answer.status != 200 {
        if let Some(turn) = session.turn(id) {
            turn.refused = true;
        }
        return Err(refused(http, session, id, code_of(&answer), &answer.shown()));
    }
    let turn: Turn = http.read("a submitted turn", &answer).ok_or(EarlyStop::GivenUp)?;
    check_names(http, session, id, &turn);
    Ok(())
}

/// Judges the refusal of a turn: only a session that may have ended may refuse it.
fn refused(
    http: &HttpClient,
    session: &SessionModel,
    id: &str,
    code: Option<String>,
    shown: &str,
) -> EarlyStop {
    let over = code.as_deref() == Some("session_ended");
    if over && session.may_end(&http.world) {
        return EarlyStop::SessionOver;
    }
    http.violation("submit", format!("the node refused {id}: {shown}"));
    if over { EarlyStop::SessionOver } else { EarlyStop::GivenUp }
}

fn check_names(http: &HttpClient, session: &SessionModel, id: &str, turn: &Turn) {
    if turn.id.as_str() != id || turn.session.as_str() != session.id {
        let (got, of) = (&turn.id, &turn.session);
        http.violation("mixed", format!("asked for {id} of {}, got {got} of {of}", session.id));
    }
}

/// Reads a turn until it is in one of the states or has ended.
pub async fn look_until(
    http: &mut HttpClient,
    session: &mut SessionModel,
    id: &str,
    random: &mut Random,
    states: &[TurnState],
) -> Result<Turn, EarlyStop> {
    let began = Instant::now();
    loop {
        let wait_ms = *random.pick(&[0, 200, 2000, 2000]);
        let budget = *random.pick(&[0, 100, 16384]);
        let path = session.turn_path(id);
        let path = format!("{path}?wait_ms={wait_ms}&output_bytes_max={budget}");
        let answer = http.send_with_retry(&RawRequest::get(path), wait_ms).await?;
        if answer.status != 200 {
            http.violation(
                "turn",
                format!("{id} was accepted, but reading it failed: {}", answer.shown()),
            );
            return Err(EarlyStop::GivenUp);
        }
        let turn: Turn = http.read("a turn", &answer).ok_or(EarlyStop::GivenUp)?;
        check_names(http, session, id, &turn);
        if turn.state == TurnState::Ended {
            if let Some(fault) = session.ended(&http.world, &turn) {
                http.violation("outcome", fault);
            }
            return Ok(turn);
        }
        if states.contains(&turn.state) {
            return Ok(turn);
        }
        if began.elapsed() > TURN_MAX {
            http.violation("hang", format!("{id} is {:?} after {TURN_MAX:?}", turn.state));
            return Err(EarlyStop::GivenUp);
        }
        if wait_ms == 0 {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
}

pub async fn wait_end(
    http: &mut HttpClient,
    session: &mut SessionModel,
    id: &str,
    random: &mut Random,
) -> Result<Turn, EarlyStop> {
    look_until(http, session, id, random, &[]).await
}

/// Submits a turn, waits for its end and checks its output.
pub async fn run(
    http: &mut HttpClient,
    session: &mut SessionModel,
    submission: Submission,
    random: &mut Random,
) -> Result<Turn, EarlyStop> {
    let id = submit(http, session, submission).await?;
    let turn = wait_end(http, session, &id, random).await?;
    read_output(http, session, &id, random).await?;
    Ok(turn)
}

/// Reads a turn's output in ranges of random size and compares it with the expected output.
pub async fn read_output(
    http: &mut HttpClient,
    session: &mut SessionModel,
    id: &str,
    random: &mut Random,
) -> Result<(), EarlyStop> {
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
        let answer = http.send_with_retry(&RawRequest::get(path), 0).await?;
        let number = |name: &str| answer.header(name).and_then(|text| text.parse::<u64>().ok());
        let (next, total) = (number("windlass-output-next"), number("windlass-output-total"));
        let (Some(next), Some(total), 200) = (next, total, answer.status) else {
            http.violation("output", format!("{id}: {range}: {}", answer.shown()));
            return Ok(());
        };
        if number("windlass-output-dropped") != Some(0) {
            return dropped(http, session, id);
        }
        got.extend_from_slice(&answer.body);
        if next >= total {
            break;
        }
        if next <= at {
            http.violation(
                "output",
                format!("{id}: the range {range} makes no progress: next is {next} of {total}"),
            );
            return Ok(());
        }
        at = next;
    }
    let Some(turn) = session.turn(id) else { return Ok(()) };
    if let Some(fault) = code::difference(&turn.expected, &got, turn.outcome == Some(Outcome::Ok)) {
        let text = format!("{id} ({:?}, {:?}): {fault}", turn.kind, turn.outcome);
        http.violation("output", text);
    }
    turn.output = Some(got);
    Ok(())
}

/// Judges dropped output: bytes may be missing only if the disk was full.
fn dropped(http: &HttpClient, session: &mut SessionModel, id: &str) -> Result<(), EarlyStop> {
    let Some(turn) = session.turn(id) else { return Ok(()) };
    match http.world.disk.since(turn.disk) {
        true => http.world.ledger.count("turns with dropped output"),
        false => http.violation(
            "output",
            format!("{id}: the node dropped output, but the disk was not full"),
        ),
    }
    Ok(())
}

/// Runs a turn that prints the marks in the session's memory. Returns them if the turn ended well.
pub async fn read_state(
    http: &mut HttpClient,
    session: &mut SessionModel,
    random: &mut Random,
) -> Result<Option<Vec<String>>, EarlyStop> {
    let program =
        TurnProgram { code: code::state().to_owned(), expected: code::Expected::Anything };
    let sending = if random.chance(30) { Sending::Twice } else { Sending::Once };
    let submission = Submission::plain(program).waiting(3000).sent(sending);
    let turn = run(http, session, submission, random).await?;
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
        http.violation(
            "mixed",
            format!("{} found {said} in memory instead of its own token {token}", turn.id),
        );
    }
    Ok(marks)
}

/// Reads the session. It may have ended only if a fault explains the reason.
pub async fn look_at_session(
    http: &mut HttpClient,
    session: &SessionModel,
) -> Result<Session, EarlyStop> {
    let answer = http.send_with_retry(&RawRequest::get(session.path()), 0).await?;
    if answer.status != 200 {
        http.violation("session", format!("{}: {}", session.id, answer.shown()));
        return Err(EarlyStop::GivenUp);
    }
    let found: Session = http.read("a session", &answer).ok_or(EarlyStop::GivenUp)?;
    check_session(&http.world, http, session, &found);
    Ok(found)
}

fn check_session(world: &World, http: &HttpClient, session: &SessionModel, found: &Session) {
    if found.id.as_str() != session.id {
        http.violation("mixed", format!("asked for {}, got {}", session.id, found.id));
    }
    if found.state != SessionState::Ended {
        return;
    }
    match &found.ended {
        None => http.violation("session", format!("{} ended without a reason", session.id)),
        Some(ended) if !session.facts.closing() && !session.may_end_by(world, ended.reason) => {
            http.violation(
                "session",
                format!("{} ended without being closed: {ended:?}", session.id),
            );
        }
        Some(_) => {}
    }
}
