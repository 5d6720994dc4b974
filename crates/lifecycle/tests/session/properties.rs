//! Invariants of the session machine under any events in any order.

use proptest::prelude::*;
use windlass_lifecycle::session::{
    FirstTurn, ForkState, KeeperLoss, Loss, RecoveryFacts, SessionEffect, SessionEvent,
    SessionMachine, WorkerFact,
};
use windlass_protocol::api::SessionState;
use windlass_protocol::event::{EventKind, Receipt, StartedBy, TurnError, Usage};
use windlass_protocol::limits::WAITING_TURNS_MAX;
use windlass_protocol::policy::Limit;
use windlass_protocol::worker::WorkerOutcome;
use windlass_protocol::{TurnId, TurnNo};

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1024))]

    #[test]
    fn every_turn_runs_alone_in_order_and_is_finished_once(
        script in script(),
        is_twin in any::<bool>(),
    ) {
        let mut session = if is_twin { SessionMachine::twin() } else { SessionMachine::default() };
        let mut watch = EffectObserver::default();
        for event in events(&script) {
            let (next, effects) = session.step(event);
            session = next;
            for effect in effects {
                watch.see(effect);
            }
            watch.compare(&session);
        }
    }

    #[test]
    fn a_session_recovered_from_its_facts_has_the_same_turns(script in script()) {
        let mut session = SessionMachine::default();
        let mut known = JournalView::default();
        for event in events(&script) {
            let (next, effects) = session.step(event);
            session = next;
            for (turn, kind) in records(event, &effects) {
                known.note(turn, &kind, session.current());
            }
            if session.is_ended() {
                prop_assert_eq!(known.open, vec![]);
                return Ok(());
            }
            let recovered = SessionMachine::recover(known.facts());
            prop_assert_eq!(open(&recovered), open(&session));
            // The keeper knows that a worker is stopping and tells the new node. A hold ends with its node.
            let is_held = matches!(session.fork(), ForkState::Held { .. });
            if session.state() != SessionState::Restarting && !is_held {
                prop_assert_eq!(recovered.state(), session.state());
                prop_assert_eq!(recovered.current(), session.current());
            }
        }
    }
}

/// The facts that a journal has of a session.
#[derive(Default)]
struct JournalView {
    open: Vec<TurnNo>,
    first: Option<FirstTurn>,
    worker: Option<WorkerFact>,
}

impl JournalView {
    /// A keeper reports input only for the turn in flight.
    fn note(&mut self, turn: Option<TurnNo>, kind: &EventKind, in_flight: Option<TurnNo>) {
        let of_first = turn.is_some() && turn.as_ref() == self.open.first();
        let of_running = turn.is_some() && turn == in_flight;
        let stopping = matches!(self.first, Some(FirstTurn::Interrupting(_)));
        match kind {
            EventKind::TurnAccepted { .. } => self.open.extend(turn),
            EventKind::InterruptAsked { cause } if of_first => {
                self.first = Some(FirstTurn::Interrupting(*cause));
            }
            EventKind::StdinWait { .. } if of_running && !stopping => {
                self.first = Some(FirstTurn::AwaitingInput);
            }
            EventKind::InputTaken { .. } if of_running && !stopping => self.first = None,
            EventKind::TurnEnded { .. } => {
                self.first = self.first.filter(|_| !of_first);
                self.open.retain(|open| Some(*open) != turn);
            }
            EventKind::WorkerReady { .. } => self.worker = Some(WorkerFact::Up),
            EventKind::WorkerEnded { .. } => {
                self.worker = self.worker.map(|_| WorkerFact::Gone);
            }
            _ => {}
        }
    }

    fn facts(&self) -> RecoveryFacts {
        RecoveryFacts {
            open: self.open.clone(),
            first: self.first.unwrap_or(FirstTurn::Running),
            worker: self.worker.unwrap_or(WorkerFact::Starting),
            restarts: 0,
            is_twin: false,
        }
    }
}

/// The turn in flight and the turns behind it.
fn open(session: &SessionMachine) -> Vec<TurnNo> {
    session.current().into_iter().chain(session.waiting()).collect()
}

