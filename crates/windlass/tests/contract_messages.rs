//! The contract lines on messages: size limits, partial messages, unknown messages, and leftovers of another
//! turn.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use serde_json::{Value, json};
use windlass_client::Client;
use windlass_client::protocol::api::{
    CreateSession, EventItem, SessionState, SubmitTurn, TurnInput, TurnQuery, TurnState,
};
use windlass_client::protocol::event::{EndReason, EventKind, StopCause};
use windlass_client::protocol::limits::MESSAGE_BYTES_MAX;
use windlass_client::protocol::{ErrorCode, Outcome, Seq, SessionId, TurnNo};
use windlass_testkit::raw_http::{RawHttp, request};
use windlass_testkit::{
    Gate, PATIENCE, TestNode, all_events, named_turn, odd_worker, run, run_ok, turn, turn_ended,
    wait_for_event, within,
};

async fn node() -> TestNode {
    TestNode::start(env!("CARGO_BIN_EXE_windlass")).await.unwrap()
}

/// A session with a worker script of the test.
async fn odd(node: &TestNode, client: &Client, name: &str, script: &str) -> SessionId {
    let create = odd_worker(node.base(), name, script).unwrap();
    client.create_session(&create).await.unwrap().session.id
}

async fn ask(http: &mut RawHttp, method: &str, path: &str, body: &Value) -> (u16, Value) {
    let bytes = request(method, path, body.to_string().as_bytes());
    within(PATIENCE, http.write(&bytes)).await.unwrap();
    within(PATIENCE, http.answer()).await.unwrap()
}

fn text(text: impl Into<String>) -> TurnInput {
    TurnInput { text: Some(text.into()), ..TurnInput::default() }
}

/// When `turn` was accepted, when its interrupt was requested, and when it ended, in milliseconds.
fn times(events: &[EventItem], turn: TurnNo) -> (u64, u64, u64) {
    let at = |wanted: fn(&EventKind) -> bool| {
        let of_turn = |item: &&EventItem| item.event.turn == Some(turn) && wanted(&item.event.kind);
        events.iter().find(of_turn).unwrap().event.at_ms
    };
    let by_deadline =
        |kind: &EventKind| *kind == EventKind::InterruptAsked { cause: StopCause::Deadline };
    (
        at(|kind| matches!(kind, EventKind::TurnAccepted { .. })),
        at(by_deadline),
        at(|kind| matches!(kind, EventKind::TurnEnded { .. })),
    )
}

#[tokio::test]
async fn contract_11_an_oversize_request_fails_alone_on_its_connection() {
    let node = node().await;
    let client = node.client().await.unwrap();
    let session = node.session(&client).await.unwrap().id;
    run_ok(&client, &session, "x = 5").await;
    let mut http = RawHttp::connect(&node.dirs().socket()).await.unwrap();
    let turns = format!("/v1/sessions/{session}/turns");
    // Just over the size limit of a message, and far over the limit of what the node reads at all.
    for bytes in [MESSAGE_BYTES_MAX + 1, 3 * MESSAGE_BYTES_MAX] {
        let code = json!({"code": "#".repeat(bytes), "wait_ms": 30_000});
        let (status, answer) = ask(&mut http, "POST", &turns, &code).await;
        assert_eq!((status, &answer["code"]), (413, &json!("message_too_large")));
        assert!(!answer["remedy"].as_str().unwrap().is_empty());
        let small = json!({"code": "print(x)", "wait_ms": 30_000});
        let (status, answer) = ask(&mut http, "POST", &turns, &small).await;
        assert_eq!((status, &answer["output"]["text"]), (200, &json!("5\n")), "{answer}");
    }
    // A message of exactly the limit is accepted.
    let code = format!("x = 6 #{}", "#".repeat(MESSAGE_BYTES_MAX - 7));
    assert_eq!(code.len(), MESSAGE_BYTES_MAX);
    let (status, answer) =
        ask(&mut http, "POST", &turns, &json!({"code": code, "wait_ms": 30_000})).await;
    assert_eq!((status, &answer["outcome"]), (200, &json!("ok")), "{answer}");
    assert_eq!(run_ok(&client, &session, "print(x)").await, "6\n");
}

