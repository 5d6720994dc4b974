//! Sessions that reach a limit of their policy: how the turn ends, and how the session continues.

use expect_test::expect;

use crate::check;

#[test]
fn a_turn_that_a_limit_ended_names_it_and_the_session_goes_on() {
    check(
        "ready; ask 1; ask 2; out-of-memory; ready; ask 3; ok 3",
        expect![[r#"
            ready          Idle(1)                     -
            ask 1          Busy(1)                     accept 1, start 1
            ask 2          Busy(1)+1                   accept 2
            out-of-memory  Restarting(1)               finish 1 Lost limit_memory !, finish 2 Lost state_lost !, restart
            ready          Idle(1)                     -
            ask 3          Busy(3)                     accept 3, start 3
            ok 3           Idle(0)                     finish 3 Ok
        "#]],
    );
    check(
        "ready; ask 1; fork-bomb",
        expect![[r#"
        ready          Idle(1)                     -
        ask 1          Busy(1)                     accept 1, start 1
        fork-bomb      Restarting(1)               finish 1 Lost limit_processes !, restart
    "#]],
    );
    check(
        "ready; ask 1; stdin 1; disk-filled",
        expect![[r#"
        ready          Idle(1)                     -
        ask 1          Busy(1)                     accept 1, start 1
        stdin 1        AwaitingInput(1)            -
        disk-filled    Restarting(1)               finish 1 Lost limit_disk !, restart
    "#]],
    );
}

#[test]
fn a_turn_that_was_being_stopped_keeps_that_outcome_and_names_the_limit() {
    check(
        "ready; ask 1; interrupt 1; out-of-memory",
        expect![[r#"
        ready          Idle(1)                     -
        ask 1          Busy(1)                     accept 1, start 1
        interrupt 1    Interrupting(1, Client)     interrupt 1
        out-of-memory  Restarting(1)               finish 1 Interrupted limit_memory !, restart
    "#]],
    );
    check(
        "ready; ask 1; deadline 1; fork-bomb; grace 1",
        expect![[r#"
        ready          Idle(1)                     -
        ask 1          Busy(1)                     accept 1, start 1
        deadline 1     Interrupting(1, Deadline)   interrupt 1
        fork-bomb      Restarting(1)               finish 1 TimedOut limit_processes !, restart
        grace 1        Restarting(1)               -
    "#]],
    );
}

#[test]
fn a_limit_reached_between_turns_is_reported_as_lost_state() {
    check(
        "ready; ask 1; ok 1; out-of-memory; ready; ask 2; ask 3",
        expect![[r#"
        ready          Idle(1)                     -
        ask 1          Busy(1)                     accept 1, start 1
        ok 1           Idle(0)                     finish 1 Ok
        out-of-memory  Restarting(1, notice owed)  restart
        ready          Idle(1, notice owed)        -
        ask 2          Idle(1)                     accept 2, finish 2 Lost state_lost !
        ask 3          Busy(3)                     accept 3, start 3
    "#]],
    );
}

#[test]
fn a_limit_that_is_too_small_for_the_worker_is_a_failed_start() {
    check(
        "out-of-memory",
        expect![[r#"
        out-of-memory  Ended(StartFailed)          stop-keeper, end StartFailed
    "#]],
    );
    check(
        "ready; ask 1; out-of-memory; out-of-memory; out-of-memory; out-of-memory",
        expect![[r#"
        ready          Idle(1)                     -
        ask 1          Busy(1)                     accept 1, start 1
        out-of-memory  Restarting(1)               finish 1 Lost limit_memory !, restart
        out-of-memory  Restarting(2)               restart
        out-of-memory  Restarting(3)               restart
        out-of-memory  Ended(StartFailed)          stop-keeper, end StartFailed
    "#]],
    );
}

#[test]
fn a_session_far_over_its_disk_limit_ends_with_every_turn_in_it() {
    check(
        "ready; ask 1; ask 2; disk-passed; disk-filled; ask 3",
        expect![[r#"
            ready          Idle(1)                     -
            ask 1          Busy(1)                     accept 1, start 1
            ask 2          Busy(1)+1                   accept 2
            disk-passed    Ended(Disk)                 finish 1 Lost limit_disk !, finish 2 Lost limit_disk !, stop-keeper, end Disk
            disk-filled    Ended(Disk)                 -
            ask 3          Ended(Disk)                 refuse 3 session_ended
        "#]],
    );
}

#[test]
fn wall_time_ends_the_session_and_every_turn_in_it_by_name() {
    check(
        "ready; ask 1; ask 2; wall-time; ok 1; ask 3; wall-time",
        expect![[r#"
            ready          Idle(1)                     -
            ask 1          Busy(1)                     accept 1, start 1
            ask 2          Busy(1)+1                   accept 2
            wall-time      Ended(WallTime)             finish 1 Lost limit_wall_time !, finish 2 Lost limit_wall_time !, stop-keeper, end WallTime
            ok 1           Ended(WallTime)             -
            ask 3          Ended(WallTime)             refuse 3 session_ended
            wall-time      Ended(WallTime)             -
        "#]],
    );
    check(
        "ready; ask 1; interrupt 1; wall-time",
        expect![[r#"
        ready          Idle(1)                     -
        ask 1          Busy(1)                     accept 1, start 1
        interrupt 1    Interrupting(1, Client)     interrupt 1
        wall-time      Ended(WallTime)             finish 1 Lost limit_wall_time !, stop-keeper, end WallTime
    "#]],
    );
    check(
        "ready; wall-time",
        expect![[r#"
        ready          Idle(1)                     -
        wall-time      Ended(WallTime)             stop-keeper, end WallTime
    "#]],
    );
    check(
        "wall-time; ready",
        expect![[r#"
        wall-time      Ended(WallTime)             stop-keeper, end WallTime
        ready          Ended(WallTime)             -
    "#]],
    );
}
