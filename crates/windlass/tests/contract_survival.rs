//! The contract lines on survival that concern processes, 27 to 30: a node that is killed or replaced loses
//! nothing, the end of a keeper ends all its processes, and no process outlives a node for long. Effects of
//! the disk are in `contract_disk`.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::path::PathBuf;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use tokio::sync::watch;
use tokio::task::JoinHandle;
use windlass_client::protocol::api::{
    CreateSession, EventItem, OutputQuery, SessionState, StopSessions, SubmitTurn, TurnQuery,
    TurnState,
};
use windlass_client::protocol::event::EndReason;
use windlass_client::protocol::link::Hold;
use windlass_client::protocol::{ErrorCode, EventKind, Outcome, Seq, SessionId, Stream, TurnId};
use windlass_client::{Client, ClientError};
use windlass_testkit::escape::{ESCAPE, ESCAPES, MARK_VARIABLE, ProcessMark};
use windlass_testkit::{
    Gate, PATIENCE, TestNode, all_events, named_turn, processes, run, run_ok, turn_ended, within,
};

const PROGRAM: &str = env!("CARGO_BIN_EXE_windlass");

/// Number of kills in line 27; `WINDLASS_CONTRACT_KILLS` overrides it.
const KILLS: u64 = 50;

/// Number of restarts in line 28.
const UPGRADES: u64 = 5;

#[tokio::test]
async fn contract_27_a_node_killed_in_a_turn_loses_doubles_and_reorders_nothing() {
    let kills = number_from_env("WINDLASS_CONTRACT_KILLS").unwrap_or(KILLS);
    let mut random = Random::seeded();
    let mut node = TestNode::start(PROGRAM).await.unwrap();
    let mut printing = Printing::start(node.client().await.unwrap(), &node).await;
    for kill in 0..kills {
        // Every other kill is so early that the new node has hardly attached. The moment is the subject of
        // the test, so nothing is waited for.
        let most_us = if kill % 2 == 0 { 2_000 } else { 40_000 };
        tokio::time::sleep(Duration::from_micros(random.below(most_us))).await;
        node.restart().await.unwrap();
        // Wait for new output now and then, so that not all kills come before the turn prints.
        if kill % 10 == 9 {
            printing.prints_on().await;
        }
    }
    printing.finish_and_check().await;
}

/// The deadline of turns whose node is replaced while they wait and while they run.
const DEADLINE: Duration = Duration::from_secs(12);

#[tokio::test]
async fn contract_27_a_deadline_counts_from_the_turns_start_whatever_node_is_there() {
    let mut node = TestNode::start(PROGRAM).await.unwrap();
    let client = node.client().await.unwrap();
    let session = node.session(&client).await.unwrap().id;
    let gate = Gate::new("waited").unwrap();
    // It runs longer than the deadline of the turns that wait behind it, and prints meanwhile.
    let sleep =
        format!("import time\nprint('x' * 100)\ntime.sleep({})", DEADLINE.as_secs_f64() + 0.2);
    client.submit_turn(&session, &named_turn("before", sleep)).await.unwrap();
    let limited = |id: &str, code: String| SubmitTurn {
        deadline_ms: Some(u64::try_from(DEADLINE.as_millis()).unwrap()),
        ..named_turn(id, code)
    };
    let waited = format!("{}print('whole')", gate.python());
    client.submit_turn(&session, &limited("waited", waited)).await.unwrap();
    client.submit_turn(&session, &limited("late", "time.sleep(60)".into())).await.unwrap();
    let at_gate = within(2 * DEADLINE + PATIENCE, gate.reached()).await.unwrap();
    let waited_id = TurnId::chosen("waited").unwrap();
    let before = client.turn(&session, &waited_id, TurnQuery::default()).await.unwrap();
    node.restart().await.unwrap();
    let after = client.turn(&session, &waited_id, TurnQuery::default()).await.unwrap();
    assert_eq!(after.state, TurnState::Running, "{after:?}");
    assert_eq!(after.output.from, before.output.from, "its output is somewhere else now");
    drop(at_gate);
    let ended = turn_ended(&client, &session, &waited_id, PATIENCE).await.unwrap();
    assert_eq!((ended.outcome, ended.output.text.as_str()), (Some(Outcome::Ok), "whole\n"));
    // The deadline of the next turn passes during another restart.
    node.restart().await.unwrap();
    let late_id = TurnId::chosen("late").unwrap();
    let late = turn_ended(&client, &session, &late_id, DEADLINE + PATIENCE).await.unwrap();
    assert_eq!(late.outcome, Some(Outcome::TimedOut), "{late:?}");
    let took_ms = late.usage.unwrap().wall_ms;
    assert!(took_ms + 1.0 >= DEADLINE.as_secs_f64() * 1000.0, "stopped after {took_ms} ms");
}

