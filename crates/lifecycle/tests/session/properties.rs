//! What holds whatever happens, in whatever order.

use proptest::prelude::*;
use windlass_lifecycle::session::{Effect, Event, KeeperLoss, Loss, Recovery, Session};
use windlass_protocol::event::{EventKind, Receipt, TurnError, Usage};
use windlass_protocol::limits::WAITING_TURNS_MAX;
use windlass_protocol::worker::WorkerOutcome;
use windlass_protocol::{TurnId, TurnNo};

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1024))]

    #[test]
    fn every_turn_runs_alone_in_order_and_is_finished_once(script in script()) {
        let mut session = Session::default();
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
    fn a_session_recovered_from_its_journal_goes_on_as_if_nothing_had_been(script in script()) {
        let mut session = Session::default();
        let mut recovery = Recovery::default();
        for event in events(&script) {
            // A reset between turns leaves no record of its own.
            if event == Event::ResetAsked && session.current().is_none() {
                continue;
            }
            let (next, effects) = session.step(event);
            session = next;
            for (turn, kind) in records(event, &effects) {
                recovery.note(turn, &kind);
            }
            let (recovered, owed) = std::mem::take(&mut recovery).finish();
            prop_assert_eq!(&recovered, &session);
            let owed: Vec<_> = owed.into_iter().filter(|e| *e != Effect::StopKeeper).collect();
            prop_assert_eq!(owed, vec![]);
            recovery = Recovery::from(recovered);
        }
    }

    #[test]
    fn what_was_cut_off_while_recording_a_loss_is_owed(script in script(), cut in 1usize..70) {
        let mut session = Session::default();
        for event in events(&script) {
            let before = session.clone();
            let (next, effects) = session.step(event);
            session = next;
            let records = records(event, &effects);
            // Which keeper was lost is written last; and only a turn in flight names its cause.
            let told = before.current().is_some() && !matches!(event, Event::KeeperLost(_));
            if !told || cut >= records.len() {
                continue;
            }
            let mut recovery = Recovery::from(before);
            for (turn, kind) in &records[..cut] {
                recovery.note(*turn, kind);
            }
            let (recovered, owed) = recovery.finish();
            prop_assert_eq!(&recovered, &session);
            let cut_off: Vec<_> =
                owed.iter().filter_map(|&effect| record(effect)).collect();
            prop_assert_eq!(&cut_off[..], &records[cut..]);
        }
    }
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
            Effect::Refuse { .. } | Effect::RefuseInput { .. } | Effect::RefuseInterrupt { .. }
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
            Effect::RefuseInput { .. } => {}
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
        let open: Vec<_> = session.current().into_iter().chain(waiting).collect();
        assert_eq!(open, self.open);
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
        40 => Just(Word::Plain(Event::WorkerEnded)),
        10 => Just(Word::Plain(Event::ResetAsked)),
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
            let ready = EventKind::WorkerReady { worker: String::new(), pid: 1, restarts: 0 };
            Some((None, ready))
        }
        Event::WorkerEnded => Some((None, EventKind::WorkerEnded { cause: String::new() })),
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
        Effect::End { reason } => Some((None, EventKind::SessionEnded { reason, receipt: None })),
        _ => None,
    }
}
