//! Workers that die, keepers that are lost, sessions that are reset or closed: which turns and which state
//! each of these loses.

use expect_test::expect;

use crate::check;

#[test]
fn a_turn_that_does_not_stop_costs_the_state_and_the_turns_behind_it() {
    check(
        "ready; ask 1; ask 2; ask 3; interrupt 1; grace 1; ask 4; ended; ready; ok 4",
        expect![[r#"
            ready          Idle(1)                     -
            ask 1          Busy(1)                     accept 1, start 1
            ask 2          Busy(1)+1                   accept 2
            ask 3          Busy(1)+2                   accept 3
            interrupt 1    Interrupting(1, Client)+2   interrupt 1
            grace 1        Restarting(1, leaving)      finish 1 Interrupted unstoppable !, finish 2 Lost state_lost !, finish 3 Lost state_lost !, restart
            ask 4          Restarting(1, leaving)+1    accept 4
            ended          Restarting(1)+1             -
            ready          Busy(4)                     start 4
            ok 4           Idle(0)                     finish 4 Ok
        "#]],
    );
    check(
        "ready; ask 1; deadline 1; grace 1; grace 1",
        expect![[r#"
        ready          Idle(1)                     -
        ask 1          Busy(1)                     accept 1, start 1
        deadline 1     Interrupting(1, Deadline)   interrupt 1
        grace 1        Restarting(1, leaving)      finish 1 TimedOut unstoppable !, restart
        grace 1        Restarting(1, leaving)      -
    "#]],
    );
}

#[test]
fn a_grace_without_an_interrupt_changes_nothing() {
    check(
        "ready; ask 1; grace 1; ok 1; grace 1",
        expect![[r#"
        ready          Idle(1)                     -
        ask 1          Busy(1)                     accept 1, start 1
        grace 1        Busy(1)                     -
        ok 1           Idle(0)                     finish 1 Ok
        grace 1        Idle(0)                     -
    "#]],
    );
}

#[test]
fn a_worker_that_dies_in_a_turn_loses_it_and_the_turns_behind_it() {
    check(
        "ready; ask 1; ask 2; ended; ready; ask 3; ok 3",
        expect![[r#"
        ready          Idle(1)                     -
        ask 1          Busy(1)                     accept 1, start 1
        ask 2          Busy(1)+1                   accept 2
        ended          Restarting(1)               finish 1 Lost worker_died !, finish 2 Lost state_lost !, restart
        ready          Idle(1)                     -
        ask 3          Busy(3)                     accept 3, start 3
        ok 3           Idle(0)                     finish 3 Ok
    "#]],
    );
    check(
        "ready; ask 1; stdin 1; ended",
        expect![[r#"
        ready          Idle(1)                     -
        ask 1          Busy(1)                     accept 1, start 1
        stdin 1        AwaitingInput(1)            -
        ended          Restarting(1)               finish 1 Lost worker_died !, restart
    "#]],
    );
}

#[test]
fn a_worker_that_dies_while_interrupted_ends_the_turn_by_its_cause() {
    check(
        "ready; ask 1; interrupt 1; ended",
        expect![[r#"
        ready          Idle(1)                     -
        ask 1          Busy(1)                     accept 1, start 1
        interrupt 1    Interrupting(1, Client)     interrupt 1
        ended          Restarting(1)               finish 1 Interrupted worker_died !, restart
    "#]],
    );
    check(
        "ready; ask 1; deadline 1; ended; grace 1",
        expect![[r#"
        ready          Idle(1)                     -
        ask 1          Busy(1)                     accept 1, start 1
        deadline 1     Interrupting(1, Deadline)   interrupt 1
        ended          Restarting(1)               finish 1 TimedOut worker_died !, restart
        grace 1        Restarting(1)               -
    "#]],
    );
}

#[test]
fn a_loss_between_turns_is_reported_once_to_the_next_turn() {
    check(
        "ready; ask 1; ok 1; ended; ready; ask 2; ask 3; ok 3",
        expect![[r#"
        ready          Idle(1)                     -
        ask 1          Busy(1)                     accept 1, start 1
        ok 1           Idle(0)                     finish 1 Ok
        ended          Restarting(1, notice owed)  restart
        ready          Idle(1, notice owed)        -
        ask 2          Idle(1)                     accept 2, finish 2 Lost state_lost !
        ask 3          Busy(3)                     accept 3, start 3
        ok 3           Idle(0)                     finish 3 Ok
    "#]],
    );
    check(
        "ready; ask 1; ok 1; ended; ask 2; ask 3; ready",
        expect![[r#"
        ready          Idle(1)                     -
        ask 1          Busy(1)                     accept 1, start 1
        ok 1           Idle(0)                     finish 1 Ok
        ended          Restarting(1, notice owed)  restart
        ask 2          Restarting(1)               accept 2, finish 2 Lost state_lost !
        ask 3          Restarting(1)+1             accept 3
        ready          Busy(3)                     start 3
    "#]],
    );
}

#[test]
fn a_worker_that_ran_no_turn_loses_no_state() {
    check(
        "ready; ended; ready; ask 1",
        expect![[r#"
        ready          Idle(1)                     -
        ended          Restarting(2)               restart
        ready          Idle(2)                     -
        ask 1          Busy(1)                     accept 1, start 1
    "#]],
    );
}

#[test]
fn a_first_worker_that_does_not_start_ends_the_session_at_once() {
    check(
        "ask 1; ask 2; ended; ask 3",
        expect![[r#"
        ask 1          Starting+1                  accept 1
        ask 2          Starting+2                  accept 2
        ended          Ended(StartFailed)          finish 1 Lost worker_failed, finish 2 Lost worker_failed, stop-keeper, end StartFailed
        ask 3          Ended(StartFailed)          refuse 3 session_ended
    "#]],
    );
}

#[test]
fn a_later_worker_gets_three_attempts() {
    check(
        "ready; ask 1; ended; ended; ask 2; ended; ended",
        expect![[r#"
        ready          Idle(1)                     -
        ask 1          Busy(1)                     accept 1, start 1
        ended          Restarting(1)               finish 1 Lost worker_died !, restart
        ended          Restarting(2)               restart
        ask 2          Restarting(2)+1             accept 2
        ended          Restarting(3)+1             restart
        ended          Ended(StartFailed)          finish 2 Lost worker_failed !, stop-keeper, end StartFailed
    "#]],
    );
}

#[test]
fn the_end_of_a_worker_told_to_stop_is_no_failed_start() {
    check(
        "ready; ask 1; interrupt 1; grace 1; ended; ended; ended; ready",
        expect![[r#"
        ready          Idle(1)                     -
        ask 1          Busy(1)                     accept 1, start 1
        interrupt 1    Interrupting(1, Client)     interrupt 1
        grace 1        Restarting(1, leaving)      finish 1 Interrupted unstoppable !, restart
        ended          Restarting(1)               -
        ended          Restarting(2)               restart
        ended          Restarting(3)               restart
        ready          Idle(3)                     -
    "#]],
    );
}

#[test]
fn a_worker_that_starts_and_dies_again_and_again_is_given_up() {
    check(
        "ready; ended; ready; ended; ready; ended",
        expect![[r#"
        ready          Idle(1)                     -
        ended          Restarting(2)               restart
        ready          Idle(2)                     -
        ended          Restarting(3)               restart
        ready          Idle(3)                     -
        ended          Ended(WorkerExited)         stop-keeper, end WorkerExited
    "#]],
    );
}

#[test]
fn a_turn_that_ends_gives_the_next_worker_all_its_attempts() {
    check(
        "ready; ended; ready; ended; ready; ask 1; ok 1; ended; ready",
        expect![[r#"
        ready          Idle(1)                     -
        ended          Restarting(2)               restart
        ready          Idle(2)                     -
        ended          Restarting(3)               restart
        ready          Idle(3)                     -
        ask 1          Busy(1)                     accept 1, start 1
        ok 1           Idle(0)                     finish 1 Ok
        ended          Restarting(1, notice owed)  restart
        ready          Idle(1, notice owed)        -
    "#]],
    );
}

#[test]
fn a_reset_stops_what_runs_and_drops_what_waits() {
    check(
        "ready; ask 1; ask 2; reset; ok 1; ended; ask 3; ready",
        expect![[r#"
        ready          Idle(1)                     -
        ask 1          Busy(1)                     accept 1, start 1
        ask 2          Busy(1)+1                   accept 2
        reset          Restarting(1, leaving)      finish 1 Interrupted !, finish 2 Lost state_lost !, restart
        ok 1           Restarting(1, leaving)      -
        ended          Restarting(1)               -
        ask 3          Restarting(1)+1             accept 3
        ready          Busy(3)                     start 3
    "#]],
    );
    check(
        "ready; ask 1; deadline 1; reset",
        expect![[r#"
        ready          Idle(1)                     -
        ask 1          Busy(1)                     accept 1, start 1
        deadline 1     Interrupting(1, Deadline)   interrupt 1
        reset          Restarting(1, leaving)      finish 1 TimedOut deadline_passed !, restart
    "#]],
    );
    check(
        "ready; ask 1; ok 1; reset; ended; ready; ask 2",
        expect![[r#"
        ready          Idle(1)                     -
        ask 1          Busy(1)                     accept 1, start 1
        ok 1           Idle(0)                     finish 1 Ok
        reset          Restarting(1, leaving)      restart
        ended          Restarting(1)               -
        ready          Idle(1)                     -
        ask 2          Busy(2)                     accept 2, start 2
    "#]],
    );
}

#[test]
fn a_reset_of_a_worker_that_is_not_up_needs_no_second_one() {
    check(
        "ask 1; reset; ask 2; ready",
        expect![[r#"
        ask 1          Starting+1                  accept 1
        reset          Starting                    finish 1 Lost state_lost !
        ask 2          Starting+1                  accept 2
        ready          Busy(2)                     start 2
    "#]],
    );
    check(
        "ready; ask 1; ok 1; ended; reset; ask 2; ready",
        expect![[r#"
        ready          Idle(1)                     -
        ask 1          Busy(1)                     accept 1, start 1
        ok 1           Idle(0)                     finish 1 Ok
        ended          Restarting(1, notice owed)  restart
        reset          Restarting(1)               -
        ask 2          Restarting(1)+1             accept 2
        ready          Busy(2)                     start 2
    "#]],
    );
}

#[test]
fn a_close_ends_everything() {
    check(
        "ready; ask 1; ask 2; close; ended; ready; ok 1; ask 3; input 1; interrupt 2; close; reset",
        expect![[r#"
            ready          Idle(1)                     -
            ask 1          Busy(1)                     accept 1, start 1
            ask 2          Busy(1)+1                   accept 2
            close          Ended(Closed)               finish 1 Lost session_closed !, finish 2 Lost session_closed !, stop-keeper, end Closed
            ended          Ended(Closed)               -
            ready          Ended(Closed)               -
            ok 1           Ended(Closed)               -
            ask 3          Ended(Closed)               refuse 3 session_ended
            input 1        Ended(Closed)               refuse-input 1 turn_not_running
            interrupt 2    Ended(Closed)               refuse-interrupt 2 turn_not_running
            close          Ended(Closed)               -
            reset          Ended(Closed)               -
        "#]],
    );
    check(
        "close; ready",
        expect![[r#"
        close          Ended(Closed)               stop-keeper, end Closed
        ready          Ended(Closed)               -
    "#]],
    );
}

#[test]
fn a_broken_protocol_ends_the_session() {
    check(
        "ready; ask 1; ask 2; broken; broken",
        expect![[r#"
        ready          Idle(1)                     -
        ask 1          Busy(1)                     accept 1, start 1
        ask 2          Busy(1)+1                   accept 2
        broken         Ended(ProtocolError)        finish 1 Lost protocol_error !, finish 2 Lost state_lost !, stop-keeper, end ProtocolError
        broken         Ended(ProtocolError)        -
    "#]],
    );
    check(
        "broken",
        expect![[r#"
        broken         Ended(ProtocolError)        stop-keeper, end ProtocolError
    "#]],
    );
}

#[test]
fn a_lost_keeper_ends_the_session_and_is_not_stopped() {
    check(
        "ready; ask 1; ask 2; keeper-died",
        expect![[r#"
        ready          Idle(1)                     -
        ask 1          Busy(1)                     accept 1, start 1
        ask 2          Busy(1)+1                   accept 2
        keeper-died    Ended(KeeperLost)           finish 1 Lost keeper_lost !, finish 2 Lost state_lost !, end KeeperLost
    "#]],
    );
    check(
        "ready; node-gone; keeper-died",
        expect![[r#"
        ready          Idle(1)                     -
        node-gone      Ended(NodeGone)             end NodeGone
        keeper-died    Ended(NodeGone)             -
    "#]],
    );
}