#[tokio::test]
async fn contract_27_a_worker_that_dies_while_there_is_no_node_is_replaced_once() {
    let mut node = TestNode::start(PROGRAM).await.unwrap();
    let client = node.client().await.unwrap();
    let session = node.session(&client).await.unwrap().id;
    for restarts in 1..4 {
        run_ok(&client, &session, "import os; x = 1").await;
        let keeper = client.session(&session).await.unwrap().keeper_pid.unwrap();
        let worker = *processes::descendants(keeper).last().unwrap();
        node.kill9();
        processes::kill(worker);
        assert!(processes::wait_gone(worker, PATIENCE), "the worker lives");
        node.restart().await.unwrap();
        // A turn that the node accepts before it learns of the worker's death is lost with the worker
        // (`worker_died`).
        let heard = async { while client.session(&session).await.unwrap().restarts < restarts {} };
        within(PATIENCE, heard).await;
        let lost = run(&client, &session, "x").await;
        assert_eq!(lost.error.unwrap().code, Some(ErrorCode::StateLost));
        assert_eq!(run_ok(&client, &session, "'x' in globals()").await, "False\n");
        assert_eq!(client.session(&session).await.unwrap().restarts, restarts);
    }
}

#[tokio::test]
async fn contract_28_an_upgrade_of_the_node_is_no_error_to_a_client_that_polls() {
    let mut node = TestNode::start(PROGRAM).await.unwrap();
    let mut printing = Printing::start(node.client().await.unwrap(), &node).await;
    for _ in 0..UPGRADES {
        node.stop(StopSessions::Keep).await.unwrap();
        node.restart().await.unwrap();
        printing.prints_on().await;
    }
    printing.finish_and_check().await;
}

#[tokio::test]
async fn contract_28_a_client_that_may_start_a_node_does_so_after_the_old_one_went() {
    let mut node = TestNode::start(PROGRAM).await.unwrap();
    let old = node.pid();
    let client = node.starting_client().await.unwrap();
    let mut printing = Printing::start(client.clone(), &node).await;
    node.stop(StopSessions::Keep).await.unwrap();
    printing.prints_on().await;
    assert_ne!(within(PATIENCE, client.node_status()).await.unwrap().pid, old);
    printing.finish_and_check().await;
}

#[tokio::test]
async fn contract_29_a_killed_keeper_ends_all_below_it_in_a_pid_namespace() {
    a_killed_keeper_ends_all_below_it("auto", Hold::PidNamespace).await;
}

#[tokio::test]
async fn contract_29_a_killed_keeper_ends_all_below_it_as_a_subreaper() {
    a_killed_keeper_ends_all_below_it("subreaper", Hold::Subreaper).await;
}

