//! Lines 101 and 102: one node at a time accepts turns for a session, and a turn id runs once.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::task::JoinSet;
use tokio::time::{Instant, MissedTickBehavior, interval, timeout};
use windlass_client::Client;
use windlass_client::protocol::SessionId;
use windlass_client::protocol::api::{CreateSession, SubmitTurn};
use windlass_testkit::{
    Gate, PATIENCE, TestFleetPlan, eventually, named_turn, run_ok, turn, within,
};

use crate::{SEEN_WITHIN, SharedFile, create, start};

/// From its last renewal on, a node with short leases accepts turns for this time. It may have renewed its lease at
/// the moment when it is stopped.
const FENCED_AFTER: Duration = Duration::from_millis(7_350);

/// How long others may take to declare a stopped node lost, with a margin for a busy machine.
const LOST_WITHIN: Duration = Duration::from_secs(25);

/// How long a client waits for a reply. A stopped node gives none.
const REPLY_WAIT: Duration = Duration::from_secs(2);

/// The pause of a client between two turns.
const SUBMIT_EVERY: Duration = Duration::from_millis(50);

/// How long clients submit turns after the first owner woke up.
const AFTER_WAKING: Duration = Duration::from_secs(3);

/// Number of ids that are submitted through two nodes at once.
const SAME_IDS: usize = 20;

/// Clients that submit turns to one session through all nodes until they are stopped.
struct Submitters {
    ended: Arc<AtomicBool>,
    tasks: JoinSet<Vec<SubmitAnswer>>,
}

/// What became of one turn that a client submitted.
#[derive(Debug)]
struct SubmitAnswer {
    door: usize,
    submitted: Instant,
    /// The turn's output, or the code of the error. `None`: no reply in time.
    said: Option<Result<String, &'static str>>,
}

impl Submitters {
    /// Begins to send turns with `code` through all nodes. The code prints a number that each incarnation of the session
    /// has for itself, so the output of a turn tells which incarnation ran the turn.
    fn start(clients: &[Client], session: &SessionId, code: &str) -> Self {
        let ended = Arc::new(AtomicBool::new(false));
        let mut tasks = JoinSet::new();
        for (door, client) in clients.iter().enumerate() {
            let client = client.with_retry_for(Duration::ZERO);
            let (session, code, ended) = (session.clone(), code.to_owned(), ended.clone());
            tasks.spawn(async move {
                let mut answers = Vec::new();
                let mut ticks = interval(SUBMIT_EVERY);
                ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
                while !ended.load(Ordering::Relaxed) {
                    ticks.tick().await;
                    let submitted = Instant::now();
                    let submit = SubmitTurn { wait_ms: 10_000, ..turn(&code) };
                    let reply = timeout(REPLY_WAIT, client.submit_turn(&session, &submit)).await;
                    let said = reply.ok().map(|reply| match reply {
                        Ok(turn) => Ok(turn.output.text),
                        Err(error) => Err(error.code()),
                    });
                    answers.push(SubmitAnswer { door, submitted, said });
                }
                answers
            });
        }
        Self { ended, tasks }
    }

    async fn stop(self) -> Vec<SubmitAnswer> {
        self.ended.store(true, Ordering::Relaxed);
        within(PATIENCE, self.tasks.join_all()).await.into_iter().flatten().collect()
    }
}

/// A session that knows which incarnation it is, and a turn that notes it in a file with the time.
fn incarnation(file: &SharedFile, which: &str) -> CreateSession {
    let first = SubmitTurn { wait_ms: 20_000, ..turn(format!("who = {which:?}")) };
    CreateSession { turn: Some(first), ..file.writable_by("solo") }
}

fn note(file: &SharedFile) -> String {
    let append = file.append("f'{who} {time.monotonic_ns()}'");
    format!("import time\n{append}print(who)\n")
}

/// The times at which the turns of an incarnation ran, by the clock of the machine.
fn times_of(file: &SharedFile, which: &str) -> Vec<u64> {
    let lines = file.lines();
    let of_it = lines.iter().filter_map(|line| line.strip_prefix(which)?.strip_prefix(' '));
    of_it.map(|time| time.parse().unwrap()).collect()
}

#[tokio::test]
async fn contract_101_a_stopped_owner_accepts_nothing_after_its_session_has_a_successor() {
    let Some(fleet) = start(TestFleetPlan::short(3)).await else { return };
    let clients = fleet.clients().await.unwrap();
    let file = SharedFile::new();
    let session = clients[0].create_session(&incarnation(&file, "one")).await.unwrap().session.id;
    let submitters = Submitters::start(&clients, &session, &note(&file));
    eventually(PATIENCE, async || match times_of(&file, "one").len() {
        20.. => Ok(()),
        count => Err(count),
    })
    .await;

    fleet.stop(0);
    let stopped = Instant::now();
    // The name is taken until the owner is declared lost.
    let successor = incarnation(&file, "two");
    eventually(LOST_WITHIN, async || clients[1].create_session(&successor).await).await;
    let took = stopped.elapsed();
    assert!(took > FENCED_AFTER, "the name was free {took:?} after its owner was stopped");
    eventually(SEEN_WITHIN, async || match times_of(&file, "two").len() {
        20.. => Ok(()),
        count => Err(count),
    })
    .await;

    // The requests that clients sent meanwhile wait in the sockets of the first owner.
    fleet.resume(0);
    let resumed = Instant::now();
    eventually(SEEN_WITHIN, async || match resumed.elapsed() >= AFTER_WAKING {
        true => Ok(()),
        false => Err("clients still submit"),
    })
    .await;
    let answers = submitters.stop().await;
    let last_of_one = times_of(&file, "one").into_iter().max().unwrap();
    let first_of_two = times_of(&file, "two").into_iter().min().unwrap();
    assert!(
        last_of_one < first_of_two,
        "a turn of the first incarnation ran {} ms after one of its successor",
        (last_of_one - first_of_two) / 1_000_000
    );
    for answer in answers.iter().filter(|answer| answer.submitted >= resumed) {
        assert_ne!(answer.said, Some(Ok("one\n".to_owned())), "{answer:?}");
    }
    let mut direct =
        answers.iter().filter(|answer| answer.door == 0 && answer.submitted >= resumed);
    assert!(direct.any(|answer| answer.said.is_some()), "the first owner never answered");
    // The node that was lost joins again. It then passes requests on to the successor, like every node.
    for client in &clients {
        let said = eventually(SEEN_WITHIN, async || client.run_turn(&session, turn("who")).await);
        assert_eq!(said.await.output.text, "'two'\n");
    }
}

