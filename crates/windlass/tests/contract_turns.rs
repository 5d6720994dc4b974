//! The contract lines on sessions and turns: order, concurrency, and independence.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use windlass_client::Client;
use windlass_client::protocol::api::{
    CreateSession, EventItem, SubmitTurn, Turn, TurnInput, TurnQuery, TurnState,
};
use windlass_client::protocol::event::EventKind;
use windlass_client::protocol::limits::WAITING_TURNS_MAX;
use windlass_client::protocol::{ErrorCode, Outcome, Seq, SessionId, TurnId, TurnNo};
use windlass_testkit::raw_http::{RawHttp, request};
use windlass_testkit::{
    Gate, PATIENCE, TestNode, all_events, named_turn, odd_worker, run, run_ok, turn, turn_ended,
    wait_for_event, within,
};

async fn node() -> TestNode {
    TestNode::start(env!("CARGO_BIN_EXE_windlass")).await.unwrap()
}

fn id(text: &str) -> TurnId {
    TurnId::parse(text).unwrap()
}

/// Submits a turn and does not wait for it.
async fn submit(client: &Client, session: &SessionId, submit: SubmitTurn) -> Turn {
    within(PATIENCE, client.submit_turn(session, &submit)).await.unwrap()
}

async fn ended(client: &Client, session: &SessionId, turn: &Turn) -> Turn {
    turn_ended(client, session, &turn.id, PATIENCE).await.unwrap()
}

async fn state(client: &Client, session: &SessionId, turn: &Turn) -> TurnState {
    client.turn(session, &turn.id, TurnQuery::default()).await.unwrap().state
}

fn kind_of(item: &EventItem, turn: TurnNo) -> Option<&EventKind> {
    (item.event.turn == Some(turn)).then_some(&item.event.kind)
}

/// Checks for a moment after each start whether it receives another turn meanwhile.
const WATCHFUL_WORKER: &str = r#"
ready()
for turn, code in turns():
    early = bool(select.select([sock], [], [], 0.02)[0])
    send(out(turn, ("overlap in " if early else "alone in ") + code), idle(turn))
"#;

#[tokio::test]
async fn contract_01_no_turn_is_given_to_a_worker_that_is_busy() {
    let node = node().await;
    let client = node.client().await.unwrap();
    let create = odd_worker(node.base(), "watchful", WATCHFUL_WORKER).unwrap();
    let session = client.create_session(&create).await.unwrap().session.id;
    let submits = (0..12).map(|n| {
        let (client, session) = (client.with_retry_for(PATIENCE), session.clone());
        tokio::spawn(async move {
            let asked = submit(&client, &session, turn(n.to_string())).await;
            (n, ended(&client, &session, &asked).await)
        })
    });
    for submitted in submits.collect::<Vec<_>>() {
        let (n, turn) = within(PATIENCE, submitted).await.unwrap();
        assert_eq!(turn.output.text, format!("alone in {n}"));
    }
    // The journal agrees: all events of a turn lie between the end of the turn before and its own end.
    let mut open = TurnNo(1);
    for item in all_events(&client, &session).await {
        match item.event.kind {
            EventKind::Output { .. } => assert_eq!(item.event.turn, Some(open)),
            EventKind::TurnEnded { .. } => {
                assert_eq!(item.event.turn, Some(open));
                open = open.next();
            }
            _ => {}
        }
    }
    assert_eq!(open, TurnNo(13));
}

