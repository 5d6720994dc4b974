//! The contract lines on peers that stop or die, against a real node, keeper and Python: no call hangs past
//! its deadline, and every pending call ends at once with a code and a remedy.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::time::{Duration, Instant};

use tokio::task::JoinHandle;
use windlass_client::protocol::api::{
    CloseQuery, CreateSession, Events, EventsQuery, Session, SubmitTurn, Turn, TurnInput,
    TurnQuery, TurnState,
};
use windlass_client::protocol::event::EndReason;
use windlass_client::protocol::{ErrorCode, EventKind, Outcome, Seq, SessionId, TurnId};
use windlass_client::{Client, ClientError};
use windlass_testkit::{
    PATIENCE, TestNode, processes, run, run_ok, turn, turn_ended, wait_for_event, within,
};

/// The time that "at once" may take on a busy machine.
const AT_ONCE: Duration = Duration::from_secs(3);

const GRACE: Duration = Duration::from_millis(300);
const DEADLINE: Duration = Duration::from_millis(500);

/// How long the nodes here wait for a keeper.
const KEEPER_PATIENCE: Duration = Duration::from_secs(3);

/// A node whose own timer comes late gives a keeper its time once more.
const GIVEN_UP_WITHIN: Duration = Duration::from_secs(2 * 3 + 3);

/// How long a node waits for the end of a keeper that it told to end.
const SEE_OFF: Duration = Duration::from_secs(5);

/// The ways a keeper can hold its processes. Each must keep these promises.
const HOLDS: [&str; 2] = ["auto", "subreaper"];

const BUSY: &str = "print('begun')\nwhile True:\n    pass";

async fn start(hold: &str) -> (TestNode, Client, Session) {
    let node = TestNode::builder(env!("CARGO_BIN_EXE_windlass"))
        .arg("--keeper-patience")
        .arg(format!("{}s", KEEPER_PATIENCE.as_secs()))
        .arg("--hold")
        .arg(hold)
        .start()
        .await
        .unwrap();
    let client = node.client().await.unwrap();
    let create = CreateSession { interrupt_grace_ms: Some(millis(GRACE)), ..TestNode::create() };
    let id = client.create_session(&create).await.unwrap().session.id;
    run_ok(&client, &id, "x = 7").await;
    let session = client.session(&id).await.unwrap();
    (node, client, session)
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap()
}

fn keeper_of(session: &Session) -> u32 {
    session.keeper_pid.unwrap()
}

/// The pid of the worker as this test sees it.
fn worker_of(session: &Session) -> u32 {
    let workers = processes::workers(keeper_of(session));
    assert_eq!(workers.len(), 1, "the worker alone: {workers:?}");
    workers[0]
}

fn code_of(turn: &Turn) -> Option<ErrorCode> {
    turn.error.as_ref().and_then(|error| error.code)
}

async fn begin(client: &Client, session: &Session, submit: SubmitTurn) -> Turn {
    let begun = client.submit_turn(&session.id, &submit).await.unwrap();
    let output = |kind: &EventKind| matches!(kind, EventKind::Output { .. });
    wait_for_event(client, &session.id, session.seq, PATIENCE, |item| output(&item.event.kind))
        .await
        .unwrap();
    begun
}

/// Replies with a short wait arrive in that time, whatever is stopped.
async fn looks_answer(client: &Client, session: &SessionId, of: &TurnId) {
    let wait = Duration::from_millis(200);
    let query = TurnQuery { wait_ms: millis(wait), output_bytes_max: None, ..TurnQuery::default() };
    within(wait + AT_ONCE, client.turn(session, of, query)).await.unwrap();
    let after = client.session(session).await.unwrap().seq;
    let query = EventsQuery { after: after.0, wait_ms: millis(wait), limit: None };
    within(wait + AT_ONCE, client.events_page(session, query)).await.unwrap();
    within(AT_ONCE, client.session(session)).await.unwrap();
}