async fn a_killed_keeper_ends_all_below_it(hold: &str, wanted: Hold) {
    let node = TestNode::builder(PROGRAM).arg("--hold").arg(hold).start().await.unwrap();
    let client = node.client().await.unwrap();
    let neighbour = node.session(&client).await.unwrap().id;
    run_ok(&client, &neighbour, "x = 40").await;
    let Some((session, mark)) = escaping_session(&client, wanted).await else { return };
    let running = named_turn("lost", "print('on', flush=True)\nstay()");
    client.submit_turn(&session, &running).await.unwrap();
    let waiting = client.submit_turn(&session, &named_turn("never", "1")).await.unwrap();
    assert_eq!(waiting.state, TurnState::Waiting);
    printed(&client, &session, "on").await;
    let keeper = client.session(&session).await.unwrap().keeper_pid.unwrap();

    processes::kill(keeper);
    let killed = Instant::now();
    let left = tokio::task::spawn_blocking(move || mark.left_at(killed + Duration::from_secs(1)));
    let lost = turn_ended(&client, &session, running.id.as_ref().unwrap(), PATIENCE).await.unwrap();
    let left = left.await.unwrap();
    assert_eq!(left, [0; 0], "these live 1 s after their keeper's death");

    assert_eq!(lost.outcome, Some(Outcome::Lost), "{lost:?}");
    let error = lost.error.unwrap();
    assert_eq!(error.code, Some(ErrorCode::KeeperLost), "{error:?}");
    assert!(error.message.contains("create a new session"), "no remedy: {error:?}");
    assert!(!lost.receipt.unwrap().lost.is_empty());
    let never = turn_ended(&client, &session, &waiting.id, PATIENCE).await.unwrap();
    assert_ne!(never.outcome, Some(Outcome::Ok), "it ran after the loss");
    let ended = client.session(&session).await.unwrap();
    assert_eq!(ended.state, SessionState::Ended);
    let ended = ended.ended.unwrap();
    assert_eq!(ended.reason, EndReason::KeeperLost);
    assert!(!ended.receipt.unwrap().kept.is_empty());
    assert_eq!(run_ok(&client, &neighbour, "x + 2").await, "42\n");
}

#[tokio::test]
async fn contract_30_a_node_that_stays_away_leaves_nothing_behind() {
    for (hold, wanted) in [("auto", Hold::PidNamespace), ("subreaper", Hold::Subreaper)] {
        let builder = TestNode::builder(PROGRAM).arg("--hold").arg(hold);
        let mut node = builder.arg("--node-grace").arg("1s").start().await.unwrap();
        let client = node.client().await.unwrap();
        let Some((session, mark)) = escaping_session(&client, wanted).await else { continue };
        client.submit_turn(&session, &named_turn("cut", "stay()")).await.unwrap();
        // The node was starting a keeper for its pool. The next node removes the socket of that keeper.
        within(PATIENCE, node.await_environments()).await.unwrap();
        let below = processes::descendants(node.pid());
        let gone = Instant::now();
        node.kill9();
        assert!(mark.alive().len() > ESCAPES, "they did not wait for the next node");
        assert_eq!(mark.left_at(gone + PATIENCE), [0; 0]);
        assert!(gone.elapsed() >= Duration::from_secs(1), "the grace was cut short");
        // The keeper, and the guard process above it if there is one.
        for pid in below {
            assert!(processes::wait_gone(pid, PATIENCE), "process {pid} is left");
        }
        let sockets = std::fs::read_dir(node.dirs().runtime.join("k")).unwrap().count();
        assert_eq!(sockets, 0, "a keeper's socket is left");

        node.restart().await.unwrap();
        let ended = client.session(&session).await.unwrap();
        assert_eq!(ended.state, SessionState::Ended);
        let cut = turn_ended(&client, &session, &TurnId::chosen("cut").unwrap(), PATIENCE).await;
        assert_eq!(cut.unwrap().outcome, Some(Outcome::Lost));
    }
}

