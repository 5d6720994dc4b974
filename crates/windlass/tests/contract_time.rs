//! The contract lines on time, against a real node, keeper and Python: replies that wait, deadlines,
//! interrupts, and code that cannot be stopped. Processes that are stopped or killed from outside are in
//! `contract_death.rs`.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::time::{Duration, Instant};

use windlass_client::Client;
use windlass_client::protocol::api::{CreateSession, SubmitTurn, Turn, TurnQuery, TurnState};
use windlass_client::protocol::{ErrorCode, EventKind, Outcome, Seq, SessionId};
use windlass_testkit::{
    Gate, PATIENCE, TestNode, odd_worker, processes, run, run_ok, turn, turn_ended, wait_for_event,
    within,
};

/// The time that "at once" may take on a busy machine.
const AT_ONCE: Duration = Duration::from_secs(5);

/// The grace period of sessions whose code does not stop.
const GRACE: Duration = Duration::from_secs(1);

/// Ignores every interrupt, and prints when it is ready for them.
const SWALLOW: &str = "import time\n\
    while True:\n\
    \x20   try:\n\
    \x20       print('begun')\n\
    \x20       time.sleep(60)\n\
    \x20   except KeyboardInterrupt:\n\
    \x20       pass";

/// A node, its client, and a session whose code is killed [`GRACE`] after an interrupt.
async fn start() -> (TestNode, Client, SessionId) {
    let node = TestNode::start(env!("CARGO_BIN_EXE_windlass")).await.unwrap();
    let client = node.client().await.unwrap();
    let created = client.create_session(&impatient()).await.unwrap();
    (node, client, created.session.id)
}

fn impatient() -> CreateSession {
    CreateSession { interrupt_grace_ms: Some(millis(GRACE)), ..TestNode::create() }
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap()
}

/// Starts a turn and waits until it has printed something.
async fn begin(client: &Client, session: &SessionId, submit: SubmitTurn) -> Turn {
    let before = client.session(session).await.unwrap().seq;
    let begun = client.submit_turn(session, &submit).await.unwrap();
    printed(client, session, before).await;
    begun
}

async fn printed(client: &Client, session: &SessionId, after: Seq) {
    let output = |kind: &EventKind| matches!(kind, EventKind::Output { .. });
    wait_for_event(client, session, after, PATIENCE, |item| output(&item.event.kind))
        .await
        .unwrap();
}

fn waiting(wait: Duration) -> TurnQuery {
    TurnQuery { wait_ms: millis(wait), output_bytes_max: None, ..TurnQuery::default() }
}

fn code_of(turn: &Turn) -> Option<ErrorCode> {
    turn.error.as_ref().and_then(|error| error.code)
}

#[tokio::test]
async fn contract_19_a_reply_whose_wait_passes_leaves_the_turn_running() {
    let (_node, client, session) = start().await;
    let gate = Gate::new("g").unwrap();
    let wait = Duration::from_millis(300);
    let code = format!("x = 41\nprint('before')\n{}x += 1\nprint('after')", gate.python());
    let asked = Instant::now();
    let submit = SubmitTurn { wait_ms: millis(wait), ..turn(code) };
    let early = within(wait + AT_ONCE, client.submit_turn(&session, &submit)).await.unwrap();
    assert!(asked.elapsed() >= wait, "it answered after {:?}", asked.elapsed());
    assert_eq!((early.state, early.outcome), (TurnState::Running, None));
    let at_gate = within(PATIENCE, gate.reached()).await.unwrap();
    // A later request waits just as long, and shows the output so far.
    let asked = Instant::now();
    let look = client.turn(&session, &early.id, waiting(wait));
    let looked = within(wait + AT_ONCE, look).await.unwrap();
    assert!(asked.elapsed() >= wait, "it answered after {:?}", asked.elapsed());
    assert_eq!((looked.state, looked.output.text.as_str()), (TurnState::Running, "before\n"));
    at_gate.open().await.unwrap();
    let ended = turn_ended(&client, &session, &early.id, PATIENCE).await.unwrap();
    assert_eq!((ended.outcome, ended.output.text.as_str()), (Some(Outcome::Ok), "before\nafter\n"));
    assert_eq!(run_ok(&client, &session, "x").await, "42\n");
}

