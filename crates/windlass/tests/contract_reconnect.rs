//! The contract line on the link between node and keeper: whatever cuts it, and where, every message is
//! delivered once and in order. In some tests the test itself acts as the node.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};

use windlass_client::Client;
use windlass_client::protocol::api::{
    EventItem, ForkSession, StopSessions, TurnInput, TurnQuery, TurnState,
};
use windlass_client::protocol::event::EventKind;
use windlass_client::protocol::frame::{self, Decoder};
use windlass_client::protocol::link::{
    AttachReply, CommandSeq, FromKeeper, KeeperCommand, LINK, RefuseReason, ToKeeper,
};
use windlass_client::protocol::{Epoch, LinkSeq, Outcome, Seq, SessionId, Stream, TurnId, TurnNo};
use windlass_testkit::{
    PATIENCE, TestNode, all_events, named_turn, run, run_ok, turn, turn_ended, wait_for_event,
    within,
};

async fn node() -> TestNode {
    TestNode::start(env!("CARGO_BIN_EXE_windlass")).await.unwrap()
}

fn keeper_socket(node: &TestNode, session: &SessionId) -> PathBuf {
    node.dirs().runtime.join("k").join(format!("{session}.sock"))
}

/// Prints numbered lines until the file exists.
fn numbered_lines(until: &Path) -> String {
    format!(
        "import os, time\nn = 0\nwhile not os.path.exists({:?}):\n    print(n)\n    n += 1\n    \
         if n % 20 == 0: time.sleep(0.002)\n",
        until.display().to_string()
    )
}

/// Checks that every event occurs once and in order, by both numbers, and that each turn is accepted and
/// ended once. Returns the bytes that `of` printed.
fn check_events(events: &[EventItem], of: TurnNo) -> String {
    let (mut seq, mut link, mut printed) = (Seq(0), LinkSeq(0), String::new());
    let (mut accepted, mut ended) = (Vec::new(), Vec::new());
    for EventItem { event, text, .. } in events {
        assert_eq!(event.seq, seq.next());
        seq = event.seq;
        if let Some(of_keeper) = event.link {
            assert_eq!(of_keeper, link.next(), "the keeper's events are consecutive");
            link = of_keeper;
        }
        match (&event.kind, event.turn) {
            (EventKind::TurnAccepted { .. }, Some(turn)) => accepted.push(turn),
            (EventKind::TurnEnded { .. }, Some(turn)) => ended.push(turn),
            (EventKind::Output { .. }, Some(turn)) if turn == of => {
                printed.push_str(text.as_deref().unwrap());
            }
            _ => {}
        }
    }
    let turns: Vec<TurnNo> = (1..=accepted.len() as u64).map(TurnNo).collect();
    assert_eq!(accepted, turns);
    assert_eq!(ended, turns);
    printed
}

fn check_lines(printed: &str, at_least: usize) {
    for (n, line) in printed.lines().enumerate() {
        assert_eq!(line, n.to_string(), "each line once, in order");
    }
    assert!(printed.lines().count() >= at_least, "{} lines", printed.lines().count());
}

/// Waits until the running turn has printed new output.
async fn goes_on(client: &Client, session: &SessionId) {
    let seen = client.session(session).await.unwrap().seq;
    let output = |item: &EventItem| matches!(item.event.kind, EventKind::Output { .. });
    wait_for_event(client, session, seen, PATIENCE, output).await.unwrap();
}

#[tokio::test]
async fn contract_28_a_twin_can_be_forked_and_reset_after_an_upgrade() {
    let mut node = node().await;
    let client = node.client().await.unwrap();
    let session = node.session(&client).await.unwrap().id;
    run_ok(&client, &session, "x = 41").await;
    let wanted = ForkSession::default();
    let twin = within(PATIENCE, client.fork_session(&session, &wanted)).await.unwrap().session.id;
    assert_eq!(run_ok(&client, &twin, "x + 1").await, "42\n");
    node.stop(StopSessions::Keep).await.unwrap();
    node.restart().await.unwrap();
    let inner = within(PATIENCE, client.fork_session(&twin, &wanted)).await.unwrap().session.id;
    assert_eq!(run_ok(&client, &inner, "x + 2").await, "43\n");
    within(PATIENCE, client.reset_session(&twin)).await.unwrap();
    assert_eq!(run_ok(&client, &twin, "'x' in globals()").await, "False\n");
}