#[tokio::test]
async fn contract_11_an_oversize_input_leaves_its_turn_waiting() {
    let node = node().await;
    let client = node.client().await.unwrap();
    let session = node.session(&client).await.unwrap().id;
    let asking = run(&client, &session, "print(len(input('how much? ')))").await;
    assert_eq!(asking.state, TurnState::AwaitingInput);
    let huge = text("y".repeat(MESSAGE_BYTES_MAX + 1));
    let error = client.send_input(&session, &asking.id, &huge).await.unwrap_err();
    assert_eq!(error.api_code(), Some(ErrorCode::MessageTooLarge), "{error}");
    let still = client.turn(&session, &asking.id, TurnQuery::default()).await.unwrap();
    assert_eq!(still.state, TurnState::AwaitingInput);
    let done = within(PATIENCE, client.answer_turn(&session, &asking.id, &text("four\n"))).await;
    assert_eq!(done.unwrap().output.text, "4\n");
}

#[tokio::test]
async fn contract_11_what_code_shows_asks_or_raises_cannot_be_too_large_for_its_session() {
    let node = node().await;
    let client = node.client().await.unwrap();
    let session = node.session(&client).await.unwrap().id;
    run_ok(&client, &session, "x = 5").await;
    let code = format!("display(b'i' * {}, mime='image/png')", MESSAGE_BYTES_MAX + 1);
    let shown = run(&client, &session, &code).await;
    assert_eq!((shown.outcome, shown.displays.len()), (Some(Outcome::Error), 0));
    let error = shown.error.unwrap();
    assert!(error.name == "ValueError" && error.message.contains("over the limit"), "{error:?}");
    let raised = run(&client, &session, "raise ValueError('m' * 1_000_000)").await;
    assert_eq!(raised.outcome, Some(Outcome::Error));
    assert_eq!(raised.error.unwrap().name, "ValueError");
    let asking = run(&client, &session, "print(input('p' * 1_000_000))").await;
    assert_eq!(asking.state, TurnState::AwaitingInput);
    let done = within(PATIENCE, client.answer_turn(&session, &asking.id, &text("ok\n"))).await;
    assert_eq!(done.unwrap().output.text, "ok\n");
    assert_eq!(run_ok(&client, &session, "print(x)").await, "5\n");
}

#[tokio::test]
async fn contract_12_frames_of_a_worker_in_one_write_are_all_delivered() {
    const IN_ONE_WRITE: &str = r#"
ready()
for turn, code in turns():
    send(*(out(turn, "%d " % n) for n in range(int(code))), idle(turn))
"#;
    let node = node().await;
    let client = node.client().await.unwrap();
    let session = odd(&node, &client, "at-once", IN_ONE_WRITE).await;
    // The last frame of the write ends the turn. If the keeper missed it, no later frame would make it look
    // again.
    for frames in [1, 2, 500] {
        let turn = run(&client, &session, &frames.to_string()).await;
        let expected: String = (0..frames).map(|n| format!("{n} ")).collect();
        assert_eq!((turn.outcome, turn.output.text), (Some(Outcome::Ok), expected));
    }
}

#[tokio::test]
async fn contract_12_two_requests_in_one_write_are_both_answered() {
    let node = node().await;
    let client = node.client().await.unwrap();
    let session = node.session(&client).await.unwrap().id;
    let mut http = RawHttp::connect(&node.dirs().socket()).await.unwrap();
    let turns = format!("/v1/sessions/{session}/turns");
    let mut both = Vec::new();
    for code in ["print('one')", "print('two')"] {
        let body = json!({"code": code, "wait_ms": 30_000}).to_string();
        both.extend(request("POST", &turns, body.as_bytes()));
    }
    http.write(&both).await.unwrap();
    for (number, expected) in [(1, "one\n"), (2, "two\n")] {
        let (status, answer) = within(PATIENCE, http.answer()).await.unwrap();
        assert_eq!(status, 200, "{answer}");
        assert_eq!(answer["output"]["text"], json!(expected));
        assert_eq!(answer["number"], json!(number));
    }
}