/// A turn with a deadline, submitted to a session with a stopped process.
async fn deadline_holds(client: &Client, session: &SessionId) {
    let submit = SubmitTurn {
        wait_ms: millis(PATIENCE),
        deadline_ms: Some(millis(DEADLINE)),
        ..turn("1 + 1")
    };
    let reply = client.submit_turn(session, &submit);
    let late = within(DEADLINE + GRACE + AT_ONCE, reply).await.unwrap();
    assert_eq!((late.state, late.outcome), (TurnState::Ended, Some(Outcome::TimedOut)));
    assert_eq!(code_of(&late), Some(ErrorCode::Unstoppable));
}

async fn keeper_is_given_up(client: &Client, session: &SessionId) {
    let ended = |kind: &EventKind| matches!(kind, EventKind::SessionEnded { .. });
    wait_for_event(client, session, Seq(0), GIVEN_UP_WITHIN, |item| ended(&item.event.kind))
        .await
        .unwrap();
    let ended = client.session(session).await.unwrap().ended.unwrap();
    assert_eq!(ended.reason, EndReason::KeeperLost);
    assert!(ended.receipt.is_some_and(|receipt| !receipt.lost.is_empty()));
}

#[tokio::test]
async fn contract_25_a_stopped_worker_makes_no_call_hang() {
    let (_node, client, session) = start("auto").await;
    let busy = begin(&client, &session, turn(BUSY)).await;
    let worker = worker_of(&session);
    processes::stop(worker);
    looks_answer(&client, &session.id, &busy.id).await;
    within(AT_ONCE, client.interrupt(&session.id)).await.unwrap();
    let killed = turn_ended(&client, &session.id, &busy.id, GRACE + AT_ONCE).await.unwrap();
    assert_eq!(code_of(&killed), Some(ErrorCode::Unstoppable));
    assert!(processes::wait_gone(worker, AT_ONCE));
    assert_eq!(run_ok(&client, &session.id, "1 + 1").await, "2\n");
    // A stopped idle worker: the next turn still ends by its deadline.
    processes::stop(worker_of(&session));
    deadline_holds(&client, &session.id).await;
    assert_eq!(run_ok(&client, &session.id, "2 + 2").await, "4\n");
    // A close still ends after its grace period.
    processes::stop(worker_of(&session));
    let close = client.close_session(&session.id, CloseQuery { grace_ms: Some(millis(GRACE)) });
    within(GRACE + AT_ONCE, close).await.unwrap();
}

#[tokio::test]
async fn contract_25_a_stopped_keeper_makes_no_turn_hang() {
    for hold in HOLDS {
        let (_node, client, session) = start(hold).await;
        let worker = worker_of(&session);
        let busy = begin(&client, &session, turn(BUSY)).await;
        processes::stop(keeper_of(&session));
        looks_answer(&client, &session.id, &busy.id).await;
        within(AT_ONCE, client.interrupt(&session.id)).await.unwrap();
        let ended = turn_ended(&client, &session.id, &busy.id, GRACE + AT_ONCE).await.unwrap();
        assert_eq!(code_of(&ended), Some(ErrorCode::Unstoppable));
        keeper_is_given_up(&client, &session.id).await;
        for pid in [keeper_of(&session), worker] {
            assert!(processes::wait_gone(pid, AT_ONCE), "{hold}: {pid} lives on");
        }
    }
}

#[tokio::test]
async fn contract_25_a_stopped_keeper_makes_no_deadline_pass_unnoticed() {
    let (_node, client, session) = start("auto").await;
    processes::stop(keeper_of(&session));
    deadline_holds(&client, &session.id).await;
    // A turn that waits for the new worker ends when the node gives up the keeper.
    let submit = SubmitTurn { wait_ms: millis(PATIENCE), ..turn("1 + 1") };
    let reply = client.submit_turn(&session.id, &submit);
    let lost = within(GIVEN_UP_WITHIN, reply).await.unwrap();
    assert_eq!((lost.outcome, code_of(&lost)), (Some(Outcome::Lost), Some(ErrorCode::StateLost)));
}

