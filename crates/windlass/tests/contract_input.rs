//! The contract lines on input, against a real node, keeper and Python: every way to read input ends in a
//! wait that a client can answer, and an answer never reaches another turn.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::path::Path;
use std::time::Duration;

use windlass_client::Client;
use windlass_client::protocol::api::{StdinWait, Turn, TurnInput, TurnState};
use windlass_client::protocol::{ErrorCode, EventKind, Outcome, SessionId, TurnId, TurnNo};
use windlass_testkit::{
    Gate, PATIENCE, TestNode, all_events, run, run_ok, turn, turn_ended, within,
};

async fn start() -> (TestNode, Client, SessionId) {
    let node = TestNode::start(env!("CARGO_BIN_EXE_windlass")).await.unwrap();
    let client = node.client().await.unwrap();
    let session = node.session(&client).await.unwrap().id;
    (node, client, session)
}

fn text(text: &str) -> TurnInput {
    TurnInput { text: Some(text.to_owned()), ..TurnInput::default() }
}

async fn answer(client: &Client, session: &SessionId, asking: &Turn, input: TurnInput) -> Turn {
    let answered = client.answer_turn(session, &asking.id, &input);
    let answered = within(PATIENCE, answered).await.unwrap();
    assert_eq!(answered.id, asking.id, "the answer continues the same turn");
    answered
}

#[track_caller]
fn asks(turn: &Turn, prompt: &str, secret: bool) {
    assert_eq!((turn.state, turn.outcome), (TurnState::AwaitingInput, None), "{turn:?}");
    assert_eq!(turn.stdin_wait, Some(StdinWait { prompt: prompt.to_owned(), secret }));
}

#[track_caller]
fn ended(turn: &Turn, output: &str) {
    assert_eq!((turn.state, turn.outcome), (TurnState::Ended, Some(Outcome::Ok)), "{turn:?}");
    assert_eq!((turn.output.text.as_str(), &turn.stdin_wait), (output, &None));
}

/// How often a turn waited for input.
async fn waits(client: &Client, session: &SessionId, turn: TurnNo) -> usize {
    let events = all_events(client, session).await;
    let asked = |kind: &EventKind| matches!(kind, EventKind::StdinWait { .. });
    events.iter().filter(|item| item.event.turn == Some(turn) && asked(&item.event.kind)).count()
}

#[tokio::test]
async fn contract_33_every_way_to_ask_ends_in_a_wait_with_its_prompt() {
    let (_node, client, session) = start().await;
    let cases = [
        ("print('got', input('name? '))", "name? ", "bob\n", "got bob\n"),
        ("import sys\nprint('got', sys.stdin.read(3))", "", "abc", "got abc\n"),
        ("import sys\nprint('got', repr(sys.stdin.readline()))", "", "abc\n", "got 'abc\\n'\n"),
        ("import sys\nprint('got', sys.stdin.buffer.read(3))", "", "abc", "got b'abc'\n"),
        ("import os\nprint('got', os.read(0, 3))", "", "abc", "got b'abc'\n"),
    ];
    for (code, prompt, given, output) in cases {
        let asking = run(&client, &session, &format!("print('first')\n{code}")).await;
        asks(&asking, prompt, false);
        assert_eq!(asking.output.text, "first\n", "what was printed before is there: {code}");
        let answered = answer(&client, &session, &asking, text(given)).await;
        ended(&answered, &format!("first\n{output}"));
    }
}

#[tokio::test]
async fn contract_33_a_password_is_asked_for_as_a_secret_and_recorded_nowhere() {
    let (node, client, session) = start().await;
    let code = "import getpass\nkey = getpass.getpass('key: ')\nprint(key == 'hunter' + '2')";
    let asking = run(&client, &session, code).await;
    asks(&asking, "key: ", true);
    let answered = answer(&client, &session, &asking, text("hunter2\n")).await;
    ended(&answered, "True\n");
    let events = format!("{:?}", all_events(&client, &session).await);
    assert!(events.contains("secret: true"), "{events}");
    assert!(!events.contains("hunter2"), "{events}");
    assert!(holds(&node.dirs().state, b"key == 'hunter'"), "the journal is where we look");
    assert!(!holds(&node.dirs().state, b"hunter2"));
}