#[tokio::test]
async fn contract_20_a_deadline_gives_the_output_so_far_and_says_what_was_kept() {
    let (_node, client, session) = start().await;
    run_ok(&client, &session, "kept = 'yes'").await;
    let deadline = Duration::from_secs(3);
    let code = "import time\nfor i in range(1000):\n    print(i)\nmore = 'too'\ntime.sleep(60)";
    let submit = SubmitTurn {
        deadline_ms: Some(millis(deadline)),
        wait_ms: millis(PATIENCE),
        output_bytes_max: Some(100_000),
        ..turn(code)
    };
    let asked = Instant::now();
    let late = within(deadline + AT_ONCE, client.submit_turn(&session, &submit)).await.unwrap();
    assert!(asked.elapsed() >= deadline, "it was stopped after {:?}", asked.elapsed());
    assert_eq!((late.state, late.outcome), (TurnState::Ended, Some(Outcome::TimedOut)));
    assert_eq!(code_of(&late), Some(ErrorCode::DeadlinePassed));
    let lines: String = (0..1000).map(|i| format!("{i}\n")).collect();
    assert!(late.output.text.starts_with(&lines), "{}", late.output.text);
    let receipt = late.receipt.expect("a receipt says what was kept");
    assert!(receipt.kept.iter().any(|kept| kept.contains("variables")), "{receipt:?}");
    assert_eq!(receipt.lost, Vec::<String>::new());
    assert_eq!(run_ok(&client, &session, "kept, more").await, "('yes', 'too')\n");
}

#[tokio::test]
async fn contract_20_a_deadline_that_costs_the_state_says_so() {
    let (_node, client, session) = start().await;
    let deadline = Duration::from_secs(2);
    let submit = SubmitTurn {
        deadline_ms: Some(millis(deadline)),
        wait_ms: millis(PATIENCE),
        ..turn(SWALLOW)
    };
    let reply = client.submit_turn(&session, &submit);
    let late = within(deadline + GRACE + AT_ONCE, reply).await.unwrap();
    assert_eq!(late.outcome, Some(Outcome::TimedOut));
    assert_eq!(code_of(&late), Some(ErrorCode::Unstoppable));
    assert!(late.output.text.starts_with("begun\n"), "{}", late.output.text);
    let receipt = late.receipt.expect("a receipt says what was lost");
    assert!(receipt.lost.iter().any(|lost| lost.contains("variables")), "{receipt:?}");
    assert!(!receipt.kept.iter().any(|kept| kept.contains("variables")), "{receipt:?}");
}

/// Interrupts `code`, which prints and then blocks for a minute, while a reply waits for it.
async fn interrupt_overtakes(code: &str) {
    let (node, client, session) = start().await;
    run_ok(&client, &session, "x = 7").await;
    let before = client.session(&session).await.unwrap();
    let pending = {
        let submit = SubmitTurn { wait_ms: millis(PATIENCE), ..turn(code) };
        let (client, session) = (node.client().await.unwrap(), session.clone());
        tokio::spawn(async move { client.submit_turn(&session, &submit).await })
    };
    printed(&client, &session, before.seq).await;
    assert!(!pending.is_finished());
    within(AT_ONCE, client.interrupt(&session)).await.unwrap();
    let stopped = within(AT_ONCE, pending).await.unwrap().unwrap();
    kept_its_state(&client, &session, &stopped, before.worker_pid).await;
}