/// A session that left [`ESCAPES`] processes behind, and their mark. `None` if this machine refuses the
/// requested way to hold them.
async fn escaping_session(client: &Client, wanted: Hold) -> Option<(SessionId, ProcessMark)> {
    let mut mark = ProcessMark::new("survival");
    let mut create: CreateSession = TestNode::create();
    create.env.insert(MARK_VARIABLE.to_owned(), mark.as_str().to_owned());
    let session = within(PATIENCE, client.create_session(&create)).await.unwrap().session.id;
    let turn = run(client, &session, ESCAPE).await;
    assert_eq!(turn.outcome, Some(Outcome::Ok), "{turn:?}");
    let found = client.session(&session).await.unwrap();
    mark.follow(found.keeper_pid.unwrap());
    let hold = found.hold.unwrap();
    if hold != wanted {
        windlass_testkit::skip(format_args!("this machine refuses {wanted:?} and gives {hold:?}"));
        return None;
    }
    let alive = mark.alive().len();
    assert!(alive > ESCAPES, "only {alive} processes run: the worker and {ESCAPES} should");
    Some((session, mark))
}

/// Waits until the session has printed an event that starts with `text`.
async fn printed(client: &Client, session: &SessionId, text: &str) {
    windlass_testkit::wait_for_event(client, session, Seq(0), PATIENCE, |item| {
        item.text.as_deref().is_some_and(|said| said.starts_with(text))
            && matches!(item.event.kind, EventKind::Output { stream: Stream::Stdout, .. })
    })
    .await
    .unwrap();
}

/// A turn that prints numbered lines until it is told to stop, and its clients.
struct Printing {
    client: Client,
    session: SessionId,
    turn: TurnId,
    stop_file: PathBuf,
    /// What a follower of the events has seen, updated after each event.
    seen: watch::Receiver<u64>,
    follower: JoinHandle<Result<Vec<EventItem>, ClientError>>,
    poller: JoinHandle<Result<(), ClientError>>,
}

impl Printing {
    async fn start(client: Client, node: &TestNode) -> Self {
        let session = node.session(&client).await.unwrap();
        let before = "kept = {'a': [1, 2, 3]}\nimport threading\nlock = threading.Lock()";
        run_ok(&client, &session.id, before).await;
        let stop_file = PathBuf::from(&session.workspace).join("stop");
        let code = "import os, time\n\
                    count = 0\n\
                    while not os.path.exists('stop'):\n\
                    \x20   for _ in range(20):\n\
                    \x20       print(f'line {count}')\n\
                    \x20       count += 1\n\
                    \x20   time.sleep(0.001)\n\
                    print(f'{count} in all')\n";
        let submit = SubmitTurn { wait_ms: 0, ..named_turn("printing", code) };
        let turn = client.submit_turn(&session.id, &submit).await.unwrap().id;
        let (tell, seen) = watch::channel(0);
        let follower = tokio::spawn(follow(client.clone(), session.id.clone(), tell));
        let poller = tokio::spawn(poll(client.clone(), session.id.clone(), turn.clone()));
        let mut printing =
            Self { client, session: session.id, turn, stop_file, seen, follower, poller };
        printing.prints_on().await;
        printing
    }

    /// Waits until the follower has seen new events.
    async fn prints_on(&mut self) {
        let now = within(PATIENCE, self.client.session(&self.session)).await.unwrap().seq.0;
        within(PATIENCE, self.seen.wait_for(|seen| *seen > now)).await.unwrap();
    }

    async fn finish_and_check(self) {
        std::fs::write(&self.stop_file, "").unwrap();
        let turn = turn_ended(&self.client, &self.session, &self.turn, PATIENCE).await.unwrap();
        assert_eq!(turn.outcome, Some(Outcome::Ok), "{turn:?}");
        within(PATIENCE, self.poller).await.unwrap().unwrap();

        let output = whole_output(&self.client, &self.session, &self.turn).await;
        check_lines(&output);
        let events = all_events(&self.client, &self.session).await;
        check_events(&events, &output);
        let followed = within(PATIENCE, self.follower).await.unwrap().unwrap();
        // Prints only a part of both, so that a failure is readable.
        let differs = followed.iter().zip(&events).position(|(told, kept)| told != kept);
        if let Some(at) = differs {
            let (told, kept) = (&followed[at..][..2.min(followed.len() - at)], &events[at..=at]);
            panic!("the stream told event {} otherwise: {told:?}, not {kept:?}", at + 1);
        }
        assert!(followed.len() <= events.len(), "the stream told more than there is");
        let last = followed.last().map(|item| &item.event.kind);
        assert!(matches!(last, Some(EventKind::TurnEnded { .. })), "{last:?}");

        let kept = run_ok(&self.client, &self.session, "kept['a'], lock.locked(), count").await;
        let lines = output.split(|byte| *byte == b'\n').count() - 2;
        assert_eq!(kept, format!("([1, 2, 3], False, {lines})\n"));
    }
}