/// How late an interrupt or a kill may be on a busy machine. It is far less than if a partial message
/// extended the deadline.
const LATE_MS: u64 = 2500;

#[tokio::test]
async fn contract_13_half_a_message_of_a_worker_extends_no_deadline() {
    // For 6 s the worker sends one byte after the other of the frame that would end the turn.
    const DRIPPING: &str = r#"
ready()
for turn, code in turns():
    if code == "drip":
        for byte in frame("idle", turn=turn, outcome="ok", padding="." * 80):
            sock.sendall(bytes([byte]))
            time.sleep(0.05)
    send(idle(turn))
"#;
    let node = node().await;
    let client = node.client().await.unwrap();
    let create = CreateSession {
        interrupt_grace_ms: Some(300),
        ..odd_worker(node.base(), "dripping", DRIPPING).unwrap()
    };
    let session = client.create_session(&create).await.unwrap().session.id;
    run_ok(&client, &session, "").await;
    let drip = SubmitTurn { deadline_ms: Some(300), ..turn("drip") };
    let dripped = within(PATIENCE, client.run_turn(&session, drip)).await.unwrap();
    assert_eq!(dripped.outcome, Some(Outcome::TimedOut));
    assert_eq!(dripped.error.unwrap().code, Some(ErrorCode::Unstoppable));
    let (accepted, stopped, ended) = times(&all_events(&client, &session).await, dripped.number);
    let (deadline, grace) = (stopped - accepted, ended - stopped);
    assert!((300..300 + LATE_MS).contains(&deadline), "interrupted after {deadline} ms");
    assert!((300..300 + LATE_MS).contains(&grace), "killed {grace} ms later");
    // The partial frame was dropped with its worker: the next worker starts clean.
    run_ok(&client, &session, "").await;
}

#[tokio::test]
async fn contract_13_half_a_message_is_kept_until_the_rest_comes() {
    // The second half arrives after the deadline has passed, while the turn is being stopped.
    const SLOW: &str = r#"
ready()
for turn, code in turns():
    whole = out(turn, "first half, second half")
    for cut in (1, 3, 5, 20, len(whole) - 1):
        send(whole[:cut])
        time.sleep(0.01)
        send(whole[cut:])
    send(whole[:-12])
    while read_frame()[0] != {"kind": "interrupt", "turn": turn}:
        pass
    send(whole[-12:], idle(turn, "interrupted"))
"#;
    let node = node().await;
    let client = node.client().await.unwrap();
    let session = odd(&node, &client, "slow", SLOW).await;
    for _ in 0..2 {
        let slow = SubmitTurn { deadline_ms: Some(400), ..turn("") };
        let slow = within(PATIENCE, client.run_turn(&session, slow)).await.unwrap();
        assert_eq!(slow.outcome, Some(Outcome::TimedOut));
        assert_eq!(slow.output.text, "first half, second half".repeat(6));
        assert_eq!(slow.receipt.map_or(0, |receipt| receipt.lost.len()), 0, "nothing is lost");
    }
    let session = client.session(&session).await.unwrap();
    assert_eq!((session.restarts, session.messages_dropped), (0, 0));
}

