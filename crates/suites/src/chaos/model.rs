//! What a client was told of a session and of its turns: the model that answers are compared with.

use std::sync::Arc;

use windlass_protocol::api::Turn;
use windlass_protocol::event::EndReason;
use windlass_protocol::{ErrorCode, Outcome};

use super::code::{self, Expected};
use super::follower::Follower;
use super::random::Random;
use super::world::{Facts, TroubleMark, World};

/// What kind of turn it is, and so how it may end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Shape {
    /// It must end `ok`.
    Plain,
    /// It raises.
    Failing,
    /// It ends `ok`, or raises where the state was lost before.
    Either,
    /// It runs until a client interrupts it.
    Interrupted,
    /// It runs until its deadline.
    Late,
    /// It ends its own worker, or has to be killed.
    Fatal,
}

#[derive(Debug)]
pub struct TurnModel {
    pub id: String,
    pub shape: Shape,
    pub expected: Expected,
    /// How it ended, as the client was told first.
    pub outcome: Option<Outcome>,
    pub code: Option<ErrorCode>,
    /// The disk was full at some time between the turn's sending and the client's word of its end.
    pub told_on_full_disk: bool,
    /// Its output, once it was read.
    pub output: Option<Vec<u8>>,
    /// What it printed of the session's memory.
    pub seen: Option<Vec<String>>,
    /// The node never accepted it.
    pub refused: bool,
    pub disk: TroubleMark,
    pub scarcity: TroubleMark,
}

#[derive(Debug)]
pub struct SessionModel {
    pub id: String,
    pub token: String,
    pub facts: Arc<Facts>,
    pub turns: Vec<TurnModel>,
    /// What the memory of a twin held when it was forked.
    pub inherited: Vec<String>,
    pub follower: Option<Follower>,
    /// Turns that ended with the state lost.
    pub losses: u64,
    next_turn: u64,
}

impl SessionModel {
    pub fn new(id: &str, token: &str, facts: Arc<Facts>) -> Self {
        Self {
            id: id.to_owned(),
            token: token.to_owned(),
            facts,
            turns: Vec::new(),
            inherited: Vec::new(),
            follower: None,
            losses: 0,
            next_turn: 0,
        }
    }

    pub fn path(&self) -> String {
        format!("/v1/sessions/{}", self.id)
    }

    pub fn turn_path(&self, turn: &str) -> String {
        format!("/v1/sessions/{}/turns/{turn}", self.id)
    }

    /// A new turn's id.
    pub fn next_id(&mut self) -> String {
        self.next_turn += 1;
        format!("{}-{}", self.id, self.next_turn)
    }

    /// The whole code of a turn.
    pub fn code(&self, turn: &str, rest: &str) -> String {
        code::preamble(turn, &self.token) + rest
    }

    /// Notes that a turn is about to be submitted.
    pub fn expect(&mut self, world: &World, id: &str, shape: Shape, expected: Expected) {
        self.turns.push(TurnModel {
            id: id.to_owned(),
            shape,
            expected,
            outcome: None,
            code: None,
            output: None,
            seen: None,
            refused: false,
            told_on_full_disk: false,
            disk: world.disk.mark(),
            scarcity: world.scarcity.mark(),
        });
    }

    pub fn turn(&mut self, id: &str) -> Option<&mut TurnModel> {
        self.turns.iter_mut().rev().find(|turn| turn.id == id)
    }

    /// One of the turns whose end is known.
    pub fn an_ended(&self, random: &mut Random) -> Option<&TurnModel> {
        let ended: Vec<_> = self.turns.iter().filter(|turn| turn.outcome.is_some()).collect();
        (!ended.is_empty()).then(|| *random.pick(&ended))
    }

    /// Whether faults so far allow the session to end although its client did not close it.
    pub fn may_end(&self, world: &World) -> bool {
        let facts = &self.facts;
        facts.closing() || facts.worker_killed() || self.may_end_by(world, EndReason::KeeperLost)
    }

    /// Whether this may be why it ended, although its client did not close it.
    pub fn may_end_by(&self, world: &World, reason: EndReason) -> bool {
        let facts = &self.facts;
        let start_failed = facts.worker_killed() && reason == EndReason::StartFailed;
        facts.may_end() || start_failed || world.scarcity.since(facts.scarcity)
    }

    /// Whether its state may be lost without its own turns' doing.
    pub fn may_lose(&self, world: &World) -> bool {
        self.may_end(world) || self.facts.worker_hurt()
    }

    /// Takes in a turn that has ended; gives what is wrong with that.
    pub fn ended(&mut self, world: &World, turn: &Turn) -> Option<String> {
        let (may_lose, losses) = (self.may_lose(world), self.losses);
        let code = turn.error.as_ref().and_then(|error| error.code);
        let lost = turn.outcome == Some(Outcome::Lost) || code == Some(ErrorCode::StateLost);
        let model = self.turns.iter_mut().rev().find(|known| known.id == turn.id.as_str())?;
        let outcome = turn.outcome?;
        if let Some(before) = model.outcome {
            let changed = before != outcome || model.code != code;
            return changed.then(|| {
                let was = model.code;
                format!("{} ended {before:?} {was:?}, and now {outcome:?} {code:?}", model.id)
            });
        }
        model.outcome = Some(outcome);
        model.code = code;
        model.told_on_full_disk = world.disk.since(model.disk);
        world.ledger.count("turns");
        world.ledger.count(&format!("outcome {outcome:?}"));
        let allowed = model.allowed(world, outcome, code, Losses { may_lose, before: losses });
        let fault = (!allowed).then(|| {
            let (shape, error) = (model.shape, &turn.error);
            let tail: String = turn.output.text.chars().rev().take(200).collect();
            let tail: String = tail.chars().rev().collect();
            format!("{} ({shape:?}) ended {outcome:?} {error:?}; output: {tail:?}", model.id)
        });
        let no_receipt = outcome == Outcome::Lost && turn.receipt.is_none();
        let fault =
            fault.or(no_receipt.then(|| format!("{} was lost without a receipt", model.id)));
        self.losses += u64::from(lost);
        fault
    }
}