async fn kept_its_state(client: &Client, session: &SessionId, stopped: &Turn, pid: Option<u32>) {
    assert_eq!((stopped.state, stopped.outcome), (TurnState::Ended, Some(Outcome::Interrupted)));
    assert_eq!(code_of(stopped), None, "{:?}", stopped.error);
    assert!(stopped.receipt.as_ref().is_none_or(|receipt| receipt.lost.is_empty()));
    assert_eq!(run_ok(client, session, "x").await, "7\n");
    let after = client.session(session).await.unwrap();
    assert_eq!((after.restarts, after.worker_pid), (0, pid));
}

#[tokio::test]
async fn contract_21_an_interrupt_overtakes_a_sleep() {
    interrupt_overtakes("import time\nprint('asleep')\ntime.sleep(60)").await;
}

#[tokio::test]
async fn contract_21_an_interrupt_overtakes_a_busy_loop() {
    interrupt_overtakes("print('busy')\nwhile True:\n    pass").await;
}

#[tokio::test]
async fn contract_21_an_interrupt_overtakes_a_wait_for_a_child() {
    let code = "import subprocess\nprint('waiting')\nsubprocess.run(['sleep', '60'])";
    interrupt_overtakes(code).await;
}

#[tokio::test]
async fn contract_21_an_interrupt_overtakes_input() {
    let (_node, client, session) = start().await;
    run_ok(&client, &session, "x = 7").await;
    let before = client.session(&session).await.unwrap();
    let asking = run(&client, &session, "x = input('name? ')").await;
    assert_eq!(asking.state, TurnState::AwaitingInput);
    within(AT_ONCE, client.interrupt_turn(&session, &asking.id)).await.unwrap();
    let stopped = turn_ended(&client, &session, &asking.id, AT_ONCE).await.unwrap();
    assert_eq!(stopped.stdin_wait, None);
    kept_its_state(&client, &session, &stopped, before.worker_pid).await;
}

/// A turn that waits for its worker to start runs nothing yet. A client that stops "the running turn" of the
/// session means this one.
#[tokio::test]
async fn contract_21_an_interrupt_overtakes_the_start_of_a_worker() {
    let node = TestNode::start(env!("CARGO_BIN_EXE_windlass")).await.unwrap();
    let client = node.client().await.unwrap();
    let gate = Gate::new("start").unwrap();
    let script = format!("{}ready()\n{RUNS_EACH_TURN}", gate.python());
    let odd = odd_worker(node.base(), "late", &script).unwrap();
    let create = CreateSession { interpreter: odd.interpreter, ..TestNode::create() };
    let session = client.create_session(&create).await.unwrap().session.id;
    let stopped = client.submit_turn(&session, &turn("stopped")).await.unwrap();
    let next = client.submit_turn(&session, &turn("next")).await.unwrap();
    let at_gate = within(PATIENCE, gate.reached()).await.unwrap();
    let answer = within(AT_ONCE, client.interrupt(&session)).await.unwrap();
    assert_eq!((&answer.id, answer.outcome), (&stopped.id, Some(Outcome::Interrupted)));
    at_gate.open().await.unwrap();
    let next = turn_ended(&client, &session, &next.id, PATIENCE).await.unwrap();
    assert_eq!((next.outcome, next.output.text.as_str()), (Some(Outcome::Ok), "ran next"));
}

const RUNS_EACH_TURN: &str =
    "for turn, code in turns():\n    send(out(turn, 'ran ' + code), idle(turn))\n";

/// Handles an interrupt by printing more than a socket buffer holds.
const HEED: &str = "import time\n\
    try:\n\
    \x20   print('begun')\n\
    \x20   time.sleep(60)\n\
    finally:\n\
    \x20   print('x' * 1_000_000)";

