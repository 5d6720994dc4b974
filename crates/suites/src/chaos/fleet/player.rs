//! One client in a chaos run. The client creates, runs, forks, reads and closes sessions through random nodes, and
//! records each answer. After a failure it sends a turn again with the same id through another node.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::time::{sleep, timeout};
use windlass_client::protocol::api::{
    CloseQuery, CreateSession, Durability, EventItem, EventsQuery, ForkSession, Session,
    SubmitTurn, Turn, TurnState,
};
use windlass_client::protocol::{EventKind, Outcome, SessionId, TurnId};
use windlass_client::{Client, ClientError};
use windlass_testkit::python;

use super::record::{EventFact, FactKind, SessionHistory, ToldEnd, ToldOutcome, TurnAnswer};
use crate::chaos::random::Random;

/// How long a client waits for an answer, and for that to a fork. A stopped node gives none.
const ANSWER_WAIT: Duration = Duration::from_secs(6);
const FORK_WAIT: Duration = Duration::from_secs(20);

/// How long a reply about a turn may wait for its end.
const TURN_WAIT_MS: u64 = 3_000;

/// How long a client sends one turn again.
const RUN_WAIT: Duration = Duration::from_secs(12);

/// Live sessions of one client, and sessions that it creates in all.
const OPEN_MAX: usize = 3;
const SESSIONS_MAX: usize = 12;

/// Pages of events in one reading.
const PAGES_MAX: usize = 50;

/// The file in the workspace in which each turn leaves a line.
pub const EFFECTS: &str = "effects";

/// The code of a request without an answer in time.
const NO_ANSWER: &str = "no_answer";

/// Codes that end a session for its client.
pub const SESSION_LOST: &str = "session_lost";
const SESSION_ENDED: &str = "session_ended";
const OVER: [&str; 3] = [SESSION_LOST, SESSION_ENDED, "session_not_found"];

/// Codes that no fault explains.
const ODD: [&str; 4] = ["internal", "bad_request", "bad_answer", "protocol_error"];

/// A way to a node.
#[derive(Debug, Clone)]
pub struct FleetDoor {
    pub node: String,
    pub client: Client,
}

#[derive(Debug)]
pub struct FleetPlayer {
    seed: u64,
    pub number: u64,
    doors: Arc<Vec<FleetDoor>>,
    pub histories: Vec<SessionHistory>,
    /// The sessions that the client uses, as places in the histories.
    open: Vec<usize>,
    /// Lost sessions whose names may be used again.
    lost: Vec<usize>,
    /// Counts sessions, turns and steps, so that each has a name of its own.
    named: u64,
    /// How often something happened.
    pub counts: BTreeMap<String, u64>,
    /// Answers that no fault explains.
    pub odd: Vec<String>,
}

impl FleetPlayer {
    pub fn new(seed: u64, number: u64, doors: Arc<Vec<FleetDoor>>) -> Self {
        Self {
            seed,
            number,
            doors,
            histories: Vec::new(),
            open: Vec::new(),
            lost: Vec::new(),
            named: 0,
            counts: BTreeMap::new(),
            odd: Vec::new(),
        }
    }

    /// One operation after the other until the time is over.
    pub async fn play(mut self, until: Instant) -> Self {
        while Instant::now() < until {
            let mut random = self.random();
            self.step(&mut random).await;
            sleep(Duration::from_millis(random.within(0, 150))).await;
        }
        self
    }

    /// A generator for the next operation.
    fn random(&mut self) -> Random {
        self.named += 1;
        Random::of(&[self.seed, 1, self.number, self.named])
    }

    fn name(&mut self, letter: char) -> String {
        self.named += 1;
        format!("{letter}{}-{}", self.number, self.named)
    }

    fn count(&mut self, what: &str) {
        *self.counts.entry(what.to_owned()).or_default() += 1;
    }

    async fn step(&mut self, random: &mut Random) {
        let may_create = self.open.len() < OPEN_MAX && self.histories.len() < SESSIONS_MAX;
        if may_create && (self.open.is_empty() || random.chance(10)) {
            return self.create(random).await;
        }
        if self.open.is_empty() {
            return;
        }
        let at = *random.pick(self.open.as_slice());
        match random.weighted(&[('r', 60), ('t', 12), ('e', 15), ('f', 5), ('c', 3)]) {
            'r' => {
                self.run(random, at, Instant::now() + RUN_WAIT).await;
            }
            't' => self.run_twice(random, at).await,
            'e' => self.read(random, at).await,
            'f' => self.fork(random, at).await,
            _ => self.close(random, at).await,
        }
    }

    fn door(&self, random: &mut Random) -> FleetDoor {
        random.pick(self.doors.as_slice()).clone()
    }

