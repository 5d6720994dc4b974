//! The session machine as tables: one line per event, with the phase after it and the effects.
//! `properties` tests random events.

use std::fmt::Write;

use expect_test::Expect;
use windlass_lifecycle::session::{
    ForkState, KeeperLoss, Loss, LossNotice, OldWorker, SessionEffect, SessionEvent,
    SessionMachine, SessionPhase, WorkerHistory,
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

/// The session after `script`, and a table with one line per event: event, phase, effects.
fn run(script: &str) -> (SessionMachine, String) {
    run_from(SessionMachine::default(), script)
}

fn run_from(mut session: SessionMachine, script: &str) -> (SessionMachine, String) {
    let mut table = String::new();
    for word in script.split("; ") {
        let (next, effects) = session.step(event(word));
        session = next;
        let phase = phase_and_waiting(&session);
        writeln!(table, "{word:<14} {phase:<27} {}", said(&effects)).expect("a string takes all");
    }
    (session, table)
}

fn event(word: &str) -> SessionEvent {
    let (verb, turn) = word.split_once(' ').unwrap_or((word, "0"));
    let turn = TurnNo(turn.parse().expect("a turn is a number"));
    let done = |outcome| SessionEvent::TurnDone { turn, outcome };
    match verb {
        "ask" => SessionEvent::TurnAsked { turn },
        "interrupt" => SessionEvent::InterruptAsked { turn },
        "deadline" => SessionEvent::DeadlinePassed { turn },
        "grace" => SessionEvent::GracePassed { turn },
        "input" => SessionEvent::InputGiven { turn },
        "reset" => SessionEvent::ResetAsked,
        "close" => SessionEvent::CloseAsked,
        "hold" => SessionEvent::HoldAsked,
        "release" => SessionEvent::HoldReleased,
        "ready" => SessionEvent::WorkerReady,
        "stdin" => SessionEvent::StdinWaited { turn },
        "taken" => SessionEvent::InputTaken { turn },
        "ok" => done(WorkerOutcome::Ok),
        "error" => done(WorkerOutcome::Error),
        "interrupted" => done(WorkerOutcome::Interrupted),
        "ended" => SessionEvent::WorkerEnded { limit: None },
        "replaced" => {
            SessionEvent::WorkerReplaced { running: Some(turn).filter(|turn| turn.0 > 0) }
        }
        "out-of-memory" => SessionEvent::WorkerEnded { limit: Some(Limit::Memory) },
        "fork-bomb" => SessionEvent::WorkerEnded { limit: Some(Limit::Processes) },
        "disk-filled" => SessionEvent::WorkerEnded { limit: Some(Limit::Disk) },
        "wall-time" => SessionEvent::WallTimePassed,
        "disk-passed" => SessionEvent::DiskPassed,
        "idle" => SessionEvent::IdlePassed,
        "broken" => SessionEvent::ProtocolBroken,
        "keeper-died" => SessionEvent::KeeperLost(KeeperLoss::Died),
        "node-gone" => SessionEvent::KeeperLost(KeeperLoss::NodeGone),
        _ => panic!("unknown event in the script: {word}"),
    }
}

/// `Busy(1)+2`: turn 1 runs and two turns wait. `Idle(1)`: one worker has started since the last finished
/// turn.
fn phase_and_waiting(session: &SessionMachine) -> String {
    let text = |WorkerHistory { starts, notice }| match notice {
        LossNotice::Given => format!("{starts}"),
        LossNotice::Owed => format!("{starts}, notice owed"),
    };
    let phase = match session.phase() {
        SessionPhase::Starting => "Starting".to_owned(),
        SessionPhase::Idle(of) => format!("Idle({})", text(of)),
        SessionPhase::Busy { turn } => format!("Busy({turn})"),
        SessionPhase::AwaitingInput { turn } => format!("AwaitingInput({turn})"),
        SessionPhase::Interrupting { turn, cause } => format!("Interrupting({turn}, {cause:?})"),
        SessionPhase::Restarting { old: OldWorker::Gone, history: of } => {
            format!("Restarting({})", text(of))
        }
        SessionPhase::Restarting { old: OldWorker::Leaving, history: of } => {
            format!("Restarting({}, leaving)", text(of))
        }
        SessionPhase::Ended { reason } => format!("Ended({reason:?})"),
    };
    let fork = match session.fork() {
        ForkState::None => "",
        ForkState::Arriving { .. } => " arriving",
        ForkState::Held { .. } => " held",
    };
    match session.waiting().len() {
        0 => format!("{phase}{fork}"),
        waiting => format!("{phase}+{waiting}{fork}"),
    }
}

fn said(effects: &[SessionEffect]) -> String {
    let words: Vec<String> = effects.iter().map(word_of).collect();
    if words.is_empty() { "-".to_owned() } else { words.join(", ") }
}

/// The effect as a word of the table. A `!` marks the end of a turn with which state is lost.
fn word_of(effect: &SessionEffect) -> String {
    match *effect {
        SessionEffect::Accept { turn } => format!("accept {turn}"),
        SessionEffect::Refuse { turn, code } => format!("refuse {turn} {code}"),
        SessionEffect::Start { turn } => format!("start {turn}"),
        SessionEffect::Interrupt { turn, .. } => format!("interrupt {turn}"),
        SessionEffect::InterruptAgain { turn } => format!("interrupt-again {turn}"),
        SessionEffect::RefuseInterrupt { turn, code } => format!("refuse-interrupt {turn} {code}"),
        SessionEffect::Hold => "hold".to_owned(),
        SessionEffect::RefuseHold { code } => format!("refuse-hold {code}"),
        SessionEffect::GiveInput { turn } => format!("give {turn}"),
        SessionEffect::RefuseInput { turn, code } => format!("refuse-input {turn} {code}"),
        SessionEffect::Finish { turn, outcome, code, loss } => {
            let code = code.map(|code| format!(" {code}")).unwrap_or_default();
            let loss = if loss == Loss::State { " !" } else { "" };
            format!("finish {turn} {outcome:?}{code}{loss}")
        }
        SessionEffect::RestartWorker => "restart".to_owned(),
        SessionEffect::StopKeeper => "stop-keeper".to_owned(),
        SessionEffect::End { reason } => format!("end {reason:?}"),
    }
}