/// Whether any file below `place` contains `wanted`.
fn holds(place: &Path, wanted: &[u8]) -> bool {
    std::fs::read_dir(place).unwrap().any(|entry| {
        let entry = entry.unwrap();
        if entry.file_type().unwrap().is_dir() {
            return holds(&entry.path(), wanted);
        }
        let bytes = std::fs::read(entry.path()).unwrap_or_default();
        bytes.windows(wanted.len()).any(|window| window == wanted)
    })
}

#[tokio::test]
async fn contract_33_a_debugger_asks_for_each_of_its_commands() {
    let (_node, client, session) = start().await;
    let code = "def f():\n    here = 5\n    breakpoint()\n    return here + 1\nprint('got', f())";
    let mut asking = run(&client, &session, code).await;
    for command in ["p here * 100", "here = 6", "p here * 100"] {
        asks(&asking, "(Pdb) ", false);
        asking = answer(&client, &session, &asking, text(&format!("{command}\n"))).await;
    }
    asks(&asking, "(Pdb) ", false);
    let done = answer(&client, &session, &asking, text("c\n")).await;
    assert_eq!((done.state, done.outcome), (TurnState::Ended, Some(Outcome::Ok)));
    let shown: Vec<_> =
        done.output.text.lines().filter(|line| ["500", "600", "got 7"].contains(line)).collect();
    assert_eq!(shown, ["500", "600", "got 7"], "{}", done.output.text);
}

#[tokio::test]
async fn contract_33_the_end_of_input_is_an_answer_too() {
    let (_node, client, session) = start().await;
    let asking = run(&client, &session, "import sys\nprint('got', sys.stdin.read())").await;
    asks(&asking, "", false);
    let last = TurnInput { eof: true, ..text("all of it") };
    ended(&answer(&client, &session, &asking, last).await, "got all of it\n");
}

#[tokio::test]
async fn contract_34_a_short_answer_is_returned_without_a_second_wait() {
    let (_node, client, session) = start().await;
    for (code, output) in [
        ("import os\nprint('got', os.read(0, 10))", "got b'abc'\n"),
        (
            "import os\nb = bytearray(10)\nprint('got', os.readv(0, [b]), bytes(b[:3]))",
            "got 3 b'abc'\n",
        ),
    ] {
        let asking = run(&client, &session, code).await;
        asks(&asking, "", false);
        let answered = answer(&client, &session, &asking, text("abc")).await;
        ended(&answered, output);
        assert_eq!(waits(&client, &session, asking.number).await, 1);
    }
}

#[tokio::test]
async fn contract_34_what_a_read_leaves_is_there_for_the_next_without_a_wait() {
    let (_node, client, session) = start().await;
    let code = "import os\nprint(os.read(0, 2), os.read(0, 2), os.read(0, 10))";
    let asking = run(&client, &session, code).await;
    let answered = answer(&client, &session, &asking, text("abcde")).await;
    ended(&answered, "b'ab' b'cd' b'e'\n");
    assert_eq!(waits(&client, &session, asking.number).await, 1);
}

/// The next turn reads input, and gets its own answer.
async fn next_turn_asks_afresh(client: &Client, session: &SessionId) {
    for code in
        ["print('got', input('again? '))", "import os\nprint('got', os.read(0, 9).decode())"]
    {
        let asking = run(client, session, code).await;
        assert_eq!(asking.state, TurnState::AwaitingInput, "it got old input: {asking:?}");
        let answered = answer(client, session, &asking, text("fresh")).await;
        ended(&answered, "got fresh\n");
    }
}