    /// Creates a session with its first turn, sometimes under the name of a lost one. A creation without an answer is
    /// not repeated, and its name not used again.
    async fn create(&mut self, random: &mut Random) {
        let again = if random.chance(50) { self.lost.pop() } else { None };
        let (session, mark, turn) = (self.name('s'), self.name('m'), self.name('t'));
        let session = match again {
            Some(at) => {
                self.histories[at].replaced = true;
                self.count("names used again");
                self.histories[at].session.clone()
            }
            None => session,
        };
        let (Ok(id), Some(mut first)) = (SessionId::parse(session.as_str()), submit(&turn)) else {
            return;
        };
        first.code = format!("mark = {mark:?}\ncounter = -1\n{}", first.code);
        let replicated = random.chance(50);
        let durability = if replicated { Durability::Replicated } else { Durability::Local };
        // A session that names an interpreter is made on the node that is asked.
        let interpreter = random.chance(50).then(|| python().to_string_lossy().into_owned());
        let create = CreateSession {
            id: Some(id),
            interpreter,
            durability,
            turn: Some(first),
            ..CreateSession::default()
        };
        let door = self.door(random);
        match asked(ANSWER_WAIT, door.client.create_session(&create)).await {
            Ok(created) => {
                let mut history = begun(&created.session, &mark);
                history.replicated = replicated;
                history.reused = again.is_some();
                history.turn(&turn);
                if let Some(told) = &created.turn {
                    history.told(&turn, answer_of(told));
                }
                self.add(history);
                self.count("sessions");
            }
            Err(code) => self.refused("create", &session, code),
        }
    }

    fn add(&mut self, history: SessionHistory) {
        self.open.push(self.histories.len());
        self.histories.push(history);
    }

    /// Runs a turn, and sends it again with the same id until it has ended or the time is over. Returns whether it has
    /// ended.
    async fn run(&mut self, random: &mut Random, at: usize, until: Instant) -> bool {
        let id = self.name('t');
        let Some(submit) = submit(&id) else { return false };
        let Ok(session) = SessionId::parse(self.histories[at].session.as_str()) else {
            return false;
        };
        self.histories[at].turn(&id);
        self.count("turns");
        loop {
            let door = self.door(random);
            match asked(ANSWER_WAIT, door.client.submit_turn(&session, &submit)).await {
                Ok(turn) => {
                    self.histories[at].told(&id, answer_of(&turn));
                    if turn.state == TurnState::Ended {
                        return true;
                    }
                }
                Err(code) => {
                    if self.is_over(at, code) {
                        return false;
                    }
                }
            }
            if Instant::now() > until {
                return false;
            }
            self.count("turns sent again");
            sleep(Duration::from_millis(random.within(50, 500))).await;
        }
    }

    /// Sends one turn through two nodes at once.
    async fn run_twice(&mut self, random: &mut Random, at: usize) {
        let id = self.name('t');
        let Some(submit) = submit(&id) else { return };
        let Ok(session) = SessionId::parse(self.histories[at].session.as_str()) else { return };
        self.histories[at].turn(&id);
        self.count("turns sent through two nodes at once");
        let (one, other) = (self.door(random), self.door(random));
        let answers = tokio::join!(
            asked(ANSWER_WAIT, one.client.submit_turn(&session, &submit)),
            asked(ANSWER_WAIT, other.client.submit_turn(&session, &submit)),
        );
        for answer in [answers.0, answers.1] {
            match answer {
                Ok(turn) => self.histories[at].told(&id, answer_of(&turn)),
                Err(code) => {
                    self.is_over(at, code);
                }
            }
        }
    }

    /// Reads the events after the last one that was read.
    async fn read(&mut self, random: &mut Random, at: usize) {
        let Ok(session) = SessionId::parse(self.histories[at].session.as_str()) else { return };
        let after = self.histories[at].seen.keys().next_back().copied().unwrap_or_default();
        let door = self.door(random);
        match read_events(&door.client, &session, after).await {
            Ok(events) => {
                self.count("readings of events");
                if !self.histories[at].reused {
                    self.histories[at].seen.extend(events);
                }
            }
            Err(code) => {
                self.is_over(at, code);
            }
        }
    }

    async fn fork(&mut self, random: &mut Random, at: usize) {
        if self.open.len() >= OPEN_MAX || self.histories.len() >= SESSIONS_MAX {
            return;
        }
        let twin = self.name('f');
        let Ok(session) = SessionId::parse(self.histories[at].session.as_str()) else { return };
        let fork =
            ForkSession { id: SessionId::parse(twin.as_str()).ok(), ..ForkSession::default() };
        let door = self.door(random);
        match asked(FORK_WAIT, door.client.fork_session(&session, &fork)).await {
            Ok(forked) => {
                let mark = self.histories[at].mark.clone();
                self.add(begun(&forked.session, &mark));
                self.count("forks");
            }
            Err(code) => {
                self.is_over(at, code);
            }
        }
    }