#[tokio::test]
async fn contract_01_turns_run_in_the_order_accepted() {
    let node = node().await;
    let client = node.client().await.unwrap();
    let session = node.session(&client).await.unwrap().id;
    let gate = Gate::new("first").unwrap();
    let first = submit(&client, &session, turn(format!("order = []\n{}", gate.python()))).await;
    let held = within(PATIENCE, gate.reached()).await.unwrap();
    // Four clients at once, five turns each: their order is the order in which they were accepted.
    let clients = (0..4).map(|_| {
        let (client, session) = (client.with_retry_for(PATIENCE), session.clone());
        tokio::spawn(async move {
            let mut mine = Vec::new();
            for _ in 0..5 {
                let named = windlass_client::fresh_turn_id();
                let code = format!("order.append('{named}')");
                mine.push(submit(&client, &session, named_turn(named.as_str(), code)).await);
            }
            mine
        })
    });
    let mut accepted = Vec::new();
    for client in clients.collect::<Vec<_>>() {
        let mine = within(PATIENCE, client).await.unwrap();
        assert!(mine.is_sorted_by_key(|turn| turn.number), "one client's turns keep their order");
        accepted.extend(mine);
    }
    for turn in &accepted {
        assert_eq!(state(&client, &session, turn).await, TurnState::Waiting);
    }
    assert_eq!(state(&client, &session, &first).await, TurnState::Running);
    held.open().await.unwrap();
    accepted.sort_by_key(|turn| turn.number);
    let numbers: Vec<u64> = accepted.iter().map(|turn| turn.number.0).collect();
    assert_eq!(numbers, (2..=21).collect::<Vec<_>>());
    let expected: Vec<&str> = accepted.iter().map(|turn| turn.id.as_str()).collect();
    let ran = run_ok(&client, &session, "print(*order)").await;
    assert_eq!(ran.split_whitespace().collect::<Vec<_>>(), expected);
}

#[tokio::test]
async fn contract_02_turns_of_two_sessions_are_both_in_flight() {
    let node = node().await;
    let client = node.client().await.unwrap();
    let mut flights = Vec::new();
    for name in ["one", "two"] {
        let gate = Gate::new(name).unwrap();
        let session = node.session(&client).await.unwrap().id;
        let code = format!("{}print('{name}')", gate.python());
        let asked = submit(&client, &session, turn(code)).await;
        // The second turn reaches the gate while the first one is still at its gate: neither waits for the
        // other.
        let held = within(PATIENCE, gate.reached()).await.unwrap();
        flights.push((session, asked, held, format!("{name}\n")));
    }
    for (session, turn, ..) in &flights {
        assert_eq!(state(&client, session, turn).await, TurnState::Running);
    }
    // The later turn ends first: turns of different sessions have no order.
    for (session, turn, held, expected) in flights.into_iter().rev() {
        held.open().await.unwrap();
        let turn = ended(&client, &session, &turn).await;
        assert_eq!((turn.outcome, turn.output.text), (Some(Outcome::Ok), expected));
    }
}

#[tokio::test]
async fn contract_03_no_client_overtakes_the_first_turn_of_a_new_session() {
    const ROUNDS: usize = 5;
    const RIVALS: usize = 3;
    let node = node().await;
    for round in 0..ROUNDS {
        let session = SessionId::parse(format!("known-{round}")).unwrap();
        let mut rivals = Vec::new();
        for _ in 0..RIVALS {
            let (client, session) = (node.client().await.unwrap(), session.clone());
            rivals.push(tokio::spawn(async move {
                // Retries until the session exists: the first moment at which it can be used.
                loop {
                    match client.submit_turn(&session, &turn("print(seen)")).await {
                        Ok(turn) => break ended(&client, &session, &turn).await,
                        Err(error) => {
                            let code = error.api_code();
                            assert_eq!(code, Some(ErrorCode::SessionNotFound), "{error}");
                        }
                    }
                }
            }));
        }
        let client = node.client().await.unwrap();
        let first = turn("import time; time.sleep(0.05); seen = 'first'");
        let create = CreateSession { id: Some(session), turn: Some(first), ..TestNode::create() };
        let created = within(PATIENCE, client.create_session(&create)).await.unwrap();
        assert_eq!(created.turn.unwrap().number, TurnNo(1));
        let mut numbers = BTreeSet::new();
        for rival in rivals {
            let turn = within(PATIENCE, rival).await.unwrap();
            assert_eq!(turn.output.text, "first\n", "{turn:?}");
            numbers.insert(turn.number.0);
        }
        assert_eq!(numbers, (2..2 + RIVALS as u64).collect());
    }
}