#[tokio::test]
async fn contract_21_a_stopped_node_kills_no_code_that_handles_its_interrupt() {
    let (node, client, first) = start().await;
    let mut sessions = vec![first];
    for _ in 0..4 {
        sessions.push(client.create_session(&impatient()).await.unwrap().session.id);
    }
    let mut begun = Vec::new();
    for session in &sessions {
        run_ok(&client, session, "x = 7").await;
        begun.push(begin(&client, session, turn(HEED)).await);
    }
    for session in &sessions {
        within(AT_ONCE, client.interrupt(session)).await.unwrap();
    }
    processes::stop(node.pid());
    // Longer than each grace period. There is no event to wait for.
    let passed = std::process::Command::new("sleep").arg("1.5").status();
    processes::resume(node.pid());
    assert!(passed.unwrap().success());
    for (session, begun) in sessions.iter().zip(&begun) {
        let ended = turn_ended(&client, session, &begun.id, PATIENCE).await.unwrap();
        assert_eq!((ended.outcome, code_of(&ended)), (Some(Outcome::Interrupted), None));
        assert!(ended.output.bytes > 1_000_000, "{} bytes", ended.output.bytes);
        assert_eq!(run_ok(&client, session, "x").await, "7\n");
    }
}

#[tokio::test]
async fn contract_22_code_that_swallows_interrupts_is_killed_after_the_grace() {
    let (_node, client, session) = start().await;
    run_ok(&client, &session, "x = 7\nopen('file', 'w').write('kept')").await;
    let child = "import subprocess\nchild = subprocess.Popen(['setsid', 'sleep', '60'])";
    run_ok(&client, &session, child).await;
    let keeper = client.session(&session).await.unwrap().keeper_pid.unwrap();
    let old = processes::descendants(keeper);
    assert!(old.len() >= 2, "the worker and its child: {old:?}");
    let stubborn = begin(&client, &session, turn(SWALLOW)).await;
    let asked = Instant::now();
    within(AT_ONCE, client.interrupt(&session)).await.unwrap();
    let killed = turn_ended(&client, &session, &stubborn.id, GRACE + AT_ONCE).await.unwrap();
    assert!(asked.elapsed() >= GRACE, "it was killed after {:?}", asked.elapsed());
    assert_eq!(killed.outcome, Some(Outcome::Interrupted));
    assert_eq!(code_of(&killed), Some(ErrorCode::Unstoppable));
    let receipt = killed.receipt.expect("a receipt names what was lost");
    for lost in ["variables", "processes"] {
        assert!(receipt.lost.iter().any(|text| text.contains(lost)), "{receipt:?}");
    }
    assert!(receipt.kept.iter().any(|text| text.contains("workspace")), "{receipt:?}");
    // The session is fresh, and the receipt is true.
    assert_eq!(
        run_ok(&client, &session, "'x' in globals(), open('file').read()").await,
        "(False, 'kept')\n"
    );
    assert_eq!(client.session(&session).await.unwrap().restarts, 1);
    assert!(old.iter().all(|pid| !processes::alive(*pid)), "{old:?}");
}

#[tokio::test]
async fn contract_22_a_started_fresh_worker_is_not_given_up() {
    let node = TestNode::builder(env!("CARGO_BIN_EXE_windlass"))
        .arg("--keeper-patience")
        .arg("4s")
        .start()
        .await
        .unwrap();
    let client = node.client().await.unwrap();
    let session = client.create_session(&impatient()).await.unwrap().session.id;
    let stubborn = begin(&client, &session, turn(SWALLOW)).await;
    client.interrupt(&session).await.unwrap();
    turn_ended(&client, &session, &stubborn.id, PATIENCE).await.unwrap();
    // This turn takes longer than a keeper may take to reply to the restart before it.
    let code = "import time\ntime.sleep(4.5)\nprint('done')";
    assert_eq!(run_ok(&client, &session, code).await, "done\n");
}

/// Holds the GIL in native code, so that Python handles no signal.
const HOLD_THE_GIL: &str = "import ctypes, signal\n\
    hold = ctypes.PyDLL(None).sleep\n\
    signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())\n\
    print('held')\n\
    hold(5)\n";