    async fn close(&mut self, random: &mut Random, at: usize) {
        let Ok(session) = SessionId::parse(self.histories[at].session.as_str()) else { return };
        self.open.retain(|open| *open != at);
        self.histories[at].end = ToldEnd::CloseAsked;
        let door = self.door(random);
        let close = CloseQuery { grace_ms: Some(0) };
        match asked(ANSWER_WAIT, door.client.close_session(&session, close)).await {
            Ok(_) => {
                self.histories[at].end = ToldEnd::Closed;
                self.count("sessions closed");
            }
            Err(code) => self.refused("close", session.as_str(), code),
        }
    }

    /// Counts a refusal. Returns whether it says that the session is over.
    fn is_over(&mut self, at: usize, code: &'static str) -> bool {
        let session = self.histories[at].session.clone();
        self.refused("request", &session, code);
        if !OVER.contains(&code) {
            return false;
        }
        // The earlier owner of the name may have said that.
        let of_earlier = self.histories[at].reused && code == SESSION_ENDED;
        if self.open.contains(&at) && !of_earlier {
            self.open.retain(|open| *open != at);
            self.histories[at].end = ToldEnd::Gone(code.to_owned());
            if code == SESSION_LOST {
                self.lost.push(at);
            }
        }
        true
    }

    fn refused(&mut self, what: &str, session: &str, code: &'static str) {
        self.count(&format!("refused: {code}"));
        if ODD.contains(&code) {
            self.odd.push(format!("{what} of {session}: {code}"));
        }
    }

    /// After the faults, each session that is not known to be over runs one more turn.
    pub async fn last_turns(&mut self, until: Instant) {
        for at in self.open.clone() {
            let mut random = self.random();
            let ran = self.run(&mut random, at, until).await;
            if !ran && self.open.contains(&at) && !self.histories[at].reused {
                let session = &self.histories[at].session;
                self.odd.push(format!("{session} runs no turn after the faults"));
            }
        }
    }
}

/// The history of a session that was just created.
fn begun(session: &Session, mark: &str) -> SessionHistory {
    SessionHistory {
        session: session.id.to_string(),
        mark: mark.to_owned(),
        workspace: session.workspace.clone(),
        ..SessionHistory::default()
    }
}

/// A turn that leaves a line in the file of effects, counts, and prints its id, the session's mark and the counter.
fn submit(id: &str) -> Option<SubmitTurn> {
    let code = format!(
        "counter += 1\n\
         with open({EFFECTS:?}, 'a') as _file: _file.write('{id}\\n')\n\
         print('{id}', mark, counter)\n"
    );
    let id = TurnId::chosen(id).ok()?;
    Some(SubmitTurn { id: Some(id), code, wait_ms: TURN_WAIT_MS, ..SubmitTurn::default() })
}

/// The answer to a request, or the code of the failure.
pub async fn asked<T>(
    wait: Duration,
    request: impl Future<Output = Result<T, ClientError>>,
) -> Result<T, &'static str> {
    match timeout(wait, request).await {
        Ok(Ok(answer)) => Ok(answer),
        Ok(Err(error)) => Err(error.code()),
        Err(_) => Err(NO_ANSWER),
    }
}

/// All events of a session after an event, so far.
pub async fn read_events(
    client: &Client,
    session: &SessionId,
    after: u64,
) -> Result<BTreeMap<u64, EventFact>, &'static str> {
    let mut query = EventsQuery { after, ..EventsQuery::default() };
    let mut events = BTreeMap::new();
    for _ in 0..PAGES_MAX {
        let page = asked(ANSWER_WAIT, client.events_page(session, query)).await?;
        query.after = page.after.0;
        let is_last = page.ended || page.events.is_empty();
        events.extend(page.events.iter().map(|item| (item.event.seq.0, fact_of(item))));
        if is_last {
            break;
        }
    }
    Ok(events)
}

fn fact_of(item: &EventItem) -> EventFact {
    let kind = match &item.event.kind {
        EventKind::TurnAccepted { id, .. } => FactKind::Accepted(id.to_string()),
        EventKind::TurnEnded { .. } => FactKind::Ended,
        _ => FactKind::Other,
    };
    let text = format!("{:?} {:?}", item.event.kind, item.text);
    EventFact { text, turn: item.event.turn.map(|turn| turn.0), kind }
}

fn answer_of(turn: &Turn) -> TurnAnswer {
    let outcome = match turn.outcome {
        Some(Outcome::Ok) => "ok".to_owned(),
        Some(other) => format!("{other:?}"),
        None => "none".to_owned(),
    };
    let end = ToldOutcome { outcome, text: turn.output.text.clone() };
    TurnAnswer { number: turn.number.0, end: (turn.state == TurnState::Ended).then_some(end) }
}