#[tokio::test]
async fn contract_18_nothing_is_doubled_or_reordered_when_the_node_comes_back() {
    let mut node = node().await;
    let client = node.client().await.unwrap();
    let session = node.session(&client).await.unwrap();
    let stop = std::path::Path::new(&session.workspace).join("stop");
    let session = session.id;
    let printing = turn(numbered_lines(&stop));
    let printing = within(PATIENCE, client.submit_turn(&session, &printing)).await.unwrap();
    let behind =
        |n: usize| named_turn(&format!("behind-{n}"), format!("print(n > 0, {n})\nn += 1"));
    for cut in 0..4 {
        goes_on(&client, &session).await;
        // The node is killed while the request may be in flight, and the request is sent again: still one
        // turn.
        let asked = {
            let (client, session) = (client.with_retry_for(PATIENCE), session.clone());
            tokio::spawn(async move { client.submit_turn(&session, &behind(cut)).await.unwrap() })
        };
        tokio::task::yield_now().await;
        if cut % 2 == 0 {
            node.kill9();
            node.restart().await.unwrap();
        } else {
            node.stop(StopSessions::Keep).await.unwrap();
            node.restart().await.unwrap();
        }
        let asked = within(PATIENCE, asked).await.unwrap();
        assert_eq!((asked.number.0, asked.state), (2 + cut as u64, TurnState::Waiting));
    }
    goes_on(&client, &session).await;
    std::fs::write(&stop, "").unwrap();
    let last = TurnId::parse("behind-3").unwrap();
    let last = turn_ended(&client, &session, &last, PATIENCE).await.unwrap();
    assert_eq!(last.output.text, "True 3\n");
    let events = all_events(&client, &session).await;
    let printed = check_events(&events, printing.number);
    check_lines(&printed, 100);
    let lines = printed.lines().count();
    let counted = run_ok(&client, &session, "print(n)").await;
    assert_eq!(counted, format!("{}\n", lines + 4), "each turn behind it ran once");
}

#[tokio::test]
async fn contract_18_an_input_is_given_once_although_the_node_dies_after_it() {
    let mut node = node().await;
    let client = node.client().await.unwrap();
    let session = node.session(&client).await.unwrap().id;
    let asks = "got = [input() for _ in range(3)]\nprint(*got)";
    let mut asking = run(&client, &session, asks).await;
    for answer in ["one", "two", "three"] {
        assert_eq!(asking.state, TurnState::AwaitingInput, "before {answer}");
        let input = TurnInput { text: Some(format!("{answer}\n")), ..TurnInput::default() };
        client.send_input(&session, &asking.id, &input).await.unwrap();
        node.restart().await.unwrap();
        let again = TurnQuery { wait_ms: 30_000, output_bytes_max: None, ..TurnQuery::default() };
        asking = within(PATIENCE, client.turn(&session, &asking.id, again)).await.unwrap();
    }
    assert_eq!(
        (asking.outcome, asking.output.text.as_str()),
        (Some(Outcome::Ok), "one two three\n")
    );
    let events = all_events(&client, &session).await;
    check_events(&events, asking.number);
    let taken = |item: &&EventItem| matches!(item.event.kind, EventKind::InputTaken { .. });
    assert_eq!(events.iter().filter(taken).count(), 3);
}

/// A node played by the test: it sends what the test wants, and can be cut at any byte.
struct ByHand {
    stream: UnixStream,
    decoder: Decoder,
}

impl ByHand {
    /// Connects and writes `messages` with their bodies in one write.
    fn say(socket: &Path, messages: &[(ToKeeper, &[u8])]) -> Self {
        let stream = UnixStream::connect(socket).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        let mut node = Self { stream, decoder: Decoder::default() };
        node.write(messages);
        node
    }

    fn write(&mut self, messages: &[(ToKeeper, &[u8])]) {
        let mut bytes = Vec::new();
        for (message, body) in messages {
            frame::encode(&mut bytes, message, body).unwrap();
        }
        self.stream.write_all(&bytes).unwrap();
    }

    /// The next message and its body; `None` when the keeper has closed.
    fn hear(&mut self) -> Option<(FromKeeper, Vec<u8>)> {
        loop {
            if let Some(message) = self.heard() {
                return Some(message);
            }
            if !self.read(64 * 1024) {
                return None;
            }
        }
    }