#[tokio::test]
async fn contract_04_ten_clients_take_no_longer_than_twice_one() {
    const CLIENTS: usize = 10;
    const TURNS: usize = 5;
    const TURN: &str = "import time; time.sleep(0.1)";
    let node = node().await;
    let mut sessions = Vec::new();
    for _ in 0..CLIENTS {
        let client = node.client().await.unwrap();
        let session = node.session(&client).await.unwrap().id;
        run_ok(&client, &session, "1").await;
        sessions.push((client, session));
    }
    let began = Instant::now();
    for _ in 0..TURNS {
        run_ok(&sessions[0].0, &sessions[0].1, TURN).await;
    }
    let one = began.elapsed();
    let began = Instant::now();
    let clients = sessions.into_iter().map(|(client, session)| {
        tokio::spawn(async move {
            for _ in 0..TURNS {
                run_ok(&client, &session, TURN).await;
            }
        })
    });
    for client in clients.collect::<Vec<_>>() {
        client.await.unwrap();
    }
    let all = began.elapsed();
    assert!(all <= 2 * one + Duration::from_millis(500), "{all:?} for ten, {one:?} for one");
}

#[tokio::test]
async fn contract_05_a_vanished_client_stops_nothing_and_loses_nothing() {
    let node = node().await;
    let client = node.client().await.unwrap();
    let session = node.session(&client).await.unwrap().id;
    let gate = Gate::new("half-way").unwrap();
    let code = format!("print('before')\n{}print('after')\nx = 7", gate.python());
    let body = serde_json::json!({"id": "orphan", "code": code, "wait_ms": 60_000}).to_string();
    let mut vanishing = RawHttp::connect(&node.dirs().socket()).await.unwrap();
    let path = format!("/v1/sessions/{session}/turns");
    vanishing.write(&request("POST", &path, body.as_bytes())).await.unwrap();
    let held = within(PATIENCE, gate.reached()).await.unwrap();
    drop(vanishing);
    // This request is answered after the end of that connection, which the node handled first.
    let next = submit(&client, &session, turn("print(x + 1)")).await;
    assert_eq!(next.state, TurnState::Waiting);
    held.open().await.unwrap();
    let next = ended(&client, &session, &next).await;
    assert_eq!((next.outcome, next.output.text.as_str()), (Some(Outcome::Ok), "8\n"));
    let orphan = client.turn(&session, &id("orphan"), TurnQuery::default()).await.unwrap();
    assert_eq!(orphan.outcome, Some(Outcome::Ok));
    assert_eq!(orphan.output.text, "before\nafter\n");
    assert_eq!(orphan.number, TurnNo(1));
}

/// Sends many messages about other turns before each end of its own turn, and a few after it.
const CONFUSED_WORKER: &str = r#"
ready()
for turn, code in turns():
    other = turn + 1
    send(
        out(other, "next"),
        out(other, "next background", background=True),
        out(turn - 1, "before"),
        frame("display", b"x", turn=other, mime="text/plain"),
        frame("stdin_wait", turn=other, prompt="not mine", secret=False),
        frame("tool_call", b"{}", turn=other, call=1, name="f"),
        idle(other),
        idle(turn - 1, "error"),
        out(turn, "mine"),
        idle(turn),
        idle(turn, "error"),
    )
"#;

