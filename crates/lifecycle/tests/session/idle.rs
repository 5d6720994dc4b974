//! Sessions at their idle timeout: which ones end, and which ones are in use.

use expect_test::expect;

use crate::check;

#[test]
fn a_session_without_a_turn_ends_once_when_its_idle_timeout_passes() {
    check(
        "ready; idle; idle; ask 1; close",
        expect![[r#"
        ready          Idle(1)                     -
        idle           Ended(Idle)                 stop-keeper, end Idle
        idle           Ended(Idle)                 -
        ask 1          Ended(Idle)                 refuse 1 session_ended
        close          Ended(Idle)                 -
    "#]],
    );
    check(
        "ready; ask 1; ok 1; idle",
        expect![[r#"
        ready          Idle(1)                     -
        ask 1          Busy(1)                     accept 1, start 1
        ok 1           Idle(0)                     finish 1 Ok
        idle           Ended(Idle)                 stop-keeper, end Idle
    "#]],
    );
}

#[test]
fn a_session_with_a_turn_that_runs_waits_asks_or_is_stopped_is_not_idle() {
    check(
        "ready; ask 1; ask 2; idle; ok 1; idle; ok 2; idle",
        expect![[r#"
        ready          Idle(1)                     -
        ask 1          Busy(1)                     accept 1, start 1
        ask 2          Busy(1)+1                   accept 2
        idle           Busy(1)+1                   -
        ok 1           Busy(2)                     finish 1 Ok, start 2
        idle           Busy(2)                     -
        ok 2           Idle(0)                     finish 2 Ok
        idle           Ended(Idle)                 stop-keeper, end Idle
    "#]],
    );
    check(
        "ready; ask 1; stdin 1; idle; taken 1; interrupt 1; idle",
        expect![[r#"
        ready          Idle(1)                     -
        ask 1          Busy(1)                     accept 1, start 1
        stdin 1        AwaitingInput(1)            -
        idle           AwaitingInput(1)            -
        taken 1        Busy(1)                     -
        interrupt 1    Interrupting(1, Client)     interrupt 1
        idle           Interrupting(1, Client)     -
    "#]],
    );
}

#[test]
fn a_session_whose_worker_is_on_its_way_is_not_idle() {
    check(
        "idle; ready; idle",
        expect![[r#"
        idle           Starting                    -
        ready          Idle(1)                     -
        idle           Ended(Idle)                 stop-keeper, end Idle
    "#]],
    );
    check(
        "ask 1; idle; ready",
        expect![[r#"
        ask 1          Starting+1                  accept 1
        idle           Starting+1                  -
        ready          Busy(1)                     start 1
    "#]],
    );
    check(
        "ready; reset; idle; ended; ready; idle",
        expect![[r#"
        ready          Idle(1)                     -
        reset          Restarting(1, leaving)      restart
        idle           Restarting(1, leaving)      -
        ended          Restarting(1)               -
        ready          Idle(1)                     -
        idle           Ended(Idle)                 stop-keeper, end Idle
    "#]],
    );
}

#[test]
fn a_notice_that_is_owed_does_not_keep_a_session() {
    check(
        "ready; ask 1; ok 1; ended; idle; ready; idle",
        expect![[r#"
        ready          Idle(1)                     -
        ask 1          Busy(1)                     accept 1, start 1
        ok 1           Idle(0)                     finish 1 Ok
        ended          Restarting(1, notice owed)  restart
        idle           Restarting(1, notice owed)  -
        ready          Idle(1, notice owed)        -
        idle           Ended(Idle)                 stop-keeper, end Idle
    "#]],
    );
}
