//! One client: makes sessions, does one operation after the other on them, and ends them. What it does is
//! decided by the seed, its number and the operation's number.

use std::sync::Arc;

use serde_json::json;
use windlass_protocol::api::Session;
use windlass_protocol::event::EndReason;

use super::asker::{Asker, NoAnswer, code_of};
use super::code;
use super::follower::Follower;
use super::http::Request;
use super::judge;
use super::model::{SessionModel, Shape};
use super::operations::{self, OPERATIONS, Operation};
use super::random::Random;
use super::turns;
use super::world::{Facts, set};

/// Sessions that one client has at a time, without twins.
const SESSIONS_AT_ONCE: usize = 2;

/// Twins included, a client ends sessions beyond this.
const SESSIONS_MAX: usize = 4;

/// A session is checked and ended after so many turns: reading all of its events again takes long.
const TURNS_MAX: usize = 120;

/// How long an interrupted turn may take to stop before it is killed.
const INTERRUPT_GRACE_MS: u64 = 1500;

/// How often a fork is asked for that finds its session busy.
const FORK_ATTEMPTS_MAX: usize = 20;

#[derive(Debug)]
pub struct ChaosClient {
    asker: Asker,
    number: u64,
    sessions: Vec<SessionModel>,
    made: u64,
}

impl ChaosClient {
    pub fn new(asker: Asker, number: u64) -> Self {
        Self { asker, number, sessions: Vec::new(), made: 0 }
    }

    /// Works until the run is over, then ends all its sessions.
    pub async fn run(mut self) {
        let seed = self.asker.world.seed;
        let mut done = 0;
        while !self.asker.world.is_over() {
            let mut random = Random::of(&[seed, self.number, done]);
            done += 1;
            if self.sessions.len() < SESSIONS_AT_ONCE {
                self.create(&mut random).await;
                continue;
            }
            let at = random.below(self.sessions.len() as u64);
            let at = usize::try_from(at).unwrap_or_default();
            let operation = random.weighted(&OPERATIONS);
            self.asker.world.ledger.count(&format!("operation {operation:?}"));
            self.act(operation, at, &mut random).await;
        }
        let mut random = Random::of(&[seed, self.number, u64::MAX]);
        while !self.sessions.is_empty() {
            self.end(0, &mut random).await;
        }
    }

    async fn act(&mut self, operation: Operation, at: usize, random: &mut Random) {
        let full = self.sessions[at].turns.len() > TURNS_MAX;
        match operation {
            Operation::Close => return self.end(at, random).await,
            _ if full => return self.end(at, random).await,
            Operation::Fork if self.sessions.len() < SESSIONS_MAX => {
                return self.fork(at, random).await;
            }
            _ => {}
        }
        let session = &mut self.sessions[at];
        let stopped = operations::perform(operation, &mut self.asker, session, random).await;
        // A session that is over, or one that would tell the same violation again.
        if stopped.is_err() {
            self.end(at, random).await;
        }
    }

    fn fresh_id(&mut self) -> String {
        self.made += 1;
        format!("c{}-{}-{}", self.asker.world.seed, self.number, self.made)
    }

    async fn create(&mut self, random: &mut Random) {
        let world = Arc::clone(&self.asker.world);
        let id = self.fresh_id();
        let facts = Arc::new(Facts::new(&id, &id, world.scarcity.mark()));
        let token = format!("token{:016x}", random.next());
        let mut session = SessionModel::new(&id, &token, facts);
        let mut body = json!({
            "id": id,
            "interpreter": world.interpreter,
            "interrupt_grace_ms": INTERRUPT_GRACE_MS,
        });
        if random.chance(50) {
            let turn = session.next_id();
            let program = code::brief(&turn);
            session.expect(&world, &turn, Shape::Plain, program.expected);
            let wait_ms = *random.pick(&[0, 3000]);
            let code = session.code(&turn, &program.code);
            body["turn"] = json!({"id": turn, "code": code, "wait_ms": wait_ms});
        }
        let request = Request::post("/v1/sessions", &body);
        let limits = world.limits.mark();
        let Ok(answer) = self.asker.patient(&request, 3000).await else { return };
        // An answer that was lost, and the request sent again.
        let exists = code_of(&answer).as_deref() == Some("session_exists");
        if answer.status != 201 && !exists {
            match world.scarcity.since(session.facts.scarcity) || world.limits.since(limits) {
                true => world.ledger.count("creates refused"),
                false => self.asker.violation("create", format!("{id}: {}", answer.shown())),
            }
            return;
        }
        world.ledger.count("sessions");
        world.born(&session.facts);
        if random.chance(60) {
            session.follower = Some(Follower::start(&self.asker, &id, random.clone()));
        }
        if exists && !body["turn"].is_null() {
            self.first_turn_again(&mut session, &body["turn"]).await;
        }
        self.sessions.push(session);
    }