/// Follows a session by its effects alone.
#[derive(Default)]
struct EffectObserver {
    accepted: Vec<TurnNo>,
    open: Vec<TurnNo>,
    in_flight: Option<TurnNo>,
    /// Turns requested before state was lost. They must not run on the next worker.
    doomed: Vec<TurnNo>,
    ended: bool,
}

impl EffectObserver {
    fn see(&mut self, effect: SessionEffect) {
        let refusal = matches!(
            effect,
            SessionEffect::Refuse { .. }
                | SessionEffect::RefuseInput { .. }
                | SessionEffect::RefuseInterrupt { .. }
                | SessionEffect::RefuseHold { .. }
        );
        assert!(refusal || !self.ended, "{effect:?} after the end");
        match effect {
            SessionEffect::Accept { turn } => {
                assert!(!self.accepted.contains(&turn), "{turn} accepted twice");
                self.accepted.push(turn);
                self.open.push(turn);
            }
            SessionEffect::Refuse { turn, .. } => assert!(!self.accepted.contains(&turn)),
            SessionEffect::Start { turn } => {
                assert_eq!(self.in_flight, None, "{turn} started beside another");
                assert_eq!(self.open.first(), Some(&turn), "{turn} overtook");
                assert!(!self.doomed.contains(&turn), "{turn} ran on a state it did not expect");
                self.in_flight = Some(turn);
            }
            SessionEffect::Interrupt { turn, .. }
            | SessionEffect::InterruptAgain { turn }
            | SessionEffect::GiveInput { turn } => assert_eq!(self.in_flight, Some(turn)),
            SessionEffect::RefuseInterrupt { turn, .. } => assert!(!self.open.contains(&turn)),
            SessionEffect::RefuseInput { .. } | SessionEffect::RefuseHold { .. } => {}
            SessionEffect::Hold => {
                assert_eq!(self.in_flight, None, "a turn runs in a held session")
            }
            SessionEffect::Finish { turn, loss, .. } => {
                let place = self.open.iter().position(|&open| open == turn);
                self.open.remove(place.expect("only an open turn is finished"));
                if loss == Loss::State {
                    self.doomed.clone_from(&self.open);
                }
                self.in_flight = self.in_flight.filter(|&in_flight| in_flight != turn);
            }
            SessionEffect::RestartWorker => assert_eq!(self.in_flight, None),
            SessionEffect::StopKeeper => assert_eq!(self.open, []),
            SessionEffect::End { .. } => {
                assert_eq!(self.open, [], "turns left open at the end");
                self.ended = true;
            }
        }
    }

    fn compare(&self, session: &SessionMachine) {
        assert_eq!(session.current(), self.in_flight);
        assert_eq!(session.is_ended(), self.ended);
        let waiting: Vec<_> = session.waiting().collect();
        assert!(waiting.len() <= WAITING_TURNS_MAX);
        assert_eq!(open(session), self.open);
    }
}

/// One step of a random script. A step names its turn by how many turns ago it was requested.
#[derive(Debug, Clone, Copy)]
enum ScriptStep {
    Ask { times: u64 },
    About { ago: u64, make: fn(TurnNo) -> SessionEvent },
    Plain(SessionEvent),
}

fn script() -> impl Strategy<Value = Vec<ScriptStep>> {
    prop::collection::vec(word(), 1..120)
}

