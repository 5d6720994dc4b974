//! Sessions that are held while a twin is made, and twins whose worker is not ready yet.

use expect_test::{Expect, expect};
use windlass_lifecycle::session::SessionMachine;

use super::{check, run_from};

fn check_twin(script: &str, expected: Expect) {
    expected.assert_eq(&run_from(SessionMachine::twin(), script).1);
}

#[test]
fn turns_wait_while_a_session_is_held() {
    check(
        "ready; hold; ask 1; ask 2; release; ok 1; ok 2",
        expect![[r#"
        ready          Idle(1)                     -
        hold           Idle(1) held                hold
        ask 1          Idle(1)+1 held              accept 1
        ask 2          Idle(1)+2 held              accept 2
        release        Busy(1)+1                   start 1
        ok 1           Busy(2)                     finish 1 Ok, start 2
        ok 2           Idle(0)                     finish 2 Ok
    "#]],
    );
}

#[test]
fn only_an_idle_session_is_held_and_only_once() {
    check(
        "hold; ready; ask 1; hold; ok 1; hold; hold; release; close; hold",
        expect![[r#"
        hold           Starting                    refuse-hold session_busy
        ready          Idle(1)                     -
        ask 1          Busy(1)                     accept 1, start 1
        hold           Busy(1)                     refuse-hold session_busy
        ok 1           Idle(0)                     finish 1 Ok
        hold           Idle(0) held                hold
        hold           Idle(0) held                refuse-hold session_busy
        release        Idle(0)                     -
        close          Ended(Closed)               stop-keeper, end Closed
        hold           Ended(Closed)               refuse-hold session_ended
    "#]],
    );
}

#[test]
fn a_reset_of_a_held_session_comes_when_it_is_released() {
    check(
        "ready; hold; ask 1; reset; ask 2; release; ended; ready; ok 2",
        expect![[r#"
        ready          Idle(1)                     -
        hold           Idle(1) held                hold
        ask 1          Idle(1)+1 held              accept 1
        reset          Idle(1) held                finish 1 Lost state_lost !
        ask 2          Idle(1)+1 held              accept 2
        release        Restarting(1, leaving)+1    restart
        ended          Restarting(1)+1             -
        ready          Busy(2)                     start 2
        ok 2           Idle(0)                     finish 2 Ok
    "#]],
    );
}

#[test]
fn a_worker_that_dies_in_a_held_session_is_replaced_and_waiting_turns_end() {
    check(
        "ready; ask 1; ok 1; hold; ask 2; ended; ready; ask 3; release",
        expect![[r#"
        ready          Idle(1)                     -
        ask 1          Busy(1)                     accept 1, start 1
        ok 1           Idle(0)                     finish 1 Ok
        hold           Idle(0) held                hold
        ask 2          Idle(0)+1 held              accept 2
        ended          Restarting(1) held          finish 2 Lost state_lost !, restart
        ready          Idle(1) held                -
        ask 3          Idle(1)+1 held              accept 3
        release        Busy(3)                     start 3
    "#]],
    );
    check(
        "ready; ask 1; ok 1; hold; ended; release; ready; ask 2",
        expect![[r#"
        ready          Idle(1)                     -
        ask 1          Busy(1)                     accept 1, start 1
        ok 1           Idle(0)                     finish 1 Ok
        hold           Idle(0) held                hold
        ended          Restarting(1, notice owed) held restart
        release        Restarting(1, notice owed)  -
        ready          Idle(1, notice owed)        -
        ask 2          Idle(1)                     accept 2, finish 2 Lost state_lost !
    "#]],
    );
}

#[test]
fn a_reset_of_a_held_session_settles_an_owed_notice_and_spares_later_turns() {
    check(
        "ready; ask 1; ok 1; hold; ended; reset; release; ready; ask 2",
        expect![[r#"
        ready          Idle(1)                     -
        ask 1          Busy(1)                     accept 1, start 1
        ok 1           Idle(0)                     finish 1 Ok
        hold           Idle(0) held                hold
        ended          Restarting(1, notice owed) held restart
        reset          Restarting(1) held          -
        release        Restarting(1)               -
        ready          Idle(1)                     -
        ask 2          Busy(2)                     accept 2, start 2
    "#]],
    );
    check(
        "ready; ask 1; ok 1; hold; reset; ask 2; ended; release; ready",
        expect![[r#"
        ready          Idle(1)                     -
        ask 1          Busy(1)                     accept 1, start 1
        ok 1           Idle(0)                     finish 1 Ok
        hold           Idle(0) held                hold
        reset          Idle(0) held                -
        ask 2          Idle(0)+1 held              accept 2
        ended          Restarting(1)+1 held        restart
        release        Restarting(1)+1             -
        ready          Busy(2)                     start 2
    "#]],
    );
}

#[test]
fn a_worker_that_never_stays_up_ends_a_held_session_with_the_turns_that_wait() {
    check(
        "ready; hold; ask 1; ended; ready; ended; ready; ended",
        expect![[r#"
        ready          Idle(1)                     -
        hold           Idle(1) held                hold
        ask 1          Idle(1)+1 held              accept 1
        ended          Restarting(2)+1 held        restart
        ready          Idle(2)+1 held              -
        ended          Restarting(3)+1 held        restart
        ready          Idle(3)+1 held              -
        ended          Ended(WorkerExited) held    finish 1 Lost worker_failed !, stop-keeper, end WorkerExited
    "#]],
    );
}

#[test]
fn a_held_session_is_in_use() {
    check(
        "ready; hold; idle; release; idle",
        expect![[r#"
        ready          Idle(1)                     -
        hold           Idle(1) held                hold
        idle           Idle(1) held                -
        release        Idle(1)                     -
        idle           Ended(Idle)                 stop-keeper, end Idle
    "#]],
    );
}

#[test]
fn a_twins_worker_holds_state_from_its_first_moment() {
    check_twin(
        "ready; ended; ready; ask 1",
        expect![[r#"
        ready          Idle(0)                     -
        ended          Restarting(1, notice owed)  restart
        ready          Idle(1, notice owed)        -
        ask 1          Idle(1)                     accept 1, finish 1 Lost state_lost !
    "#]],
    );
    check_twin(
        "ask 1; ready; ok 1",
        expect![[r#"
        ask 1          Starting+1 arriving         accept 1
        ready          Busy(1)                     start 1
        ok 1           Idle(0)                     finish 1 Ok
    "#]],
    );
}

#[test]
fn a_twin_can_be_held_and_reset_before_its_worker_is_up() {
    check_twin(
        "hold; ask 1; hold; ready; release",
        expect![[r#"
        hold           Starting arriving           -
        ask 1          Starting+1 arriving         accept 1
        hold           Starting+1 arriving         refuse-hold session_busy
        ready          Idle(0)+1 held              hold
        release        Busy(1)                     start 1
    "#]],
    );
    check_twin(
        "ask 1; reset; ask 2; ready; ended; ready",
        expect![[r#"
        ask 1          Starting+1 arriving         accept 1
        reset          Starting arriving           finish 1 Lost state_lost !
        ask 2          Starting+1 arriving         accept 2
        ready          Restarting(1, leaving)+1    restart
        ended          Restarting(1)+1             -
        ready          Busy(2)                     start 2
    "#]],
    );
    check_twin(
        "hold; reset; ready",
        expect![[r#"
        hold           Starting arriving           -
        reset          Starting arriving           -
        ready          Restarting(1, leaving)      refuse-hold session_busy, restart
    "#]],
    );
    check_twin(
        "ask 1; hold; ready",
        expect![[r#"
        ask 1          Starting+1 arriving         accept 1
        hold           Starting+1 arriving         refuse-hold session_busy
        ready          Busy(1)                     start 1
    "#]],
    );
    check_twin(
        "hold; release; ready; ask 1",
        expect![[r#"
        hold           Starting arriving           -
        release        Starting arriving           -
        ready          Idle(0)                     -
        ask 1          Busy(1)                     accept 1, start 1
    "#]],
    );
}
