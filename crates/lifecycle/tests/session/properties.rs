//! What holds whatever happens, in whatever order.

use proptest::prelude::*;
use windlass_lifecycle::session::{
    Effect, Event, Facts, FirstTurn, Fork, KeeperLoss, Loss, Session, WorkerFact,
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
        let mut session = if is_twin { Session::twin() } else { Session::default() };
        let mut watch = Watch::default();
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
    fn a_session_recovered_from_what_is_known_of_it_has_the_same_turns(script in script()) {
        let mut session = Session::default();
        let mut known = Known::default();
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
            let recovered = Session::recover(known.facts());
            prop_assert_eq!(open(&recovered), open(&session));
            // That a worker is on its way out is known to its keeper, which tells a new node. A hold goes
            // with its node.
            let is_held = matches!(session.fork(), Fork::Held { .. });
            if session.state() != SessionState::Restarting && !is_held {
                prop_assert_eq!(recovered.state(), session.state());
                prop_assert_eq!(recovered.current(), session.current());
            }
        }
    }
}

/// What a journal knows of a session.
#[derive(Default)]
struct Known {
    open: Vec<TurnNo>,
    first: Option<FirstTurn>,
    worker: Option<WorkerFact>,
}

impl Known {
    /// A keeper tells of input for the turn in flight and no other.
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

    fn facts(&self) -> Facts {
        Facts {
            open: self.open.clone(),
            first: self.first.unwrap_or(FirstTurn::Running),
            worker: self.worker.unwrap_or(WorkerFact::Starting),
            restarts: 0,
            is_twin: false,
        }
    }
}

/// The turn in flight and those behind it.
fn open(session: &Session) -> Vec<TurnNo> {
    session.current().into_iter().chain(session.waiting()).collect()
}

/// What an observer who sees only effects knows of a session.
#[derive(Default)]
struct Watch {
    accepted: Vec<TurnNo>,
    open: Vec<TurnNo>,
    in_flight: Option<TurnNo>,
    /// Asked before a state was lost: they may not run on the next one.
    doomed: Vec<TurnNo>,
    ended: bool,
}

impl Watch {
    fn see(&mut self, effect: Effect) {
        let refusal = matches!(
            effect,
            Effect::Refuse { .. }
                | Effect::RefuseInput { .. }
                | Effect::RefuseInterrupt { .. }
                | Effect::RefuseHold { .. }
        );
        assert!(refusal || !self.ended, "{effect:?} after the end");
        match effect {
            Effect::Accept { turn } => {
                assert!(!self.accepted.contains(&turn), "{turn} accepted twice");
                self.accepted.push(turn);
                self.open.push(turn);
            }
            Effect::Refuse { turn, .. } => assert!(!self.accepted.contains(&turn)),
            Effect::Start { turn } => {
                assert_eq!(self.in_flight, None, "{turn} started beside another");
                assert_eq!(self.open.first(), Some(&turn), "{turn} overtook");
                assert!(!self.doomed.contains(&turn), "{turn} ran on a state it did not expect");
                self.in_flight = Some(turn);
            }
            Effect::Interrupt { turn, .. }
            | Effect::InterruptAgain { turn }
            | Effect::GiveInput { turn } => assert_eq!(self.in_flight, Some(turn)),
            Effect::RefuseInterrupt { turn, .. } => assert!(!self.open.contains(&turn)),
            Effect::RefuseInput { .. } | Effect::RefuseHold { .. } => {}
            Effect::Hold => assert_eq!(self.in_flight, None, "a turn runs in a held session"),
            Effect::Finish { turn, loss, .. } => {
                let place = self.open.iter().position(|&open| open == turn);
                self.open.remove(place.expect("only an open turn is finished"));
                if loss == Loss::State {
                    self.doomed.clone_from(&self.open);
                }
                self.in_flight = self.in_flight.filter(|&in_flight| in_flight != turn);
            }
            Effect::RestartWorker => assert_eq!(self.in_flight, None),
            Effect::StopKeeper => assert_eq!(self.open, []),
            Effect::End { .. } => {
                assert_eq!(self.open, [], "turns left open at the end");
                self.ended = true;
            }
        }
    }

    fn compare(&self, session: &Session) {
        assert_eq!(session.current(), self.in_flight);
        assert_eq!(session.is_ended(), self.ended);
        let waiting: Vec<_> = session.waiting().collect();
        assert!(waiting.len() <= WAITING_TURNS_MAX);
        assert_eq!(open(session), self.open);
    }
}

/// An event whose turn is named by how long ago it was asked.
#[derive(Debug, Clone, Copy)]
enum Word {
    Ask { times: u64 },
    About { ago: u64, make: fn(TurnNo) -> Event },
    Plain(Event),
}