/// Follows the events until the second turn ends.
async fn follow(
    client: Client,
    session: SessionId,
    tell: watch::Sender<u64>,
) -> Result<Vec<EventItem>, ClientError> {
    let mut events = client.events(&session, Seq(0));
    let mut seen = Vec::new();
    let mut ended = 0;
    while ended < 2
        && let Some(item) = events.next().await?
    {
        ended += usize::from(matches!(item.event.kind, EventKind::TurnEnded { .. }));
        tell.send_replace(item.event.seq.0);
        seen.push(item);
    }
    Ok(seen)
}

/// Polls the turn until it ends, like a client that was promised no error.
async fn poll(client: Client, session: SessionId, turn: TurnId) -> Result<(), ClientError> {
    let query = TurnQuery { wait_ms: 20, output_bytes_max: Some(64), ..TurnQuery::default() };
    while client.turn(&session, &turn, query).await?.state != TurnState::Ended {}
    Ok(())
}

async fn whole_output(client: &Client, session: &SessionId, turn: &TurnId) -> Vec<u8> {
    let mut whole = Vec::new();
    loop {
        let from = Some(whole.len() as u64);
        let query = OutputQuery { turn: Some(turn.to_string()), from, ..OutputQuery::default() };
        let part = within(PATIENCE, client.output(session, &query)).await.unwrap();
        assert_eq!(part.dropped, 0);
        whole.extend_from_slice(&part.bytes);
        if part.bytes.is_empty() {
            assert_eq!(part.total, whole.len() as u64);
            return whole;
        }
    }
}

/// Every line occurs once and in order, and the count matches the code's own count.
fn check_lines(output: &[u8]) {
    let text = std::str::from_utf8(output).unwrap();
    let mut count = 0;
    for line in text.lines() {
        if line == format!("line {count}") {
            count += 1;
        } else {
            assert_eq!(line, format!("{count} in all"), "after {count} lines");
        }
    }
    assert!(text.ends_with(&format!("\n{count} in all\n")), "the end is missing after {count}");
}

/// Both event numbers have no gap, there is one end, and the bytes equal the output.
fn check_events(events: &[EventItem], output: &[u8]) {
    let mut link = 0;
    let mut text = String::new();
    let mut ends = 0;
    for (place, item) in events.iter().enumerate() {
        assert_eq!(item.event.seq.0, place as u64 + 1);
        if let Some(number) = item.event.link {
            assert_eq!(number.0, link + 1, "an event of the keeper's is missing or doubled");
            link = number.0;
        }
        match item.event.kind {
            EventKind::Output { .. } => text.push_str(item.text.as_deref().unwrap()),
            EventKind::TurnEnded { .. } => ends += 1,
            _ => {}
        }
    }
    assert_eq!(ends, 2);
    assert!(text.as_bytes() == output, "the events' bytes are not the output's");
}

fn number_from_env(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|text| text.parse().unwrap())
}

/// A small random generator (splitmix64), so that a failed run can be repeated.
struct Random(u64);

impl Random {
    fn seeded() -> Self {
        let clock = || SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_nanos() as u64;
        let seed = number_from_env("WINDLASS_CONTRACT_SEED").unwrap_or_else(clock);
        eprintln!("WINDLASS_CONTRACT_SEED={seed} repeats the moments of this run");
        Self(seed)
    }

    fn below(&mut self, limit: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ (mixed >> 31)) % limit
    }
}