/// How the session's state may have been lost before a turn.
#[derive(Debug, Clone, Copy)]
struct Losses {
    may_lose: bool,
    before: u64,
}

impl TurnModel {
    /// Whether a turn of this shape may end so.
    fn allowed(
        &self,
        world: &World,
        outcome: Outcome,
        code: Option<ErrorCode>,
        losses: Losses,
    ) -> bool {
        let disk = world.disk.since(self.disk) && code == Some(ErrorCode::DiskFull);
        let starved = world.scarcity.since(self.scarcity) && outcome != Outcome::TimedOut;
        if disk || starved {
            return true;
        }
        match (outcome, code) {
            (Outcome::Error, Some(ErrorCode::StateLost)) => losses.may_lose || losses.before > 0,
            // Code that is interrupted under load may need longer than its grace.
            (Outcome::Lost, Some(ErrorCode::Unstoppable)) => {
                losses.may_lose
                    || matches!(self.shape, Shape::Interrupted | Shape::Late | Shape::Fatal)
            }
            (Outcome::Lost, _) => losses.may_lose || self.shape == Shape::Fatal,
            (Outcome::Ok, _) => matches!(self.shape, Shape::Plain | Shape::Either),
            (Outcome::Error, None) => match self.shape {
                Shape::Failing => true,
                Shape::Either => losses.may_lose || losses.before > 0,
                _ => false,
            },
            (Outcome::Interrupted, _) => self.shape == Shape::Interrupted,
            (Outcome::TimedOut, _) => matches!(self.shape, Shape::Late | Shape::Fatal),
            // A session that ends takes its turns with it, and says so.
            (Outcome::Error, Some(_)) => losses.may_lose,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::world::set;
    use super::*;

    fn model(world: &World) -> SessionModel {
        SessionModel::new("s", "token", Arc::new(Facts::new("s", "s", world.scarcity.mark())))
    }

    fn turn(outcome: &str, code: Option<&str>) -> Turn {
        let error = code.map(|code| serde_json::json!({"code": code, "name": "", "message": ""}));
        let receipt = (outcome == "lost").then(|| serde_json::json!({"kept": [], "lost": []}));
        serde_json::from_value(serde_json::json!({
            "id": "s-1", "session": "s", "number": 1, "state": "ended", "outcome": outcome,
            "error": error, "receipt": receipt, "output": {"text": "", "bytes": 0, "from": 0},
        }))
        .unwrap()
    }

    /// Whether a turn of the shape may end so.
    fn allowed(
        shape: Shape,
        outcome: &str,
        code: Option<&str>,
        prepare: fn(&World, &Facts),
    ) -> bool {
        let world = World::new(1, "/python".into()).unwrap();
        let mut session = model(&world);
        session.expect(&world, "s-1", shape, Expected::Anything);
        prepare(&world, &session.facts);
        session.ended(&world, &turn(outcome, code)).is_none()
    }

    #[test]
    fn a_turn_ends_as_its_code_has_it_unless_a_fault_explains_another_end() {
        let quiet: fn(&World, &Facts) = |_, _| {};
        assert!(allowed(Shape::Plain, "ok", None, quiet));
        assert!(allowed(Shape::Failing, "error", None, quiet));
        assert!(allowed(Shape::Late, "timed_out", None, quiet));
        assert!(allowed(Shape::Late, "lost", Some("unstoppable"), quiet));
        for (outcome, code) in [
            ("error", None),
            ("error", Some("disk_full")),
            ("error", Some("state_lost")),
            ("lost", Some("worker_died")),
            ("timed_out", Some("deadline_passed")),
            ("interrupted", None),
        ] {
            assert!(!allowed(Shape::Plain, outcome, code, quiet), "{outcome} {code:?}");
        }
        let hurt: fn(&World, &Facts) = |_, facts| set(&facts.worker_hurt);
        assert!(allowed(Shape::Plain, "lost", Some("worker_died"), hurt));
        assert!(!allowed(Shape::Plain, "timed_out", Some("deadline_passed"), hurt));
        let full: fn(&World, &Facts) = |world, _| world.disk.begin();
        assert!(allowed(Shape::Plain, "error", Some("disk_full"), full));
        assert!(!allowed(Shape::Plain, "lost", Some("worker_died"), full));
    }

    #[test]
    fn an_outcome_that_changes_is_a_fault() {
        let world = World::new(1, "/python".into()).unwrap();
        let mut session = model(&world);
        session.expect(&world, "s-1", Shape::Plain, Expected::Anything);
        assert_eq!(session.ended(&world, &turn("ok", None)), None);
        assert_eq!(session.ended(&world, &turn("ok", None)), None);
        assert!(session.ended(&world, &turn("error", None)).is_some());
    }
}