async fn interrupted(client: &Client, session: &SessionId, id: &TurnId) {
    client.interrupt_turn(session, id).await.unwrap();
    let stopped = turn_ended(client, session, id, PATIENCE).await.unwrap();
    assert_eq!(stopped.outcome, Some(Outcome::Interrupted));
}

#[tokio::test]
async fn contract_35_lines_that_a_turn_did_not_read_are_gone_with_it() {
    let (_node, client, session) = start().await;
    let asking = run(&client, &session, "print(input())").await;
    let answered = answer(&client, &session, &asking, text("one\ntwo\nthree\n")).await;
    ended(&answered, "one\n");
    next_turn_asks_afresh(&client, &session).await;
}

#[tokio::test]
async fn contract_35_input_that_a_turn_never_asked_for_is_gone_with_it() {
    let (_node, client, session) = start().await;
    let gate = Gate::new("g").unwrap();
    let deaf = client.submit_turn(&session, &turn(gate.python())).await.unwrap();
    let at_gate = within(PATIENCE, gate.reached()).await.unwrap();
    for early in ["early\n", "earlier\n"] {
        client.send_input(&session, &deaf.id, &text(early)).await.unwrap();
    }
    at_gate.open().await.unwrap();
    let over = turn_ended(&client, &session, &deaf.id, PATIENCE).await.unwrap();
    assert_eq!(over.outcome, Some(Outcome::Ok));
    // Input that arrives after the end of the turn is refused, not kept.
    let late = client.send_input(&session, &deaf.id, &text("late\n")).await.unwrap_err();
    assert_eq!(late.api_code(), Some(ErrorCode::TurnNotRunning));
    next_turn_asks_afresh(&client, &session).await;
}

#[tokio::test]
async fn contract_35_input_of_an_interrupted_turn_is_gone_with_it() {
    let (_node, client, session) = start().await;
    let gate = Gate::new("g").unwrap();
    // Unread in the keeper: the code never read input.
    let deaf = client.submit_turn(&session, &turn(gate.python())).await.unwrap();
    let at_gate = within(PATIENCE, gate.reached()).await.unwrap();
    client.send_input(&session, &deaf.id, &text("stale\n")).await.unwrap();
    interrupted(&client, &session, &deaf.id).await;
    drop(at_gate);
    next_turn_asks_afresh(&client, &session).await;
    // Unread in the worker: the code read once and received more than it used.
    let code = format!("print(input())\n{}", gate.python());
    let asking = run(&client, &session, &code).await;
    client.send_input(&session, &asking.id, &text("one\nstale\n")).await.unwrap();
    let at_gate = within(PATIENCE, gate.reached()).await.unwrap();
    interrupted(&client, &session, &asking.id).await;
    drop(at_gate);
    next_turn_asks_afresh(&client, &session).await;
}

#[tokio::test]
async fn contract_35_input_of_a_killed_turn_is_gone_with_it() {
    let node = TestNode::start(env!("CARGO_BIN_EXE_windlass")).await.unwrap();
    let client = node.client().await.unwrap();
    let create = windlass_client::protocol::api::CreateSession {
        interrupt_grace_ms: Some(0),
        ..TestNode::create()
    };
    let session = client.create_session(&create).await.unwrap().session.id;
    let gate = Gate::new("g").unwrap();
    let deaf =
        format!("import signal\nsignal.signal(signal.SIGINT, signal.SIG_IGN)\n{}", gate.python());
    let deaf = client.submit_turn(&session, &turn(deaf)).await.unwrap();
    let at_gate = within(PATIENCE, gate.reached()).await.unwrap();
    client.send_input(&session, &deaf.id, &text("stale\n")).await.unwrap();
    client.interrupt_turn(&session, &deaf.id).await.unwrap();
    turn_ended(&client, &session, &deaf.id, Duration::from_secs(10)).await.unwrap();
    drop(at_gate);
    assert_eq!(run_ok(&client, &session, "1 + 1").await, "2\n");
    next_turn_asks_afresh(&client, &session).await;
}