fn script() -> impl Strategy<Value = Vec<Word>> {
    prop::collection::vec(word(), 1..120)
}

fn word() -> impl Strategy<Value = Word> {
    let abouts: [fn(TurnNo) -> Event; 9] = [
        |turn| Event::InterruptAsked { turn },
        |turn| Event::DeadlinePassed { turn },
        |turn| Event::GracePassed { turn },
        |turn| Event::InputGiven { turn },
        |turn| Event::StdinWaited { turn },
        |turn| Event::InputTaken { turn },
        |turn| Event::TurnDone { turn, outcome: WorkerOutcome::Ok },
        |turn| Event::TurnDone { turn, outcome: WorkerOutcome::Error },
        |turn| Event::TurnDone { turn, outcome: WorkerOutcome::Interrupted },
    ];
    let about = move |(ago, which): (u64, usize)| Word::About { ago, make: abouts[which] };
    let ends = prop::sample::select(vec![
        Event::CloseAsked,
        Event::WallTimePassed,
        Event::IdlePassed,
        Event::ProtocolBroken,
        Event::KeeperLost(KeeperLoss::Died),
        Event::KeeperLost(KeeperLoss::NodeGone),
    ]);
    prop_oneof![
        200 => Just(Word::Ask { times: 1 }),
        4 => Just(Word::Ask { times: 70 }),
        // Mostly the newest turns: those that are in flight when few wait.
        400 => (0u64..3, 0usize..9).prop_map(about),
        60 => (0u64..70, 0usize..9).prop_map(about),
        100 => Just(Word::Plain(Event::WorkerReady)),
        30 => Just(Word::Plain(Event::WorkerEnded { limit: None })),
        10 => Just(Word::Plain(Event::WorkerEnded { limit: Some(Limit::Memory) })),
        10 => Just(Word::Plain(Event::ResetAsked)),
        20 => Just(Word::Plain(Event::HoldAsked)),
        20 => Just(Word::Plain(Event::HoldReleased)),
        2 => ends.prop_map(Word::Plain),
    ]
}

/// The events of a script; turns are numbered as the node numbers them.
fn events(script: &[Word]) -> Vec<Event> {
    let mut asked = 0;
    let mut events = Vec::new();
    for word in script {
        match *word {
            Word::Ask { times } => events.extend((0..times).map(|_| {
                asked += 1;
                Event::TurnAsked { turn: TurnNo(asked) }
            })),
            Word::About { ago, make } => events.push(make(TurnNo(asked.saturating_sub(ago)))),
            Word::Plain(event) => events.push(event),
        }
    }
    events
}

/// What a node writes into the journal: the keeper's event, then the effects.
fn records(event: Event, effects: &[Effect]) -> Vec<(Option<TurnNo>, EventKind)> {
    let heard = match event {
        Event::StdinWaited { turn } => {
            Some((Some(turn), EventKind::StdinWait { prompt: String::new(), secret: false }))
        }
        Event::InputTaken { turn } => Some((Some(turn), EventKind::InputTaken { bytes: 1 })),
        Event::WorkerReady => {
            let ready = EventKind::WorkerReady {
                worker: String::new(),
                pid: 1,
                restarts: 0,
                start: StartedBy::Exec,
                capabilities: None,
            };
            Some((None, ready))
        }
        Event::WorkerEnded { limit } => {
            Some((None, EventKind::WorkerEnded { cause: String::new(), limit, replaced: false }))
        }
        _ => None,
    };
    heard.into_iter().chain(effects.iter().filter_map(|&effect| record(effect))).collect()
}

fn record(effect: Effect) -> Option<(Option<TurnNo>, EventKind)> {
    match effect {
        Effect::Accept { turn } => {
            let id = TurnId::from_number(turn);
            Some((Some(turn), EventKind::TurnAccepted { id, deadline_ms: None, more: false }))
        }
        Effect::Interrupt { turn, cause } => {
            Some((Some(turn), EventKind::InterruptAsked { cause }))
        }
        Effect::Finish { turn, outcome, code, loss } => {
            let named =
                |code| TurnError { code: Some(code), name: String::new(), message: String::new() };
            let receipt = (loss == Loss::State).then(|| Receipt { kept: vec![], lost: vec![] });
            let (error, usage) = (code.map(named), Usage::default());
            Some((Some(turn), EventKind::TurnEnded { outcome, error, usage, receipt }))
        }
        Effect::End { reason } => {
            let (message, receipt) = (None, None);
            Some((None, EventKind::SessionEnded { reason, message, receipt }))
        }
        _ => None,
    }
}