/// The owner is alone in a fence of its own clock: nobody declares it lost while it is stopped.
#[tokio::test]
async fn contract_101_an_owner_that_wakes_up_after_its_fence_accepts_no_turn() {
    let Some(fleet) = start(TestFleetPlan::short(2)).await else { return };
    let clients = fleet.clients().await.unwrap();
    let file = SharedFile::new();
    let session = clients[0].create_session(&incarnation(&file, "one")).await.unwrap().session.id;
    run_ok(&clients[1], &session, &note(&file)).await;
    fleet.stop(0);
    let stopped = Instant::now();
    // These requests arrive at the stopped node, directly and through the other one.
    let submit = note(&file);
    let waiting: Vec<_> = clients
        .iter()
        .map(|client| {
            let client = client.with_retry_for(Duration::ZERO);
            let (session, submit) = (session.clone(), turn(&submit));
            tokio::spawn(async move { client.submit_turn(&session, &submit).await })
        })
        .collect();
    let fenced = FENCED_AFTER + Duration::from_millis(700);
    eventually(PATIENCE, async || match stopped.elapsed() >= fenced {
        true => Ok(()),
        false => Err("the node is not fenced yet"),
    })
    .await;
    fleet.resume(0);
    for answer in waiting {
        let answer = within(PATIENCE, answer).await.unwrap();
        assert!(answer.is_err(), "a fenced node accepted a turn: {answer:?}");
    }
    let refused = clients[0].submit_turn(&session, &turn(note(&file))).await.unwrap_err();
    let codes = ["fenced", "session_ended", "session_lost", "fleet_unavailable"];
    assert!(codes.contains(&refused.code()), "{refused:?}");
    assert_eq!(times_of(&file, "one").len(), 1, "{:?}", file.lines());
}

#[tokio::test]
async fn contract_102_an_id_that_arrives_through_two_nodes_at_once_runs_once() {
    let Some(fleet) = start(TestFleetPlan::short(3)).await else { return };
    let clients = fleet.clients().await.unwrap();
    let file = SharedFile::new();
    let wanted = file.writable_by("same");
    let session = clients[0].create_session(&wanted).await.unwrap().session.id;
    run_ok(&clients[0], &session, "n = 0").await;
    // Through the owner and another node, and through two others.
    for (first, second) in [(0, 1), (1, 2)] {
        for number in 0..SAME_IDS {
            let code = format!("n += 1\n{}print(n)", file.append("n"));
            let id = format!("same-{first}-{number}");
            let submit = SubmitTurn { wait_ms: 20_000, ..named_turn(&id, code) };
            let (one, other) = within(PATIENCE, async {
                tokio::join!(
                    clients[first].submit_turn(&session, &submit),
                    clients[second].submit_turn(&session, &submit),
                )
            })
            .await;
            assert_eq!(one.unwrap(), other.unwrap(), "two answers for the turn {id}");
        }
    }
    let expected: Vec<String> = (1..=2 * SAME_IDS).map(|number| number.to_string()).collect();
    assert_eq!(file.lines(), expected);
    assert_eq!(clients[0].session(&session).await.unwrap().turns, 2 * SAME_IDS as u64 + 1);
}

/// A client whose node died does not know whether its turn was accepted, and sends it again elsewhere.
#[tokio::test]
async fn contract_102_an_id_that_is_sent_again_after_its_node_died_runs_once() {
    let Some(mut fleet) = start(TestFleetPlan::short(3)).await else { return };
    let clients = fleet.clients().await.unwrap();
    let (file, gate) = (SharedFile::new(), Gate::new("again").unwrap());
    let wanted = file.writable_by("again");
    let session = clients[0].create_session(&wanted).await.unwrap().session.id;
    let code = format!("{}{}print('done')", file.append("'ran'"), gate.python());
    let submit = SubmitTurn { wait_ms: 20_000, ..named_turn("again", code) };
    let first = {
        let client = clients[1].with_retry_for(Duration::ZERO);
        let (session, submit) = (session.clone(), submit.clone());
        tokio::spawn(async move { client.submit_turn(&session, &submit).await })
    };
    let at_gate = within(PATIENCE, gate.reached()).await.unwrap();
    fleet.kill9(1);
    let cut = within(PATIENCE, first).await.unwrap();
    assert!(cut.is_err(), "{cut:?}");
    let again = {
        let client = clients[2].clone();
        let session = session.clone();
        tokio::spawn(async move { client.submit_turn(&session, &submit).await })
    };
    at_gate.open().await.unwrap();
    let answer = within(PATIENCE, again).await.unwrap().unwrap();
    assert_eq!(answer.output.text, "done\n");
    assert_eq!(file.lines(), ["ran"]);
    let other = create(&clients[2], "other").await;
    assert_eq!(run_ok(&clients[0], &other, "1").await, "1\n");
}