#[tokio::test]
async fn contract_13_half_a_request_extends_no_deadline_and_is_answered_when_whole() {
    let node = node().await;
    let client = node.client().await.unwrap();
    let session = node.session(&client).await.unwrap().id;
    run_ok(&client, &session, "x = 5").await;
    let asks = SubmitTurn { deadline_ms: Some(2000), ..named_turn("asks", "input('? ')") };
    let asking = within(PATIENCE, client.run_turn(&session, asks)).await.unwrap();
    assert_eq!(asking.state, TurnState::AwaitingInput);
    let path = format!("/v1/sessions/{session}/turns/asks/input");
    let whole = request("POST", &path, json!({"text": "too late\n"}).to_string().as_bytes());
    let (most, last) = whole.split_at(whole.len() - 3);
    let mut http = RawHttp::connect(&node.dirs().socket()).await.unwrap();
    http.write(most).await.unwrap();
    let over = wait_for_event(&client, &session, Seq(0), PATIENCE, |item| {
        item.event.turn == Some(asking.number)
            && matches!(item.event.kind, EventKind::TurnEnded { outcome: Outcome::TimedOut, .. })
    });
    over.await.unwrap();
    let (accepted, stopped, _) = times(&all_events(&client, &session).await, asking.number);
    let deadline = stopped - accepted;
    assert!((2000..2000 + LATE_MS).contains(&deadline), "interrupted after {deadline} ms");
    http.write(last).await.unwrap();
    let (_, answer) = within(PATIENCE, http.answer()).await.unwrap();
    assert_eq!(answer["code"], json!("turn_not_running"), "{answer}");
    // The same connection, with a request in pieces of any size.
    let body = json!({"code": "print(x)", "wait_ms": 30_000}).to_string();
    let whole = request("POST", &format!("/v1/sessions/{session}/turns"), body.as_bytes());
    for piece in whole.chunks(7) {
        http.write(piece).await.unwrap();
        tokio::task::yield_now().await;
    }
    let (_, answer) = within(PATIENCE, http.answer()).await.unwrap();
    assert_eq!(answer["output"]["text"], json!("5\n"), "{answer}");
}

#[tokio::test]
async fn contract_14_a_megabyte_goes_in_while_a_megabyte_lies_undrained() {
    const MEGABYTE: usize = 1_000_000;
    let node = node().await;
    let client = node.client().await.unwrap();
    let session = node.session(&client).await.unwrap().id;
    // A follower that never reads its events.
    let mut deaf = RawHttp::connect(&node.dirs().socket()).await.unwrap();
    let follow = format!(
        "GET /v1/sessions/{session}/events HTTP/1.1\r\nhost: node\r\naccept: text/event-stream\r\n\r\n"
    );
    deaf.write(follow.as_bytes()).await.unwrap();
    // Once with the input sent before the code prints, once when the code waits for it.
    for early in [true, false] {
        let gate = Gate::new(if early { "early" } else { "asked" }).unwrap();
        let code = format!(
            "import sys, os\n{}os.write(1, b'o' * {MEGABYTE})\nprint()\n\
             got = sys.stdin.read({MEGABYTE})\nprint(len(got), set(got))",
            gate.python()
        );
        let asked = within(PATIENCE, client.submit_turn(&session, &turn(code))).await.unwrap();
        let held = within(PATIENCE, gate.reached()).await.unwrap();
        let megabyte = text("i".repeat(MEGABYTE));
        if early {
            within(PATIENCE, client.send_input(&session, &asked.id, &megabyte)).await.unwrap();
            held.open().await.unwrap();
        } else {
            held.open().await.unwrap();
            wait_for_event(&client, &session, Seq(0), PATIENCE, |item| {
                item.event.turn == Some(asked.number)
                    && matches!(item.event.kind, EventKind::StdinWait { .. })
            })
            .await
            .unwrap();
            within(PATIENCE, client.send_input(&session, &asked.id, &megabyte)).await.unwrap();
        }
        let done = turn_ended(&client, &session, &asked.id, PATIENCE).await.unwrap();
        assert_eq!(done.outcome, Some(Outcome::Ok), "{:?}", done.error);
        assert!(done.output.text.ends_with(&format!("\n{MEGABYTE} {{'i'}}\n")));
        assert_eq!(done.output.bytes, (MEGABYTE + 1 + "1000000 {'i'}\n".len()) as u64);
    }
}

