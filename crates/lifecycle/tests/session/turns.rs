//! Turns that run, wait, are stopped, or get input.

use expect_test::expect;
use windlass_lifecycle::session::{SessionEffect, SessionEvent, SessionMachine};
use windlass_protocol::TurnNo;
use windlass_protocol::api::{SessionState, TurnState};
use windlass_protocol::worker::WorkerOutcome;

use crate::{check, run, said};

#[test]
fn turns_run_one_at_a_time_in_the_order_asked() {
    check(
        "ready; ask 1; ask 2; ask 3; ok 1; error 2; ok 3",
        expect![[r#"
        ready          Idle(1)                     -
        ask 1          Busy(1)                     accept 1, start 1
        ask 2          Busy(1)+1                   accept 2
        ask 3          Busy(1)+2                   accept 3
        ok 1           Busy(2)+1                   finish 1 Ok, start 2
        error 2        Busy(3)                     finish 2 Error, start 3
        ok 3           Idle(0)                     finish 3 Ok
    "#]],
    );
}

#[test]
fn turns_asked_before_the_worker_is_up_wait_for_it() {
    check(
        "ask 1; ask 2; ready; ok 1; ok 2",
        expect![[r#"
        ask 1          Starting+1                  accept 1
        ask 2          Starting+2                  accept 2
        ready          Busy(1)+1                   start 1
        ok 1           Busy(2)                     finish 1 Ok, start 2
        ok 2           Idle(0)                     finish 2 Ok
    "#]],
    );
}

#[test]
fn a_late_turn_is_interrupted_once() {
    check(
        "ready; ask 7; deadline 7; deadline 7; interrupted 7; deadline 7",
        expect![[r#"
        ready          Idle(1)                     -
        ask 7          Busy(7)                     accept 7, start 7
        deadline 7     Interrupting(7, Deadline)   interrupt 7
        deadline 7     Interrupting(7, Deadline)   -
        interrupted 7  Idle(0)                     finish 7 TimedOut deadline_passed
        deadline 7     Idle(0)                     -
    "#]],
    );
}

#[test]
fn a_turn_past_its_deadline_keeps_its_outcome_only_if_it_completed() {
    check(
        "ready; ask 1; deadline 1; ok 1",
        expect![[r#"
        ready          Idle(1)                     -
        ask 1          Busy(1)                     accept 1, start 1
        deadline 1     Interrupting(1, Deadline)   interrupt 1
        ok 1           Idle(0)                     finish 1 Ok
    "#]],
    );
    check(
        "ready; ask 1; deadline 1; error 1",
        expect![[r#"
        ready          Idle(1)                     -
        ask 1          Busy(1)                     accept 1, start 1
        deadline 1     Interrupting(1, Deadline)   interrupt 1
        error 1        Idle(0)                     finish 1 TimedOut deadline_passed
    "#]],
    );
}

#[test]
fn an_interrupted_turn_ends_as_the_worker_says() {
    check(
        "ready; ask 1; interrupt 1; interrupted 1",
        expect![[r#"
        ready          Idle(1)                     -
        ask 1          Busy(1)                     accept 1, start 1
        interrupt 1    Interrupting(1, Client)     interrupt 1
        interrupted 1  Idle(0)                     finish 1 Interrupted
    "#]],
    );
    check(
        "ready; ask 1; interrupt 1; ok 1",
        expect![[r#"
        ready          Idle(1)                     -
        ask 1          Busy(1)                     accept 1, start 1
        interrupt 1    Interrupting(1, Client)     interrupt 1
        ok 1           Idle(0)                     finish 1 Ok
    "#]],
    );
    check(
        "ready; ask 1; interrupt 1; error 1",
        expect![[r#"
        ready          Idle(1)                     -
        ask 1          Busy(1)                     accept 1, start 1
        interrupt 1    Interrupting(1, Client)     interrupt 1
        error 1        Idle(0)                     finish 1 Error
    "#]],
    );
    check(
        "ready; ask 1; interrupted 1",
        expect![[r#"
        ready          Idle(1)                     -
        ask 1          Busy(1)                     accept 1, start 1
        interrupted 1  Idle(0)                     finish 1 Interrupted
    "#]],
    );
}

#[test]
fn a_second_interrupt_is_sent_again_and_keeps_the_first_cause() {
    check(
        "ready; ask 1; interrupt 1; interrupt 1; deadline 1; interrupted 1",
        expect![[r#"
        ready          Idle(1)                     -
        ask 1          Busy(1)                     accept 1, start 1
        interrupt 1    Interrupting(1, Client)     interrupt 1
        interrupt 1    Interrupting(1, Client)     interrupt-again 1
        deadline 1     Interrupting(1, Client)     -
        interrupted 1  Idle(0)                     finish 1 Interrupted
    "#]],
    );
    check(
        "ready; ask 1; deadline 1; interrupt 1; interrupted 1",
        expect![[r#"
        ready          Idle(1)                     -
        ask 1          Busy(1)                     accept 1, start 1
        deadline 1     Interrupting(1, Deadline)   interrupt 1
        interrupt 1    Interrupting(1, Deadline)   interrupt-again 1
        interrupted 1  Idle(0)                     finish 1 TimedOut deadline_passed
    "#]],
    );
}

#[test]
fn a_waiting_turn_can_be_interrupted_and_never_runs() {
    check(
        "ready; ask 1; ask 2; ask 3; interrupt 2; ok 1; interrupt 2",
        expect![[r#"
        ready          Idle(1)                     -
        ask 1          Busy(1)                     accept 1, start 1
        ask 2          Busy(1)+1                   accept 2
        ask 3          Busy(1)+2                   accept 3
        interrupt 2    Busy(1)+1                   finish 2 Interrupted
        ok 1           Busy(3)                     finish 1 Ok, start 3
        interrupt 2    Busy(3)                     refuse-interrupt 2 turn_not_running
    "#]],
    );
    check(
        "ask 1; interrupt 1; ready",
        expect![[r#"
        ask 1          Starting+1                  accept 1
        interrupt 1    Starting                    finish 1 Interrupted
        ready          Idle(1)                     -
    "#]],
    );
}

#[test]
fn a_deadline_counts_only_from_when_the_worker_has_the_turn() {
    check(
        "ready; ask 1; ask 2; deadline 2; grace 2",
        expect![[r#"
        ready          Idle(1)                     -
        ask 1          Busy(1)                     accept 1, start 1
        ask 2          Busy(1)+1                   accept 2
        deadline 2     Busy(1)+1                   -
        grace 2        Busy(1)+1                   -
    "#]],
    );
}

#[test]
fn input_reaches_only_the_turn_in_flight() {
    check(
        "ready; input 1; ask 1; ask 2; input 1; stdin 1; input 1; taken 1; input 2; interrupt 1; input 1",
        expect![[r#"
            ready          Idle(1)                     -
            input 1        Idle(1)                     refuse-input 1 turn_not_running
            ask 1          Busy(1)                     accept 1, start 1
            ask 2          Busy(1)+1                   accept 2
            input 1        Busy(1)+1                   give 1
            stdin 1        AwaitingInput(1)+1          -
            input 1        AwaitingInput(1)+1          give 1
            taken 1        Busy(1)+1                   -
            input 2        Busy(1)+1                   refuse-input 2 turn_not_running
            interrupt 1    Interrupting(1, Client)+1   interrupt 1
            input 1        Interrupting(1, Client)+1   refuse-input 1 turn_not_running
        "#]],
    );
}

#[test]
fn a_turn_that_waits_for_input_can_be_stopped() {
    check(
        "ready; ask 1; stdin 1; interrupt 1; stdin 1; interrupted 1",
        expect![[r#"
        ready          Idle(1)                     -
        ask 1          Busy(1)                     accept 1, start 1
        stdin 1        AwaitingInput(1)            -
        interrupt 1    Interrupting(1, Client)     interrupt 1
        stdin 1        Interrupting(1, Client)     -
        interrupted 1  Idle(0)                     finish 1 Interrupted
    "#]],
    );
    check(
        "ready; ask 1; stdin 1; deadline 1; taken 1; interrupted 1",
        expect![[r#"
        ready          Idle(1)                     -
        ask 1          Busy(1)                     accept 1, start 1
        stdin 1        AwaitingInput(1)            -
        deadline 1     Interrupting(1, Deadline)   interrupt 1
        taken 1        Interrupting(1, Deadline)   -
        interrupted 1  Idle(0)                     finish 1 TimedOut deadline_passed
    "#]],
    );
    check(
        "ready; ask 1; stdin 1; ok 1",
        expect![[r#"
        ready          Idle(1)                     -
        ask 1          Busy(1)                     accept 1, start 1
        stdin 1        AwaitingInput(1)            -
        ok 1           Idle(0)                     finish 1 Ok
    "#]],
    );
}

#[test]
fn an_event_about_another_turn_changes_nothing() {
    check(
        "ready; ok 1; ask 2; ok 1; stdin 1; taken 2; deadline 1; interrupt 1; ready; ok 2; stdin 2",
        expect![[r#"
            ready          Idle(1)                     -
            ok 1           Idle(1)                     -
            ask 2          Busy(2)                     accept 2, start 2
            ok 1           Busy(2)                     -
            stdin 1        Busy(2)                     -
            taken 2        Busy(2)                     -
            deadline 1     Busy(2)                     -
            interrupt 1    Busy(2)                     refuse-interrupt 1 turn_not_running
            ready          Busy(2)                     -
            ok 2           Idle(0)                     finish 2 Ok
            stdin 2        Idle(0)                     -
        "#]],
    );
}

#[test]
fn the_sixty_fifth_waiting_turn_is_refused_and_the_others_run() {
    let mut session = run("ready; ask 1").0;
    for turn in 2..=65 {
        let (next, effects) = session.step(SessionEvent::TurnAsked { turn: TurnNo(turn) });
        assert_eq!(effects, [SessionEffect::Accept { turn: TurnNo(turn) }]);
        session = next;
    }
    let (session, effects) = session.step(SessionEvent::TurnAsked { turn: TurnNo(66) });
    expect!["refuse 66 overloaded"].assert_eq(&said(&effects));
    let mut session = session;
    for turn in 1..=64 {
        let event = SessionEvent::TurnDone { turn: TurnNo(turn), outcome: WorkerOutcome::Ok };
        let (next, effects) = session.step(event);
        assert_eq!(effects[1], SessionEffect::Start { turn: TurnNo(turn + 1) });
        session = next;
    }
}

#[test]
fn sixty_four_turns_can_wait_for_the_first_worker() {
    let mut session = SessionMachine::default();
    for turn in 1..=64 {
        session = session.step(SessionEvent::TurnAsked { turn: TurnNo(turn) }).0;
    }
    let (session, effects) = session.step(SessionEvent::TurnAsked { turn: TurnNo(65) });
    expect!["refuse 65 overloaded"].assert_eq(&said(&effects));
    assert_eq!(session.waiting().len(), 64);
}

#[test]
fn clients_see_the_states_of_session_and_turns() {
    let session = run("ready; ask 1; ok 1; ask 2; ask 3").0;
    assert_eq!(session.state(), SessionState::Busy);
    assert_eq!(session.current(), Some(TurnNo(2)));
    assert_eq!(session.turn_state(TurnNo(1)), TurnState::Ended);
    assert_eq!(session.turn_state(TurnNo(2)), TurnState::Running);
    assert_eq!(session.turn_state(TurnNo(3)), TurnState::Waiting);
    let session = run("ready; ask 2; stdin 2").0;
    assert_eq!(session.turn_state(TurnNo(2)), TurnState::AwaitingInput);
    let session = run("ready; ask 2; interrupt 2").0;
    assert_eq!(session.turn_state(TurnNo(2)), TurnState::Interrupting);
}