    /// A message that has arrived completely.
    fn heard(&mut self) -> Option<(FromKeeper, Vec<u8>)> {
        let frame = self.decoder.next_frame().unwrap()?;
        Some((serde_json::from_slice(&frame.header).unwrap(), frame.body.to_vec()))
    }

    /// Reads once, at most this many bytes. Returns whether there were any.
    fn read(&mut self, bytes_max: usize) -> bool {
        let mut bytes = vec![0; bytes_max];
        let read = self.stream.read(&mut bytes).unwrap_or_else(|error| {
            assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset, "{error}");
            0
        });
        self.decoder.push(&bytes[..read]);
        read > 0
    }
}

fn attach(epoch: u64, after: LinkSeq) -> (ToKeeper, &'static [u8]) {
    (ToKeeper::Attach { link: LINK, epoch: Epoch(epoch), after, launch: None }, b"")
}

fn attached(node: &mut ByHand) -> AttachReply {
    match node.hear() {
        Some((FromKeeper::Attached(attached), _)) => *attached,
        other => panic!("not attached: {other:?}"),
    }
}

#[tokio::test]
async fn contract_18_an_older_node_is_refused_and_changes_nothing() {
    let mut node = node().await;
    let client = node.client().await.unwrap();
    let session = node.session(&client).await.unwrap();
    let stop = std::path::Path::new(&session.workspace).join("stop");
    let session = session.id;
    let printing = turn(numbered_lines(&stop));
    let printing = within(PATIENCE, client.submit_turn(&session, &printing)).await.unwrap();
    goes_on(&client, &session).await;
    let first_epoch = client.node_status().await.unwrap().epoch;
    node.restart().await.unwrap();
    goes_on(&client, &session).await;
    let status = client.node_status().await.unwrap();
    assert!(status.epoch > first_epoch);
    let socket = keeper_socket(&node, &session);
    // Like a former node that was only slow: it claims to have received everything, and tries to stop the
    // turn and end the session.
    let far = LinkSeq(u64::MAX);
    let acts = [
        KeeperCommand::Interrupt { turn: printing.number },
        KeeperCommand::Shutdown { grace_ms: 0 },
    ];
    for epoch in [0, first_epoch] {
        let commands = (1..=20).flat_map(|command| {
            acts.iter().map(move |act| {
                let (command, act) = (CommandSeq(command), act.clone());
                (ToKeeper::Command { command, after: far, act }, b"".as_slice())
            })
        });
        let says: Vec<_> = std::iter::once(attach(epoch, far)).chain(commands).collect();
        let mut stale = ByHand::say(&socket, &says);
        let refused =
            FromKeeper::Refused { epoch: Epoch(status.epoch), reason: RefuseReason::StaleEpoch };
        assert_eq!(stale.hear(), Some((refused, Vec::new())));
        assert_eq!(stale.hear(), None, "and the connection is closed");
    }
    // Other invalid callers change nothing either: without a name, or with unknown messages.
    let mut nameless = ByHand::say(&socket, &[(ToKeeper::Ack { after: far }, b"")]);
    let heard = nameless.hear();
    assert!(
        matches!(&heard, Some((FromKeeper::Refused { reason: RefuseReason::BadAttach, .. }, _))),
        "{heard:?}"
    );
    let silent: Vec<UnixStream> = (0..8).map(|_| UnixStream::connect(&socket).unwrap()).collect();
    UnixStream::connect(&socket).unwrap().write_all(&[0xff; 64]).unwrap();
    goes_on(&client, &session).await;
    drop(silent);
    std::fs::write(&stop, "").unwrap();
    let done = turn_ended(&client, &session, &printing.id, PATIENCE).await.unwrap();
    assert_eq!(done.outcome, Some(Outcome::Ok));
    check_lines(&check_events(&all_events(&client, &session).await, printing.number), 20);
    assert_eq!(run_ok(&client, &session, "print('fine')").await, "fine\n");
}