#[tokio::test]
async fn contract_16_tasks_left_by_a_turn_are_cancelled_before_the_next() {
    let node = node().await;
    let client = node.client().await.unwrap();
    let session = node.session(&client).await.unwrap().id;
    let leave = "import asyncio\n\
                 log = []\n\
                 async def left(name):\n\
                 \x20   try:\n\
                 \x20       while True:\n\
                 \x20           await asyncio.sleep(0.001)\n\
                 \x20           log.append(name)\n\
                 \x20   except asyncio.CancelledError:\n\
                 \x20       log.append(name + ' cancelled')\n\
                 \x20       raise\n\
                 tasks = [asyncio.create_task(left(n)) for n in 'ab']\n\
                 await asyncio.sleep(0.02)\n\
                 print(all(not t.done() for t in tasks))";
    assert_eq!(run_ok(&client, &session, leave).await, "True\n");
    // Look from a turn that runs an event loop too: the loop would resume leftover tasks.
    let look = "seen = len(log)\n\
                await asyncio.sleep(0.05)\n\
                print([t.cancelled() for t in tasks], sorted(log[-2:]), len(log) == seen)\n\
                print(len(asyncio.all_tasks()))";
    let expected = "[True, True] ['a cancelled', 'b cancelled'] True\n1\n";
    assert_eq!(run_ok(&client, &session, look).await, expected);
}

#[tokio::test]
async fn contract_16_what_a_left_over_thread_prints_is_not_the_next_turns() {
    let node = node().await;
    let client = node.client().await.unwrap();
    let session = node.session(&client).await.unwrap().id;
    let gate = Gate::new("between").unwrap();
    let leave = format!(
        "import threading\nnow = threading.Event()\ndone = threading.Event()\n\
         def late():\n{}\n    print('between turns')\n    now.wait()\n    print('in the next')\n\
         \x20   done.set()\nthread = threading.Thread(target=late)\nthread.start()\nprint('own')",
        gate.python().lines().map(|line| format!("    {line}\n")).collect::<String>()
    );
    let first = run(&client, &session, &leave).await;
    assert_eq!(first.output.text, "own\n");
    within(PATIENCE, gate.reached()).await.unwrap().open().await.unwrap();
    let printed = |wanted: &'static str| {
        let said = move |item: &EventItem| item.text.as_deref() == Some(wanted);
        wait_for_event(&client, &session, Seq(0), PATIENCE, said)
    };
    let between = printed("between turns\n").await.unwrap();
    let next = run(&client, &session, "print('mine')\nnow.set()\ndone.wait()\nprint('too')").await;
    assert_eq!((next.number, next.output.text.as_str()), (TurnNo(2), "mine\ntoo\n"));
    assert_eq!(next.usage.unwrap().output_bytes, "mine\ntoo\n".len() as u64);
    let late = printed("in the next\n").await.unwrap();
    for item in [between, late] {
        let background = matches!(item.event.kind, EventKind::Output { background: true, .. });
        assert!(background && item.event.turn != Some(TurnNo(2)), "{item:?}");
    }
    // Output of a thread belongs to the turn while the turn that started it runs.
    let own = "t = threading.Thread(target=print, args=('my thread',))\nt.start()\nt.join()";
    assert_eq!(run_ok(&client, &session, own).await, "my thread\n");
    let first = client.turn(&session, &first.id, TurnQuery::default()).await.unwrap();
    assert_eq!(first.output.text, "own\n", "nor does a turn that is over change");
}

#[tokio::test]
async fn contract_17_unknown_kinds_and_fields_are_ignored_and_counted() {
    const NEWER: &str = r#"
send(frame("worker_ready", protocol=1, worker="newer 2", capabilities=["telepathy"], mood="good"))
for turn, code in turns():
    send(
        frame("thought", b"body", turn=turn, depth=3),
        frame("thought"),
        raw(b'{"kind":"output","turn":%d,"stream":"stdout","colour":{"deep":[1]}}' % turn, b"seen"),
        frame("idle", turn=turn, outcome="ok", mood="better"),
    )
"#;
    let node = node().await;
    let client = node.client().await.unwrap();
    let session = odd(&node, &client, "newer", NEWER).await;
    // One unknown field in `worker_ready`. In each turn two unknown kinds (one of them with a field), and two
    // unknown fields of known kinds.
    for round in 1..=2u64 {
        let turn = run(&client, &session, "").await;
        assert_eq!((turn.outcome, turn.output.text.as_str()), (Some(Outcome::Ok), "seen"));
        let seen = client.session(&session).await.unwrap();
        assert_eq!((seen.state, seen.worker.as_str()), (SessionState::Idle, "newer 2"));
        assert_eq!(seen.messages_dropped, 1 + 5 * round);
    }
}