#[tokio::test]
async fn contract_07_worker_messages_about_another_turn_are_counted_and_dropped() {
    let node = node().await;
    let client = node.client().await.unwrap();
    let create = odd_worker(node.base(), "confused", CONFUSED_WORKER).unwrap();
    let session = client.create_session(&create).await.unwrap().session.id;
    for round in 1..=3u64 {
        let turn = run(&client, &session, "").await;
        assert_eq!(turn.number, TurnNo(round));
        assert_eq!((turn.outcome, turn.output.text.as_str()), (Some(Outcome::Ok), "mine"));
        assert_eq!((turn.displays.len(), turn.stdin_wait), (0, None));
        // Eight before the end of each turn. Messages after the end count with the next turn.
        let dropped = client.session(&session).await.unwrap().messages_dropped;
        assert_eq!(dropped, 8 * round + (round - 1));
    }
    let events = all_events(&client, &session).await;
    let strange = |item: &EventItem| {
        item.text.as_deref().is_some_and(|text| !text.is_empty() && text != "mine")
            || matches!(item.event.kind, EventKind::StdinWait { .. } | EventKind::Display { .. })
    };
    assert_eq!(events.iter().find(|item| strange(item)), None);
}

#[tokio::test]
async fn contract_07_client_requests_about_another_turn_or_session_are_refused() {
    let node = node().await;
    let client = node.client().await.unwrap();
    let (asking, other) =
        (node.session(&client).await.unwrap().id, node.session(&client).await.unwrap().id);
    let input = TurnInput { text: Some("wrong\n".into()), ..TurnInput::default() };
    run_ok(&client, &other, "1").await;
    let over = run(&client, &asking, "1").await;
    let mine = named_turn("mine", "answer = input('which? ')\nprint(answer)");
    let mine = within(PATIENCE, client.run_turn(&asking, mine)).await.unwrap();
    assert_eq!(mine.state, TurnState::AwaitingInput);
    let waiting = submit(&client, &asking, named_turn("waits", "print('next')")).await;

    let refused = [
        (&other, &mine.id, ErrorCode::TurnNotFound),
        (&asking, &id("nobody"), ErrorCode::TurnNotFound),
        (&asking, &over.id, ErrorCode::TurnNotRunning),
        (&asking, &waiting.id, ErrorCode::TurnNotRunning),
    ];
    for (session, turn, code) in refused {
        let error = client.send_input(session, turn, &input).await.unwrap_err();
        assert_eq!(error.api_code(), Some(code), "input to {turn} of {session}");
    }
    // Stopping a turn that does not exist or has ended stops nothing else.
    for (session, turn) in [(&other, &mine.id), (&asking, &id("nobody"))] {
        let error = client.interrupt_turn(session, turn).await.unwrap_err();
        assert_eq!(error.api_code(), Some(ErrorCode::TurnNotFound), "{turn} of {session}");
    }
    let still_over = client.interrupt_turn(&asking, &over.id).await.unwrap();
    assert_eq!((still_over.state, still_over.outcome), (TurnState::Ended, Some(Outcome::Ok)));
    assert_eq!(state(&client, &asking, &mine).await, TurnState::AwaitingInput);
    let input = TurnInput { text: Some("right\n".into()), ..TurnInput::default() };
    let mine = within(PATIENCE, client.answer_turn(&asking, &mine.id, &input)).await.unwrap();
    assert_eq!((mine.outcome, mine.output.text.as_str()), (Some(Outcome::Ok), "right\n"));
    let waiting = ended(&client, &asking, &waiting).await;
    assert_eq!(waiting.output.text, "next\n");
}

#[tokio::test]
async fn contract_08_a_turn_sent_twice_runs_once() {
    let mut node = node().await;
    let client = node.client().await.unwrap();
    let session = node.session(&client).await.unwrap().id;
    run_ok(&client, &session, "runs = 0").await;
    let gate = Gate::new("once").unwrap();
    let once = named_turn("once", format!("runs += 1\n{}print('run', runs)", gate.python()));
    let first = submit(&client, &session, once.clone()).await;
    let held = within(PATIENCE, gate.reached()).await.unwrap();
    // While it runs, and from another client: the same turn, and no second one waits.
    let again = submit(&node.client().await.unwrap(), &session, once.clone()).await;
    assert_eq!((again.number, again.state), (first.number, TurnState::Running));
    assert_eq!(client.session(&session).await.unwrap().waiting, 0);
    let waiting = {
        let (client, session) = (client.with_retry_for(PATIENCE), session.clone());
        let patient = SubmitTurn { wait_ms: 30_000, ..once.clone() };
        tokio::spawn(async move { submit(&client, &session, patient).await })
    };
    held.open().await.unwrap();
    let first = ended(&client, &session, &first).await;
    assert_eq!(first.output.text, "run 1\n");
    assert_eq!(within(PATIENCE, waiting).await.unwrap(), first, "a waiting twin gets the result");
    // After its end, with other code, after many more turns, and after a new node took over.
    let other_code = named_turn("once", "runs += 100");
    assert_eq!(submit(&client, &session, other_code.clone()).await, first);
    for _ in 0..20 {
        run_ok(&client, &session, "1").await;
    }
    assert_eq!(submit(&client, &session, once.clone()).await, first);
    node.restart().await.unwrap();
    assert_eq!(submit(&client, &session, once).await, first);
    assert_eq!(run_ok(&client, &session, "print(runs)").await, "1\n");
}

