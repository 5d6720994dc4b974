//! The model of a session and its turns: what the client knows from the node's answers. Later answers are
//! compared with it.

use std::sync::Arc;

use windlass_protocol::api::Turn;
use windlass_protocol::event::EndReason;
use windlass_protocol::{ErrorCode, Outcome};

use super::code::{self, Expected};
use super::follower::EventFollower;
use super::random::Random;
use super::world::{ChaosSession, TroubleMark, World};

/// The kind of a turn, which decides how it may end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TurnKind {
    /// The turn must end `ok`.
    Plain,
    /// The code raises an exception.
    Failing,
    /// The turn ends `ok`, or raises an exception if the state was lost before.
    Either,
    /// The code runs until a client interrupts it.
    Interrupted,
    /// The code runs until its deadline.
    Late,
    /// The code ends its own worker, or has to be killed.
    Fatal,
}

#[derive(Debug)]
pub struct TurnModel {
    pub id: String,
    pub kind: TurnKind,
    pub expected: Expected,
    /// The outcome that the client got first.
    pub outcome: Option<Outcome>,
    pub code: Option<ErrorCode>,
    /// The disk was full at some time between the submission of the turn and the answer with its outcome.
    pub told_on_full_disk: bool,
    /// The output, once the client has read it.
    pub output: Option<Vec<u8>>,
    /// The marks that the turn found in the session's memory.
    pub seen: Option<Vec<String>>,
    /// The node never accepted the turn.
    pub refused: bool,
    pub disk: TroubleMark,
    pub scarcity: TroubleMark,
}

#[derive(Debug)]
pub struct SessionModel {
    pub id: String,
    pub token: String,
    pub facts: Arc<ChaosSession>,
    pub turns: Vec<TurnModel>,
    /// The marks in a twin's memory when it was forked.
    pub inherited: Vec<String>,
    pub follower: Option<EventFollower>,
    /// The number of turns that ended with the state lost.
    pub losses: u64,
    next_turn: u64,
}

impl SessionModel {
    pub fn new(id: &str, token: &str, facts: Arc<ChaosSession>) -> Self {
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

    /// The id for a new turn.
    pub fn next_id(&mut self) -> String {
        self.next_turn += 1;
        format!("{}-{}", self.id, self.next_turn)
    }

    /// The complete code of a turn: the marks, then `rest`.
    pub fn code(&self, turn: &str, rest: &str) -> String {
        code::preamble(turn, &self.token) + rest
    }

    /// Adds a turn that is about to be submitted.
    pub fn expect(&mut self, world: &World, id: &str, kind: TurnKind, expected: Expected) {
        self.turns.push(TurnModel {
            id: id.to_owned(),
            kind,
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

    /// One of the turns with a known outcome.
    pub fn an_ended(&self, random: &mut Random) -> Option<&TurnModel> {
        let ended: Vec<_> = self.turns.iter().filter(|turn| turn.outcome.is_some()).collect();
        (!ended.is_empty()).then(|| *random.pick(&ended))
    }

    /// Whether the faults so far explain that the session ends although its client did not close it.
    pub fn may_end(&self, world: &World) -> bool {
        let facts = &self.facts;
        facts.closing() || facts.worker_killed() || self.may_end_by(world, EndReason::KeeperLost)
    }

    /// Whether the faults so far explain this reason, although the client did not close the session.
    pub fn may_end_by(&self, world: &World, reason: EndReason) -> bool {
        let facts = &self.facts;
        let start_failed = facts.worker_killed() && reason == EndReason::StartFailed;
        facts.may_end() || start_failed || world.scarcity.since(facts.scarcity)
    }

    /// Whether a fault may have lost the session's state.
    pub fn may_lose(&self, world: &World) -> bool {
        self.may_end(world) || self.facts.worker_hurt()
    }

    /// Records the end of a turn. Returns what is wrong with it, if anything is.
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
                format!("{} ended {before:?} {was:?}, but now it is {outcome:?} {code:?}", model.id)
            });
        }
        model.outcome = Some(outcome);
        model.code = code;
        model.told_on_full_disk = world.disk.since(model.disk);
        world.ledger.count("turns");
        world.ledger.count(&format!("outcome {outcome:?}"));
        let allowed = model.allowed(world, outcome, code, Losses { may_lose, before: losses });
        let fault = (!allowed).then(|| {
            let (kind, error) = (model.kind, &turn.error);
            let tail: String = turn.output.text.chars().rev().take(200).collect();
            let tail: String = tail.chars().rev().collect();
            format!(
                "{} ({kind:?}) ended {outcome:?} {error:?}; its output ends with {tail:?}",
                model.id
            )
        });
        let no_receipt = outcome == Outcome::Lost && turn.receipt.is_none();
        let fault =
            fault.or(no_receipt.then(|| format!("{} is lost and has no receipt", model.id)));
        self.losses += u64::from(lost);
        fault
    }
}

