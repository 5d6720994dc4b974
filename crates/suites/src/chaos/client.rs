//! One client: creates sessions, performs one operation after the other on them, and ends them. The seed, the
//! client's number and the operation's number decide each operation.

use std::sync::Arc;

use serde_json::json;
use windlass_protocol::api::Session;
use windlass_protocol::event::EndReason;

use super::code;
use super::follower::EventFollower;
use super::http_client::{HttpClient, NoAnswer, code_of};
use super::judge;
use super::model::{SessionModel, TurnKind};
use super::operations::{self, OPERATIONS, Operation};
use super::random::Random;
use super::raw_http::RawRequest;
use super::turns;
use super::world::{ChaosSession, set};

/// The number of sessions of one client at a time, without twins.
const SESSIONS_AT_ONCE: usize = 2;

/// The most sessions of one client, twins included. A client with this many makes no twin.
const SESSIONS_MAX: usize = 4;

/// After this many turns a session is checked and closed, because reading all of its events takes long.
const TURNS_MAX: usize = 120;

/// How long an interrupted turn may take to stop before it is killed.
const INTERRUPT_GRACE_MS: u64 = 1500;

/// The most attempts to fork one session.
const FORK_ATTEMPTS_MAX: usize = 20;

#[derive(Debug)]
pub struct ChaosClient {
    http: HttpClient,
    number: u64,
    sessions: Vec<SessionModel>,
    made: u64,
}

impl ChaosClient {
    pub fn new(http: HttpClient, number: u64) -> Self {
        Self { http, number, sessions: Vec::new(), made: 0 }
    }

    /// Performs operations until the run is over, then ends all its sessions.
    pub async fn run(mut self) {
        let seed = self.http.world.seed;
        let mut done = 0;
        while !self.http.world.is_over() {
            let mut random = Random::of(&[seed, self.number, done]);
            done += 1;
            if self.sessions.len() < SESSIONS_AT_ONCE {
                self.create(&mut random).await;
                continue;
            }
            let at = random.below(self.sessions.len() as u64);
            let at = usize::try_from(at).unwrap_or_default();
            let operation = random.weighted(&OPERATIONS);
            self.http.world.ledger.count(&format!("operation {operation:?}"));
            self.perform(operation, at, &mut random).await;
        }
        let mut random = Random::of(&[seed, self.number, u64::MAX]);
        while !self.sessions.is_empty() {
            self.end(0, &mut random).await;
        }
    }

    async fn perform(&mut self, operation: Operation, at: usize, random: &mut Random) {
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
        let stopped = operations::perform(operation, &mut self.http, session, random).await;
        // The session has ended, or the same violation would be reported again.
        if stopped.is_err() {
            self.end(at, random).await;
        }
    }

    fn fresh_id(&mut self) -> String {
        self.made += 1;
        format!("c{}-{}-{}", self.http.world.seed, self.number, self.made)
    }

