//! A session rebuilt from facts, and the effects that its new node repeats.

use expect_test::expect;
use windlass_lifecycle::session::{FirstTurn, RecoveryFacts, SessionMachine, WorkerFact};
use windlass_protocol::TurnNo;
use windlass_protocol::event::StopCause;

use crate::{phase_and_waiting, run, said};

#[test]
fn facts_give_back_the_session_they_describe() {
    let facts = |open: &[u64], first, worker| RecoveryFacts {
        open: open.iter().copied().map(TurnNo).collect(),
        first,
        worker,
        restarts: 0,
        is_twin: false,
    };
    let cause = StopCause::Deadline;
    for (script, facts) in [
        ("ask 1; ask 2", facts(&[1, 2], FirstTurn::Running, WorkerFact::Starting)),
        ("ready; ask 1; ask 2", facts(&[1, 2], FirstTurn::Running, WorkerFact::Up)),
        ("ready; ask 1; ok 1", facts(&[], FirstTurn::Running, WorkerFact::Up)),
        ("ready; ask 1; stdin 1", facts(&[1], FirstTurn::AwaitingInput, WorkerFact::Up)),
        ("ready; ask 1; deadline 1", facts(&[1], FirstTurn::Interrupting(cause), WorkerFact::Up)),
        (
            "ready; ask 1; ended; ask 2",
            RecoveryFacts { restarts: 1, ..facts(&[2], FirstTurn::Running, WorkerFact::Gone) },
        ),
    ] {
        assert_eq!(run(script).0, SessionMachine::recover(facts), "{script}");
    }
}

/// An earlier node requested the restart and could not record the reason.
#[test]
fn a_worker_that_an_earlier_node_had_replaced_costs_only_the_turn_that_ran_on_it() {
    for (script, expected) in [
        ("ready; ask 1; replaced; ready", "Busy(1)"),
        ("ready; ask 1; ask 2; replaced; ready; ok 1", "Busy(2)"),
        ("ready; ask 1; ask 2; replaced 1; ready", "Idle(1)"),
        ("ready; ask 1; deadline 1; replaced 1; ready; ask 2", "Busy(2)"),
        ("ready; ask 1; ok 1; replaced; ready; ask 2", "Busy(2)"),
        ("ready; ask 1; ok 1; reset; replaced; ready; ask 2", "Busy(2)"),
    ] {
        let (session, _) = run(script);
        assert_eq!(phase_and_waiting(&session), expected, "{script}");
        assert!(session.restarts() == 1, "{script}: {} restarts", session.restarts());
        assert_eq!(session.resume(TurnNo(2), 1), Vec::new(), "{script}");
    }
}

#[test]
fn a_new_node_tells_the_keeper_only_what_it_missed() {
    let resume = |script: &str, last_turn, restarts| {
        said(&run(script).0.resume(TurnNo(last_turn), restarts))
    };
    expect!["-"].assert_eq(&resume("ready; ask 1; ok 1", 1, 0));
    expect!["-"].assert_eq(&resume("ready; ask 1; ask 2", 1, 0));
    expect!["start 1"].assert_eq(&resume("ready; ask 1; ask 2", 0, 0));
    expect!["interrupt-again 1"].assert_eq(&resume("ready; ask 1; deadline 1", 1, 0));
    expect!["start 1, interrupt-again 1"].assert_eq(&resume("ready; ask 1; deadline 1", 0, 0));
    expect!["restart"].assert_eq(&resume("ready; ask 1; ended", 1, 0));
    expect!["-"].assert_eq(&resume("ready; ask 1; ended; ask 2", 1, 1));
    expect!["stop-keeper"].assert_eq(&resume("ready; close", 0, 0));
    expect!["-"].assert_eq(&resume("keeper-died", 0, 0));
}