/// Whether the session's state may be lost.
#[derive(Debug, Clone, Copy)]
struct Losses {
    /// A fault may have lost the state.
    may_lose: bool,
    /// The number of earlier turns that lost the state.
    before: u64,
}

impl TurnModel {
    /// Whether a turn of this kind may end with this outcome.
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
            // Under load, interrupted code may need longer than its grace period.
            (Outcome::Lost, Some(ErrorCode::Unstoppable)) => {
                losses.may_lose
                    || matches!(self.kind, TurnKind::Interrupted | TurnKind::Late | TurnKind::Fatal)
            }
            (Outcome::Lost, _) => losses.may_lose || self.kind == TurnKind::Fatal,
            (Outcome::Ok, _) => matches!(self.kind, TurnKind::Plain | TurnKind::Either),
            (Outcome::Error, None) => match self.kind {
                TurnKind::Failing => true,
                TurnKind::Either => losses.may_lose || losses.before > 0,
                _ => false,
            },
            (Outcome::Interrupted, _) => self.kind == TurnKind::Interrupted,
            (Outcome::TimedOut, _) => matches!(self.kind, TurnKind::Late | TurnKind::Fatal),
            // A session that ends also ends its turns, with an error code.
            (Outcome::Error, Some(_)) => losses.may_lose,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::world::set;
    use super::*;

    fn model(world: &World) -> SessionModel {
        SessionModel::new(
            "s",
            "token",
            Arc::new(ChaosSession::new("s", "s", world.scarcity.mark())),
        )
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

    /// Whether a turn of this kind may end with this outcome.
    fn allowed(
        kind: TurnKind,
        outcome: &str,
        code: Option<&str>,
        prepare: fn(&World, &ChaosSession),
    ) -> bool {
        let world = World::new(1, "/python".into()).unwrap();
        let mut session = model(&world);
        session.expect(&world, "s-1", kind, Expected::Anything);
        prepare(&world, &session.facts);
        session.ended(&world, &turn(outcome, code)).is_none()
    }

    #[test]
    fn a_turn_ends_as_its_code_has_it_unless_a_fault_explains_another_end() {
        let quiet: fn(&World, &ChaosSession) = |_, _| {};
        assert!(allowed(TurnKind::Plain, "ok", None, quiet));
        assert!(allowed(TurnKind::Failing, "error", None, quiet));
        assert!(allowed(TurnKind::Late, "timed_out", None, quiet));
        assert!(allowed(TurnKind::Late, "lost", Some("unstoppable"), quiet));
        for (outcome, code) in [
            ("error", None),
            ("error", Some("disk_full")),
            ("error", Some("state_lost")),
            ("lost", Some("worker_died")),
            ("timed_out", Some("deadline_passed")),
            ("interrupted", None),
        ] {
            assert!(!allowed(TurnKind::Plain, outcome, code, quiet), "{outcome} {code:?}");
        }
        let hurt: fn(&World, &ChaosSession) = |_, facts| set(&facts.worker_hurt);
        assert!(allowed(TurnKind::Plain, "lost", Some("worker_died"), hurt));
        assert!(!allowed(TurnKind::Plain, "timed_out", Some("deadline_passed"), hurt));
        let full: fn(&World, &ChaosSession) = |world, _| world.disk.begin();
        assert!(allowed(TurnKind::Plain, "error", Some("disk_full"), full));
        assert!(!allowed(TurnKind::Plain, "lost", Some("worker_died"), full));
    }

    #[test]
    fn an_outcome_that_changes_is_a_fault() {
        let world = World::new(1, "/python".into()).unwrap();
        let mut session = model(&world);
        session.expect(&world, "s-1", TurnKind::Plain, Expected::Anything);
        assert_eq!(session.ended(&world, &turn("ok", None)), None);
        assert_eq!(session.ended(&world, &turn("ok", None)), None);
        assert!(session.ended(&world, &turn("error", None)).is_some());
    }
}