    async fn create(&mut self, random: &mut Random) {
        let world = Arc::clone(&self.http.world);
        let id = self.fresh_id();
        let facts = Arc::new(ChaosSession::new(&id, &id, world.scarcity.mark()));
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
            session.expect(&world, &turn, TurnKind::Plain, program.expected);
            let wait_ms = *random.pick(&[0, 3000]);
            let code = session.code(&turn, &program.code);
            body["turn"] = json!({"id": turn, "code": code, "wait_ms": wait_ms});
        }
        let request = RawRequest::post("/v1/sessions", &body);
        let limits = world.limits.mark();
        let Ok(answer) = self.http.send_with_retry(&request, 3000).await else { return };
        // The session exists already if the first answer was lost and the request was repeated.
        let exists = code_of(&answer).as_deref() == Some("session_exists");
        if answer.status != 201 && !exists {
            match world.scarcity.since(session.facts.scarcity) || world.limits.since(limits) {
                true => world.ledger.count("creates refused"),
                false => self.http.violation("create", format!("{id}: {}", answer.shown())),
            }
            return;
        }
        world.ledger.count("sessions");
        world.born(&session.facts);
        if random.chance(60) {
            session.follower = Some(EventFollower::start(&self.http, &id, random.clone()));
        }
        if exists && !body["turn"].is_null() {
            self.first_turn_again(&mut session, &body["turn"]).await;
        }
        self.sessions.push(session);
    }

    /// Sends the first turn again. A node that was killed may have created the session without the turn. The
    /// turn's id makes the repetition safe.
    async fn first_turn_again(&mut self, session: &mut SessionModel, turn: &serde_json::Value) {
        let request = RawRequest::post(format!("{}/turns", session.path()), turn);
        let answer = self.http.send_with_retry(&request, 3000).await;
        if answer.is_ok_and(|answer| answer.status == 200) {
            return;
        }
        // The session has ended. The check at its end decides whether it may have.
        for turn in &mut session.turns {
            turn.refused = true;
        }
    }

    /// Closes a session and checks every answer about it.
    async fn end(&mut self, at: usize, random: &mut Random) {
        let mut session = self.sessions.remove(at);
        let checked = judge::running(&mut self.http, &mut session, random).await;
        set(&session.facts.closing);
        let path = format!("{}?grace_ms={}", session.path(), random.pick(&[0, 500]));
        let closed = self.http.send_with_retry(&RawRequest::delete(path), 1000).await;
        if let Ok(answer) = &closed {
            match answer.status {
                200 => self.check_end(&session, answer),
                _ => self.http.violation("close", format!("{}: {}", session.id, answer.shown())),
            }
        }
        if checked.is_ok() && closed.is_ok() {
            // The error is a violation that is already recorded.
            let _ = judge::events(&mut self.http, &mut session, random).await;
        }
        self.http.world.gone(&session.id);
    }

    /// Checks the reason for the session's end. A session that lost its keeper must have a receipt.
    fn check_end(&self, session: &SessionModel, answer: &super::raw_http::RawResponse) {
        let Some(found) = self.http.read::<Session>("a closed session", answer) else { return };
        let Some(ended) = found.ended else {
            self.http.violation("close", format!("{} is closed and has no end reason", session.id));
            return;
        };
        self.http.world.ledger.count(&format!("sessions ended {:?}", ended.reason));
        let by_client = ended.reason == EndReason::Closed;
        if !by_client && !session.may_end_by(&self.http.world, ended.reason) {
            self.http.violation("session", format!("{} ended: {ended:?}", session.id));
        }
        if ended.reason == EndReason::KeeperLost && ended.receipt.is_none() {
            self.http
                .violation("session", format!("{} lost its keeper and has no receipt", session.id));
        }
    }

    async fn fork(&mut self, at: usize, random: &mut Random) {
        let seen = turns::read_state(&mut self.http, &mut self.sessions[at], random).await;
        let Ok(Some(seen)) = seen else { return };
        let id = self.fresh_id();
        match self.request_twin(at, &id).await {
            ForkResult::Made => {}
            ForkResult::None => return,
        }
        let world = Arc::clone(&self.http.world);
        let original = &self.sessions[at];
        let (family, scarcity) = (&original.facts.family, original.facts.scarcity);
        let facts = Arc::new(ChaosSession::new(&id, family, scarcity));
        // A fault that hit the family may have hit the twin too, before this client knew of the twin.
        if original.facts.may_end() {
            set(&facts.may_end);
        }
        if original.facts.worker_hurt() {
            set(&facts.worker_hurt);
        }
        if original.facts.worker_killed() {
            set(&facts.worker_killed);
        }
        let mut twin = SessionModel::new(&id, &original.token, facts);
        twin.inherited = seen;
        world.ledger.count("forks");
        world.born(&twin.facts);
        if random.chance(60) {
            twin.follower = Some(EventFollower::start(&self.http, &id, random.clone()));
        }
        self.sessions.push(twin);
        let last = self.sessions.len() - 1;
        if turns::read_state(&mut self.http, &mut self.sessions[last], random).await.is_err() {
            self.end(last, random).await;
        }
    }

    async fn request_twin(&mut self, at: usize, id: &str) -> ForkResult {
        let request =
            RawRequest::post(format!("{}/fork", self.sessions[at].path()), &json!({"id": id}));
        for _ in 0..FORK_ATTEMPTS_MAX {
            let answer = match self.http.send_once(&request, 30_000).await {
                Ok(answer) => answer,
                // The node may have made the twin: the same request with the same id will say so.
                Err(NoAnswer::Cut(_)) => {
                    tokio::time::sleep(std::time::Duration::from_millis(200)).await;
                    continue;
                }
                Err(_) => return ForkResult::None,
            };
            let code = code_of(&answer);
            match (answer.status, code.as_deref()) {
                (201, _) => return ForkResult::Made,
                (_, Some("session_exists")) => return self.twin_lives(id).await,
                (_, Some("session_busy" | "shutting_down" | "disk_full" | "overloaded")) => {
                    tokio::time::sleep(std::time::Duration::from_millis(200)).await;
                }
                (_, Some("fork_limit")) => return ForkResult::None,
                _ if self.sessions[at].may_lose(&self.http.world) => return ForkResult::None,
                _ if self.http.world.limits.ever() => return ForkResult::None,
                _ => {
                    let original = &self.sessions[at].id;
                    self.http.violation("fork", format!("{original}: {}", answer.shown()));
                    return ForkResult::None;
                }
            }
        }
        ForkResult::None
    }

    /// Whether the twin of a fork whose answer was lost is alive. It may have ended.
    async fn twin_lives(&mut self, id: &str) -> ForkResult {
        let request = RawRequest::get(format!("/v1/sessions/{id}"));
        let Ok(answer) = self.http.send_with_retry(&request, 0).await else {
            return ForkResult::None;
        };
        match self.http.read::<Session>("a twin", &answer) {
            Some(twin) if twin.ended.is_none() => ForkResult::Made,
            _ => ForkResult::None,
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ForkResult {
    Made,
    None,
}