fn word() -> impl Strategy<Value = ScriptStep> {
    let abouts: [fn(TurnNo) -> SessionEvent; 9] = [
        |turn| SessionEvent::InterruptAsked { turn },
        |turn| SessionEvent::DeadlinePassed { turn },
        |turn| SessionEvent::GracePassed { turn },
        |turn| SessionEvent::InputGiven { turn },
        |turn| SessionEvent::StdinWaited { turn },
        |turn| SessionEvent::InputTaken { turn },
        |turn| SessionEvent::TurnDone { turn, outcome: WorkerOutcome::Ok },
        |turn| SessionEvent::TurnDone { turn, outcome: WorkerOutcome::Error },
        |turn| SessionEvent::TurnDone { turn, outcome: WorkerOutcome::Interrupted },
    ];
    let about = move |(ago, which): (u64, usize)| ScriptStep::About { ago, make: abouts[which] };
    let ends = prop::sample::select(vec![
        SessionEvent::CloseAsked,
        SessionEvent::WallTimePassed,
        SessionEvent::DiskPassed,
        SessionEvent::IdlePassed,
        SessionEvent::ProtocolBroken,
        SessionEvent::KeeperLost(KeeperLoss::Died),
        SessionEvent::KeeperLost(KeeperLoss::NodeGone),
    ]);
    prop_oneof![
        200 => Just(ScriptStep::Ask { times: 1 }),
        4 => Just(ScriptStep::Ask { times: 70 }),
        // Mostly the newest turns: they are in flight when few turns wait.
        400 => (0u64..3, 0usize..9).prop_map(about),
        60 => (0u64..70, 0usize..9).prop_map(about),
        100 => Just(ScriptStep::Plain(SessionEvent::WorkerReady)),
        30 => Just(ScriptStep::Plain(SessionEvent::WorkerEnded { limit: None })),
        10 => Just(ScriptStep::Plain(SessionEvent::WorkerEnded { limit: Some(Limit::Memory) })),
        10 => Just(ScriptStep::Plain(SessionEvent::ResetAsked)),
        20 => Just(ScriptStep::Plain(SessionEvent::HoldAsked)),
        20 => Just(ScriptStep::Plain(SessionEvent::HoldReleased)),
        2 => ends.prop_map(ScriptStep::Plain),
    ]
}

/// The events of a script. Turns are numbered as the node numbers them.
fn events(script: &[ScriptStep]) -> Vec<SessionEvent> {
    let mut asked = 0;
    let mut events = Vec::new();
    for word in script {
        match *word {
            ScriptStep::Ask { times } => events.extend((0..times).map(|_| {
                asked += 1;
                SessionEvent::TurnAsked { turn: TurnNo(asked) }
            })),
            ScriptStep::About { ago, make } => events.push(make(TurnNo(asked.saturating_sub(ago)))),
            ScriptStep::Plain(event) => events.push(event),
        }
    }
    events
}

/// The records that a node journals: first the keeper's event, then the effects.
fn records(event: SessionEvent, effects: &[SessionEffect]) -> Vec<(Option<TurnNo>, EventKind)> {
    let reported = match event {
        SessionEvent::StdinWaited { turn } => {
            Some((Some(turn), EventKind::StdinWait { prompt: String::new(), secret: false }))
        }
        SessionEvent::InputTaken { turn } => Some((Some(turn), EventKind::InputTaken { bytes: 1 })),
        SessionEvent::WorkerReady => {
            let ready = EventKind::WorkerReady {
                worker: String::new(),
                pid: 1,
                restarts: 0,
                start: StartedBy::Exec,
                capabilities: None,
                figures: None,
            };
            Some((None, ready))
        }
        SessionEvent::WorkerEnded { limit } => {
            let (cause, stderr) = (String::new(), String::new());
            let replaced = false;
            let exit_code = None;
            Some((None, EventKind::WorkerEnded { cause, limit, replaced, exit_code, stderr }))
        }
        _ => None,
    };
    reported.into_iter().chain(effects.iter().filter_map(|&effect| record(effect))).collect()
}

fn record(effect: SessionEffect) -> Option<(Option<TurnNo>, EventKind)> {
    match effect {
        SessionEffect::Accept { turn } => {
            let id = TurnId::from_number(turn);
            let (deadline_ms, more, context) = (None, false, None);
            Some((Some(turn), EventKind::TurnAccepted { id, deadline_ms, more, context }))
        }
        SessionEffect::Interrupt { turn, cause } => {
            Some((Some(turn), EventKind::InterruptAsked { cause }))
        }
        SessionEffect::Finish { turn, outcome, code, loss } => {
            let named =
                |code| TurnError { code: Some(code), name: String::new(), message: String::new() };
            let receipt = (loss == Loss::State).then(|| Receipt { kept: vec![], lost: vec![] });
            let (error, usage) = (code.map(named), Usage::default());
            let (refusal, exit_code, value) = (None, None, None);
            let ended =
                EventKind::TurnEnded { outcome, error, usage, receipt, refusal, exit_code, value };
            Some((Some(turn), ended))
        }
        SessionEffect::End { reason } => {
            let (message, receipt) = (None, None);
            Some((None, EventKind::SessionEnded { reason, message, receipt }))
        }
        _ => None,
    }
}