#[tokio::test]
async fn contract_17_a_frame_of_the_largest_size_is_passed_on() {
    const LARGEST: &str = r#"
ready()
def largest(header):
    return raw(header, b"x" * (262_144 - 4 - len(header)))

for turn, code in turns():
    send(
        largest(b'{"kind":"output","turn":%d,"stream":"stdout"}' % turn),
        largest(b'{"kind":"display","turn":%d,"mime":"text/plain"}' % turn),
        idle(turn),
    )
"#;
    let node = node().await;
    let client = node.client().await.unwrap();
    let session = odd(&node, &client, "largest", LARGEST).await;
    for _ in 0..2 {
        let turn = run(&client, &session, "").await;
        assert_eq!(turn.outcome, Some(Outcome::Ok));
        assert!(turn.output.bytes > 262_000, "{}", turn.output.bytes);
        assert!(turn.displays[0].bytes > 262_000, "{}", turn.displays[0].bytes);
    }
}

#[tokio::test]
async fn contract_17_a_malformed_frame_ends_its_session_alone() {
    const SAYS_ANYTHING: &str = r#"
ready()
for turn, code in turns():
    send(out(turn, "before"), eval(code), idle(turn))
"#;
    let malformed = [
        ("a length over the limit", "struct.pack('>II', 1 << 30, 10)"),
        ("a header over the limit", "struct.pack('>II', 200_000, 100_000)"),
        ("a header past its frame", "struct.pack('>II', 8, 5) + b'....'"),
        ("no room for a header's length", "struct.pack('>I', 3) + b'...'"),
        ("no JSON", "raw(b'kind')"),
        ("no UTF-8", r#"raw(b'{"kind":"\xff"}')"#),
        ("no object", "raw(b'[1]')"),
        ("no kind", "raw(b'{}')"),
        ("a field that is missing", "frame('idle', turn=turn)"),
        ("a field of another type", "frame('idle', turn='one', outcome='ok')"),
        ("a second worker_ready", "frame('worker_ready', protocol=1, worker='again')"),
    ];
    let node = node().await;
    let client = node.client().await.unwrap();
    let bystander = node.session(&client).await.unwrap().id;
    run_ok(&client, &bystander, "x = 5").await;
    for (what, bytes) in malformed {
        let session = odd(&node, &client, "says-anything", SAYS_ANYTHING).await;
        let turn = run(&client, &session, bytes).await;
        assert_eq!(turn.outcome, Some(Outcome::Lost), "{what}");
        assert_eq!(turn.error.unwrap().code, Some(ErrorCode::ProtocolError), "{what}");
        assert_eq!(turn.output.text, "before", "{what}: what came before it counts");
        let over = wait_for_event(&client, &session, Seq(0), PATIENCE, |item| {
            matches!(item.event.kind, EventKind::SessionEnded { .. })
        });
        let EventKind::SessionEnded { reason, .. } = over.await.unwrap().event.kind else { return };
        assert_eq!(reason, EndReason::ProtocolError, "{what}");
    }
    let first_word = [
        ("another first word", "send(idle(1))"),
        ("another protocol", "send(frame('worker_ready', protocol=2, worker='later'))"),
    ];
    for (what, script) in first_word {
        let script = format!("{script}\nfor turn, code in turns():\n    send(idle(turn))\n");
        let session = odd(&node, &client, "wrong-start", &script).await;
        let over = wait_for_event(&client, &session, Seq(0), PATIENCE, |item| {
            matches!(item.event.kind, EventKind::SessionEnded { .. })
        });
        let EventKind::SessionEnded { reason, .. } = over.await.unwrap().event.kind else { return };
        assert_eq!(reason, EndReason::ProtocolError, "{what}");
    }
    assert_eq!(run_ok(&client, &bystander, "print(x)").await, "5\n");
}