#[tokio::test]
async fn contract_18_a_link_cut_at_any_byte_goes_on_where_it_was() {
    const EPOCH: u64 = 1000;
    let mut node = node().await;
    let client = node.client().await.unwrap();
    let session = node.session(&client).await.unwrap().id;
    run_ok(&client, &session, "runs = 0").await;
    node.kill9();
    let socket = keeper_socket(&node, &session);
    let mut by_hand = ByHand::say(&socket, &[attach(EPOCH, LinkSeq(0))]);
    let before = attached(&mut by_hand);
    let mut after = before.last;
    let turn = TurnNo(2);
    let code = b"runs += 1\nfor n in range(30000):\n    print(n)\nprint(runs)";
    let command = |more, after| {
        let act = KeeperCommand::TurnStart { turn, more, context: None };
        ToKeeper::Command { command: CommandSeq(before.command.0 + 1), after, act }
    };
    // Cut in the middle of the command: the received half is dropped, neither run nor kept.
    by_hand.write(&[(command(true, after), b"runs += 100\n")]);
    drop(by_hand);
    let mut printed = Vec::new();
    let mut ends = 0;
    // Each connection repeats the command, like a node that does not know whether the keeper received it, and
    // then reads only this many bytes.
    for cut in
        [1, 40, 333, 4096, 70_000, 5, 1_000_000].into_iter().chain(std::iter::repeat(100_000))
    {
        let mut by_hand =
            ByHand::say(&socket, &[attach(EPOCH, after), (command(false, after), code)]);
        let mut left = cut;
        while left > 0 && ends == 0 {
            let before = by_hand.decoder.pending();
            assert!(by_hand.read(left), "the keeper closed the link");
            left -= by_hand.decoder.pending() - before;
            while let Some((message, body)) = by_hand.heard() {
                let FromKeeper::Event { link, turn: of, event, .. } = message else { continue };
                assert_eq!(link, after.next(), "only what is after the last one, in order");
                after = link;
                match event {
                    EventKind::Output { stream: Stream::Stdout, .. } if of == Some(turn) => {
                        printed.extend(body);
                    }
                    EventKind::TurnEnded { outcome, .. } => {
                        assert_eq!((of, outcome), (Some(turn), Outcome::Ok));
                        ends += 1;
                    }
                    other => panic!("{other:?}"),
                }
            }
        }
        if ends > 0 {
            break;
        }
    }
    let printed = String::from_utf8(printed).unwrap();
    let expected: String = (0..30_000).map(|n| format!("{n}\n")).chain(["1\n".into()]).collect();
    assert!(printed == expected, "{} bytes of {}", printed.len(), expected.len());
    // The keeper did not only hide a second run: there was none.
    let mut by_hand = ByHand::say(&socket, &[attach(EPOCH, after), (command(false, after), code)]);
    let now = attached(&mut by_hand);
    assert_eq!((now.last, now.last_turn, now.running), (after, turn, None));
    assert_eq!(now.command, CommandSeq(before.command.0 + 1));
}

#[tokio::test]
async fn contract_12_an_attach_and_its_commands_in_one_write_are_all_heard() {
    let mut node = node().await;
    let client = node.client().await.unwrap();
    let session = node.session(&client).await.unwrap().id;
    run_ok(&client, &session, "1").await;
    node.kill9();
    let socket = keeper_socket(&node, &session);
    let mut first = ByHand::say(&socket, &[attach(1000, LinkSeq(0))]);
    let AttachReply { command, last, .. } = attached(&mut first);
    let give = |next: u64, act| ToKeeper::Command {
        command: CommandSeq(command.0 + next),
        after: last,
        act,
    };
    let start = give(1, KeeperCommand::TurnStart { turn: TurnNo(2), more: false, context: None });
    let input =
        give(2, KeeperCommand::TurnInput { turn: TurnNo(2), more: false, eof: false, keys: false });
    let says = [attach(1001, last), (start, b"print(input())".as_slice()), (input, b"hello\n")];
    let mut second = ByHand::say(&socket, &says);
    assert_eq!(attached(&mut second).last, last);
    loop {
        match second.hear().unwrap() {
            (FromKeeper::Event { event: EventKind::Output { .. }, .. }, body) => {
                assert_eq!(body, b"hello\n");
            }
            (FromKeeper::Event { event: EventKind::TurnEnded { outcome, .. }, .. }, _) => {
                assert_eq!(outcome, Outcome::Ok);
                break;
            }
            _ => {}
        }
    }
    // The former node is fenced: it receives what was promised, and then end of file.
    while let Some((message, _)) = first.hear() {
        assert!(matches!(message, FromKeeper::Event { link, .. } if link <= last), "{message:?}");
    }
}