#[tokio::test]
async fn contract_08_a_first_turn_and_its_repetition_run_once() {
    let node = node().await;
    let client = node.client().await.unwrap();
    let first = named_turn("first", "runs = 1");
    let create = CreateSession { turn: Some(first.clone()), ..TestNode::create() };
    let session = client.create_session(&create).await.unwrap().session.id;
    assert_eq!(submit(&client, &session, first).await.number, TurnNo(1));
    let twins = (0..8).map(|_| {
        let (client, session) = (client.with_retry_for(PATIENCE), session.clone());
        tokio::spawn(
            async move { submit(&client, &session, named_turn("twin", "runs += 1")).await },
        )
    });
    for twin in twins.collect::<Vec<_>>() {
        assert_eq!(within(PATIENCE, twin).await.unwrap().number, TurnNo(2));
    }
    assert_eq!(run_ok(&client, &session, "print(runs)").await, "2\n");
}

#[tokio::test]
async fn contract_09_the_65th_waiting_turn_is_refused_and_the_others_run() {
    let node = node().await;
    let client = node.client().await.unwrap();
    let session = node.session(&client).await.unwrap().id;
    let gate = Gate::new("running").unwrap();
    submit(&client, &session, turn(format!("ran = []\n{}", gate.python()))).await;
    let held = within(PATIENCE, gate.reached()).await.unwrap();
    let numbered = |n: usize| named_turn(&format!("w{n}"), format!("ran.append({n})"));
    let mut last = None;
    for n in 0..WAITING_TURNS_MAX {
        let waiting = submit(&client, &session, numbered(n)).await;
        assert_eq!(waiting.state, TurnState::Waiting);
        last = Some(waiting);
    }
    assert_eq!(WAITING_TURNS_MAX, 64);
    for _ in 0..2 {
        let error = client.submit_turn(&session, &numbered(64)).await.unwrap_err();
        let windlass_client::ClientError::Api(error) = error else { panic!("{error}") };
        assert_eq!((error.code, error.retryable), (ErrorCode::Overloaded, true));
        assert!(!error.remedy.is_empty());
    }
    // A repetition of a waiting turn is not counted twice.
    assert_eq!(submit(&client, &session, numbered(5)).await.state, TurnState::Waiting);
    held.open().await.unwrap();
    ended(&client, &session, &last.unwrap()).await;
    // The refusal left nothing behind: the same request succeeds now, as the refusal said.
    let retried = submit(&client, &session, numbered(64)).await;
    assert_eq!(ended(&client, &session, &retried).await.outcome, Some(Outcome::Ok));
    let all = run_ok(&client, &session, "print(ran == list(range(65)), len(ran))").await;
    assert_eq!(all, "True 65\n");
    let accepted = wait_for_event(&client, &session, Seq(0), PATIENCE, |item| {
        matches!(kind_of(item, TurnNo(66)), Some(EventKind::TurnAccepted { .. }))
    });
    let EventKind::TurnAccepted { id, .. } = accepted.await.unwrap().event.kind else { return };
    assert_eq!(id.as_str(), "w64", "a refused turn takes no number");
}