#[tokio::test]
async fn contract_25_a_stopped_keeper_makes_no_input_hang() {
    let (_node, client, session) = start("auto").await;
    let asking = run(&client, &session.id, "input()").await;
    assert_eq!(asking.state, TurnState::AwaitingInput);
    processes::stop(keeper_of(&session));
    let input = TurnInput { text: Some("answer\n".into()), ..TurnInput::default() };
    let send = client.send_input(&session.id, &asking.id, &input);
    let error = within(GIVEN_UP_WITHIN, send).await.unwrap_err();
    assert_eq!(error.api_code(), Some(ErrorCode::SessionEnded));
    assert!(!error.remedy().is_empty());
}

#[tokio::test]
async fn contract_25_a_stopped_keeper_makes_no_close_hang() {
    let (_node, client, session) = start("auto").await;
    processes::stop(keeper_of(&session));
    let close = client.close_session(&session.id, CloseQuery { grace_ms: Some(0) });
    within(SEE_OFF + AT_ONCE, close).await.unwrap();
    assert!(processes::wait_gone(keeper_of(&session), AT_ONCE));
}

/// One pending call of every kind that can wait on a session.
struct Pending {
    running: TurnId,
    submitted: JoinHandle<Result<Turn, ClientError>>,
    looked: JoinHandle<Result<Turn, ClientError>>,
    queued: JoinHandle<Result<Turn, ClientError>>,
    polled: JoinHandle<Result<Events, ClientError>>,
    streamed: JoinHandle<Result<Vec<EventKind>, ClientError>>,
}

impl Pending {
    /// Each call has its own connection. When this returns, all calls have reached the node.
    async fn start(client: &Client, session: &Session) -> Self {
        let id = session.id.clone();
        let wait_ms = millis(PATIENCE);
        let running = windlass_client::fresh_turn_id();
        let busy = SubmitTurn { id: Some(running.clone()), wait_ms, ..turn(BUSY) };
        let submitted =
            spawn(
                client,
                &id,
                move |client, id| async move { client.submit_turn(&id, &busy).await },
            );
        let printed = |kind: &EventKind| matches!(kind, EventKind::Output { .. });
        wait_for_event(client, &id, session.seq, PATIENCE, |item| printed(&item.event.kind))
            .await
            .unwrap();
        let look = running.clone();
        let looked = spawn(client, &id, move |client, id| async move {
            client
                .turn(
                    &id,
                    &look,
                    TurnQuery { wait_ms, output_bytes_max: None, ..TurnQuery::default() },
                )
                .await
        });
        let behind = SubmitTurn { wait_ms, ..turn("'never'") };
        let queued =
            spawn(
                client,
                &id,
                move |client, id| async move { client.submit_turn(&id, &behind).await },
            );
        let accepted = |kind: &EventKind| matches!(kind, EventKind::TurnAccepted { .. });
        let mut count = 0;
        let queued_is_accepted = |item: &windlass_client::protocol::api::EventItem| {
            count += usize::from(accepted(&item.event.kind));
            count == 2
        };
        let last =
            wait_for_event(client, &id, session.seq, PATIENCE, queued_is_accepted).await.unwrap();
        let after = last.event.seq;
        let polled = spawn(client, &id, move |client, id| async move {
            client.events_page(&id, EventsQuery { after: after.0, wait_ms, limit: None }).await
        });
        let streamed = spawn(client, &id, move |client, id| async move {
            let mut events = client.events(&id, after);
            let mut seen = Vec::new();
            while let Some(item) = events.next().await? {
                let over = matches!(item.event.kind, EventKind::WorkerReady { .. });
                seen.push(item.event.kind);
                if over {
                    break;
                }
            }
            Ok(seen)
        });
        // The runtime has one thread, so everything that was sent before this reply has been sent.
        client.health().await.unwrap();
        Self { running, submitted, looked, queued, polled, streamed }
    }

