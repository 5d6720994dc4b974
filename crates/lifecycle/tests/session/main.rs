//! The session machine as tables: one line for each event, with the phase after it and what has
//! to be done. `properties` drives it at random.

use std::fmt::Write;

use expect_test::Expect;
use windlass_lifecycle::session::{
    Effect, Event, Fork, Fresh, KeeperLoss, Loss, Notice, OldWorker, Phase, Session,
};
use windlass_protocol::TurnNo;
use windlass_protocol::policy::Limit;
use windlass_protocol::worker::WorkerOutcome;

mod forks;
mod idle;
mod limits;
mod losses;
mod properties;
mod recovery;
mod turns;

/// Runs the events of `script` and compares the phase and the effects after each.
fn check(script: &str, expected: Expect) {
    expected.assert_eq(&run(script).1);
}

/// The session after `script`, and the table of how it got there: event, phase, effects.
fn run(script: &str) -> (Session, String) {
    run_from(Session::default(), script)
}

fn run_from(mut session: Session, script: &str) -> (Session, String) {
    let mut table = String::new();
    for word in script.split("; ") {
        let (next, effects) = session.step(event(word));
        session = next;
        let phase = phase_and_waiting(&session);
        writeln!(table, "{word:<14} {phase:<27} {}", said(&effects)).expect("a string takes all");
    }
    (session, table)
}

fn event(word: &str) -> Event {
    let (verb, turn) = word.split_once(' ').unwrap_or((word, "0"));
    let turn = TurnNo(turn.parse().expect("a turn is a number"));
    let done = |outcome| Event::TurnDone { turn, outcome };
    match verb {
        "ask" => Event::TurnAsked { turn },
        "interrupt" => Event::InterruptAsked { turn },
        "deadline" => Event::DeadlinePassed { turn },
        "grace" => Event::GracePassed { turn },
        "input" => Event::InputGiven { turn },
        "reset" => Event::ResetAsked,
        "close" => Event::CloseAsked,
        "hold" => Event::HoldAsked,
        "release" => Event::HoldReleased,
        "ready" => Event::WorkerReady,
        "stdin" => Event::StdinWaited { turn },
        "taken" => Event::InputTaken { turn },
        "ok" => done(WorkerOutcome::Ok),
        "error" => done(WorkerOutcome::Error),
        "interrupted" => done(WorkerOutcome::Interrupted),
        "ended" => Event::WorkerEnded { limit: None },
        "replaced" => Event::WorkerReplaced { running: Some(turn).filter(|turn| turn.0 > 0) },
        "out-of-memory" => Event::WorkerEnded { limit: Some(Limit::Memory) },
        "fork-bomb" => Event::WorkerEnded { limit: Some(Limit::Processes) },
        "disk-filled" => Event::WorkerEnded { limit: Some(Limit::Disk) },
        "wall-time" => Event::WallTimePassed,
        "idle" => Event::IdlePassed,
        "broken" => Event::ProtocolBroken,
        "keeper-died" => Event::KeeperLost(KeeperLoss::Died),
        "node-gone" => Event::KeeperLost(KeeperLoss::NodeGone),
        _ => panic!("no such word: {word}"),
    }
}

/// `Busy(1)+2`: turn 1 runs and two wait. `Idle(1)`: one worker started since a turn was finished.
fn phase_and_waiting(session: &Session) -> String {
    let fresh = |Fresh { starts, notice }| match notice {
        Notice::Given => format!("{starts}"),
        Notice::Owed => format!("{starts}, notice owed"),
    };
    let phase = match session.phase() {
        Phase::Starting => "Starting".to_owned(),
        Phase::Idle(of) => format!("Idle({})", fresh(of)),
        Phase::Busy { turn } => format!("Busy({turn})"),
        Phase::AwaitingInput { turn } => format!("AwaitingInput({turn})"),
        Phase::Interrupting { turn, cause } => format!("Interrupting({turn}, {cause:?})"),
        Phase::Restarting { old: OldWorker::Gone, fresh: of } => {
            format!("Restarting({})", fresh(of))
        }
        Phase::Restarting { old: OldWorker::Leaving, fresh: of } => {
            format!("Restarting({}, leaving)", fresh(of))
        }
        Phase::Ended { reason } => format!("Ended({reason:?})"),
    };
    let fork = match session.fork() {
        Fork::None => "",
        Fork::Arriving { .. } => " arriving",
        Fork::Held { .. } => " held",
    };
    match session.waiting().len() {
        0 => format!("{phase}{fork}"),
        waiting => format!("{phase}+{waiting}{fork}"),
    }
}

fn said(effects: &[Effect]) -> String {
    let words: Vec<String> = effects.iter().map(word_of).collect();
    if words.is_empty() { "-".to_owned() } else { words.join(", ") }
}

/// A `!` marks an end that tells of a lost state.
fn word_of(effect: &Effect) -> String {
    match *effect {
        Effect::Accept { turn } => format!("accept {turn}"),
        Effect::Refuse { turn, code } => format!("refuse {turn} {code}"),
        Effect::Start { turn } => format!("start {turn}"),
        Effect::Interrupt { turn, .. } => format!("interrupt {turn}"),
        Effect::InterruptAgain { turn } => format!("interrupt-again {turn}"),
        Effect::RefuseInterrupt { turn, code } => format!("refuse-interrupt {turn} {code}"),
        Effect::Hold => "hold".to_owned(),
        Effect::RefuseHold { code } => format!("refuse-hold {code}"),
        Effect::GiveInput { turn } => format!("give {turn}"),
        Effect::RefuseInput { turn, code } => format!("refuse-input {turn} {code}"),
        Effect::Finish { turn, outcome, code, loss } => {
            let code = code.map(|code| format!(" {code}")).unwrap_or_default();
            let loss = if loss == Loss::State { " !" } else { "" };
            format!("finish {turn} {outcome:?}{code}{loss}")
        }
        Effect::RestartWorker => "restart".to_owned(),
        Effect::StopKeeper => "stop-keeper".to_owned(),
        Effect::End { reason } => format!("end {reason:?}"),
    }
}