    /// A node that was killed may have made the session and not taken its first turn. The turn's id makes
    /// sending it again safe.
    async fn first_turn_again(&mut self, session: &mut SessionModel, turn: &serde_json::Value) {
        let request = Request::post(format!("{}/turns", session.path()), turn);
        let answer = self.asker.patient(&request, 3000).await;
        if answer.is_ok_and(|answer| answer.status == 200) {
            return;
        }
        // A session that has ended meanwhile; that is judged when it is closed.
        for turn in &mut session.turns {
            turn.refused = true;
        }
    }

    /// Ends a session, and checks everything that was told of it.
    async fn end(&mut self, at: usize, random: &mut Random) {
        let mut session = self.sessions.remove(at);
        let checked = judge::running(&mut self.asker, &mut session, random).await;
        set(&session.facts.closing);
        let path = format!("{}?grace_ms={}", session.path(), random.pick(&[0, 500]));
        let closed = self.asker.patient(&Request::delete(path), 1000).await;
        if let Ok(answer) = &closed {
            match answer.status {
                200 => self.check_end(&session, answer),
                _ => self.asker.violation("close", format!("{}: {}", session.id, answer.shown())),
            }
        }
        if checked.is_ok() && closed.is_ok() {
            // Its events say the rest.
            let _ = judge::events(&mut self.asker, &mut session, random).await;
        }
        self.asker.world.gone(&session.id);
    }

    /// A closed session says why it ended; one that ended before says so too, with a receipt.
    fn check_end(&self, session: &SessionModel, answer: &super::http::Answer) {
        let Some(found) = self.asker.read::<Session>("a closed session", answer) else { return };
        let Some(ended) = found.ended else {
            self.asker.violation("close", format!("{} has no end", session.id));
            return;
        };
        self.asker.world.ledger.count(&format!("sessions ended {:?}", ended.reason));
        let by_client = ended.reason == EndReason::Closed;
        if !by_client && !session.may_end_by(&self.asker.world, ended.reason) {
            self.asker.violation("session", format!("{} ended: {ended:?}", session.id));
        }
        if ended.reason == EndReason::KeeperLost && ended.receipt.is_none() {
            self.asker.violation("session", format!("{} lost without a receipt", session.id));
        }
    }

    async fn fork(&mut self, at: usize, random: &mut Random) {
        let seen = turns::read_state(&mut self.asker, &mut self.sessions[at], random).await;
        let Ok(Some(seen)) = seen else { return };
        let id = self.fresh_id();
        match self.ask_for_twin(at, &id).await {
            Twin::Made => {}
            Twin::None => return,
        }
        let world = Arc::clone(&self.asker.world);
        let original = &self.sessions[at];
        let (family, scarcity) = (&original.facts.family, original.facts.scarcity);
        let facts = Arc::new(Facts::new(&id, family, scarcity));
        if original.facts.may_end() {
            set(&facts.may_end);
        }
        let mut twin = SessionModel::new(&id, &original.token, facts);
        twin.inherited = seen;
        world.ledger.count("forks");
        world.born(&twin.facts);
        if random.chance(60) {
            twin.follower = Some(Follower::start(&self.asker, &id, random.clone()));
        }
        self.sessions.push(twin);
        let last = self.sessions.len() - 1;
        if turns::read_state(&mut self.asker, &mut self.sessions[last], random).await.is_err() {
            self.end(last, random).await;
        }
    }

    async fn ask_for_twin(&mut self, at: usize, id: &str) -> Twin {
        let request =
            Request::post(format!("{}/fork", self.sessions[at].path()), &json!({"id": id}));
        for _ in 0..FORK_ATTEMPTS_MAX {
            let answer = match self.asker.once(&request, 30_000).await {
                Ok(answer) => answer,
                // The node may have made it: asking for the same id says so.
                Err(NoAnswer::Cut(_)) => {
                    tokio::time::sleep(std::time::Duration::from_millis(200)).await;
                    continue;
                }
                Err(_) => return Twin::None,
            };
            let code = code_of(&answer);
            match (answer.status, code.as_deref()) {
                (201, _) => return Twin::Made,
                (_, Some("session_exists")) => return self.twin_lives(id).await,
                (_, Some("session_busy" | "shutting_down" | "disk_full" | "overloaded")) => {
                    tokio::time::sleep(std::time::Duration::from_millis(200)).await;
                }
                (_, Some("fork_limit")) => return Twin::None,
                _ if self.sessions[at].may_lose(&self.asker.world) => return Twin::None,
                _ if self.asker.world.limits.ever() => return Twin::None,
                _ => {
                    let original = &self.sessions[at].id;
                    self.asker.violation("fork", format!("{original}: {}", answer.shown()));
                    return Twin::None;
                }
            }
        }
        Twin::None
    }

    /// A fork that was broken off leaves a twin that lives, or one that has ended.
    async fn twin_lives(&mut self, id: &str) -> Twin {
        let request = Request::get(format!("/v1/sessions/{id}"));
        let Ok(answer) = self.asker.patient(&request, 0).await else { return Twin::None };
        match self.asker.read::<Session>("a twin", &answer) {
            Some(twin) if twin.ended.is_none() => Twin::Made,
            _ => Twin::None,
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Twin {
    Made,
    None,
}