#[tokio::test]
async fn contract_23_native_code_that_holds_the_gil_delays_nobody_else() {
    let (node, client, session) = start().await;
    let other = node.session(&client).await.unwrap().id;
    run_ok(&client, &other, "y = 1").await;
    let held = begin(&client, &session, turn(HOLD_THE_GIL)).await;
    let since = Instant::now();
    let poll = client.turn(&session, &held.id, TurnQuery::default());
    assert_eq!(within(AT_ONCE, poll).await.unwrap().state, TurnState::Running);
    let wait = Duration::from_millis(200);
    let look = client.turn(&session, &held.id, waiting(wait));
    assert_eq!(within(wait + AT_ONCE, look).await.unwrap().state, TurnState::Running);
    assert_eq!(within(AT_ONCE, run_ok(&client, &other, "y + 1")).await, "2\n");
    within(AT_ONCE, client.session(&session)).await.unwrap();
    within(AT_ONCE, client.interrupt(&session)).await.unwrap();
    let killed = turn_ended(&client, &session, &held.id, GRACE + AT_ONCE).await.unwrap();
    assert_eq!(code_of(&killed), Some(ErrorCode::Unstoppable));
    assert!(since.elapsed() < Duration::from_secs(5), "all waited for the native code");
    assert_eq!(within(PATIENCE, run_ok(&client, &session, "1 + 1")).await, "2\n");
}

#[tokio::test]
async fn contract_23_a_session_that_holds_the_gil_can_be_closed_in_time() {
    let (_node, client, session) = start().await;
    begin(&client, &session, turn(HOLD_THE_GIL)).await;
    let close = windlass_client::protocol::api::CloseQuery { grace_ms: Some(100) };
    within(AT_ONCE, client.close_session(&session, close)).await.unwrap();
}

/// Makes a session lose its state while turns wait: `lose` ends the worker in the code at the gate, or after
/// an interrupt.
async fn turns_behind_fail(lose: &str, expected: ErrorCode) {
    let (_node, client, session) = start().await;
    run_ok(&client, &session, "x = 7").await;
    let workspace = client.session(&session).await.unwrap().workspace;
    let gate = Gate::new("g").unwrap();
    let code = format!("{}{lose}", gate.python());
    let before = client.session(&session).await.unwrap().seq;
    let first = client.submit_turn(&session, &turn(code)).await.unwrap();
    let mut behind = Vec::new();
    for i in 0..5 {
        let submit = turn(format!("open('ran{i}', 'w').close()"));
        behind.push(client.submit_turn(&session, &submit).await.unwrap());
    }
    within(PATIENCE, gate.reached()).await.unwrap().open().await.unwrap();
    printed(&client, &session, before).await;
    if expected == ErrorCode::Unstoppable {
        client.interrupt_turn(&session, &first.id).await.unwrap();
    }
    let first = turn_ended(&client, &session, &first.id, PATIENCE).await.unwrap();
    assert_eq!(code_of(&first), Some(expected));
    for waiting in behind {
        let failed = turn_ended(&client, &session, &waiting.id, AT_ONCE).await.unwrap();
        assert_eq!(failed.outcome, Some(Outcome::Lost));
        assert_eq!(code_of(&failed), Some(ErrorCode::StateLost));
        assert!(!failed.error.unwrap().message.is_empty(), "it says what to do");
        assert!(failed.receipt.is_some_and(|receipt| !receipt.lost.is_empty()));
    }
    // The next turn runs on the fresh worker. By then a waiting turn would have run, if it ran at all.
    assert_eq!(run_ok(&client, &session, "'x' in globals()").await, "False\n");
    let files = std::fs::read_dir(workspace).unwrap();
    let ran: Vec<_> = files.map(|file| file.unwrap().file_name()).collect();
    assert!(ran.is_empty(), "{ran:?}");
}

#[tokio::test]
async fn contract_24_turns_behind_an_unstoppable_one_fail_and_never_run() {
    turns_behind_fail(SWALLOW, ErrorCode::Unstoppable).await;
}

#[tokio::test]
async fn contract_24_turns_behind_a_dead_worker_fail_and_never_run() {
    turns_behind_fail("print('bye')\nimport os\nos._exit(1)", ErrorCode::WorkerDied).await;
}