    /// All calls end at once; the running turn ends with `code`.
    async fn all_end(self, code: ErrorCode) {
        for reply in [self.submitted, self.looked] {
            let lost = within(AT_ONCE, reply).await.unwrap().unwrap();
            assert_eq!(lost.id, self.running);
            assert_eq!((lost.outcome, code_of(&lost)), (Some(Outcome::Lost), Some(code)));
            assert!(!lost.error.unwrap().message.is_empty(), "it says what to do");
            assert!(lost.receipt.is_some_and(|receipt| !receipt.lost.is_empty()));
        }
        let behind = within(AT_ONCE, self.queued).await.unwrap().unwrap();
        assert_eq!(behind.outcome, Some(Outcome::Lost));
        assert_eq!(code_of(&behind), Some(ErrorCode::StateLost));
        assert!(!behind.error.unwrap().message.is_empty(), "it says what to do");
        let polled = within(AT_ONCE, self.polled).await.unwrap().unwrap();
        assert!(!polled.events.is_empty(), "{polled:?}");
        let streamed = within(PATIENCE, self.streamed).await.unwrap().unwrap();
        let told = streamed.iter().any(|kind| {
            matches!(kind, EventKind::TurnEnded { outcome: Outcome::Lost, error: Some(error), .. }
                if error.code == Some(code))
        });
        assert!(told, "{streamed:?}");
    }
}

fn spawn<T, F>(
    client: &Client,
    session: &SessionId,
    call: impl FnOnce(Client, SessionId) -> F,
) -> JoinHandle<T>
where
    T: Send + 'static,
    F: Future<Output = T> + Send + 'static,
{
    tokio::spawn(call(client.clone(), session.clone()))
}

#[tokio::test]
async fn contract_26_the_death_of_the_worker_ends_every_pending_call_at_once() {
    let (_node, client, session) = start("auto").await;
    let pending = Pending::start(&client, &session).await;
    processes::kill(worker_of(&session));
    pending.all_end(ErrorCode::WorkerDied).await;
    assert_eq!(run_ok(&client, &session.id, "'x' in globals()").await, "False\n");
}

#[tokio::test]
async fn contract_26_the_death_of_the_keeper_ends_every_pending_call_at_once() {
    for hold in HOLDS {
        let (_node, client, session) = start(hold).await;
        let pending = Pending::start(&client, &session).await;
        processes::kill(keeper_of(&session));
        let since = Instant::now();
        pending.all_end(ErrorCode::KeeperLost).await;
        assert!(since.elapsed() < AT_ONCE, "{hold}: {:?}", since.elapsed());
        let error = client.submit_turn(&session.id, &turn("x")).await.unwrap_err();
        assert_eq!(error.api_code(), Some(ErrorCode::SessionEnded));
        assert!(!error.remedy().is_empty());
    }
}

#[tokio::test]
async fn contract_26_the_death_of_the_node_ends_every_pending_call_at_once() {
    let (mut node, client, session) = start("auto").await;
    // This client does not wait for a new node.
    let client = client.with_retry_for(Duration::ZERO);
    let pending = Pending::start(&client, &session).await;
    node.kill9();
    let Pending { submitted, looked, queued, polled, streamed, .. } = pending;
    let mut errors = Vec::new();
    for reply in [submitted, looked, queued] {
        errors.push(within(AT_ONCE, reply).await.unwrap().unwrap_err());
    }
    errors.push(within(AT_ONCE, polled).await.unwrap().unwrap_err());
    errors.push(within(AT_ONCE, streamed).await.unwrap().unwrap_err());
    for error in errors {
        assert!(matches!(error.code(), "connection_lost" | "unreachable"), "{error:?}");
        assert!(!error.remedy().is_empty());
    }
}
