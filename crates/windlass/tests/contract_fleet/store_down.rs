//! Lines 105 and 106: nodes go on while the store is down, and the store loses no record that it acknowledged.

use std::time::Duration;

use tokio::time::Instant;
use windlass_client::Client;
use windlass_client::protocol::SessionId;
use windlass_client::protocol::api::{CloseQuery, SessionState};
use windlass_client::protocol::event::EndReason;
use windlass_testkit::fleet::{FLEET_UNAVAILABLE, create_patiently};
use windlass_testkit::nats::SERVERS;
use windlass_testkit::{TestFleet, TestFleetPlan, eventually, run_ok, turn, within};

use crate::{create, id, named, start};

/// How soon a request that needs the store fails while the store is down. A node gives the store 2 s to answer. The rest
/// is a margin for a busy machine.
const FAILS_WITHIN: Duration = Duration::from_secs(4);

/// How long a turn may take while the store is down. The turn does not need the store.
const TURN_WITHIN: Duration = Duration::from_secs(5);

/// How long servers may take to elect a leader and to serve again.
const BACK_WITHIN: Duration = Duration::from_secs(30);

/// Number of sessions that are created while one server is down. Every second one is closed.
const SESSIONS: usize = 4;

const AT_ONCE: CloseQuery = CloseQuery { grace_ms: Some(0) };

/// Creating a session fails soon, with an error that a client may retry.
async fn creates_nothing(client: &Client, name: &str) {
    let wanted = named(name);
    let began = Instant::now();
    let refused = within(FAILS_WITHIN, client.create_session(&wanted)).await.unwrap_err();
    assert_eq!(refused.code(), FLEET_UNAVAILABLE, "{refused:?}");
    let windlass_client::ClientError::Api(said) = &refused else { panic!("{refused:?}") };
    assert!(said.retryable && !said.remedy.is_empty(), "{said:?}");
    assert!(began.elapsed() < FAILS_WITHIN);
}

/// Turns of a session of the first node, through that node and through another one.
async fn counts_on(clients: &[Client], session: &SessionId, count: &mut u32) {
    for client in clients {
        *count += 1;
        let said = within(TURN_WITHIN, run_ok(client, session, "n += 1; n")).await;
        assert_eq!(said, format!("{count}\n"));
    }
}

async fn goes_on_without_the_store(
    mut fleet: TestFleet,
    take_down: impl Fn(&mut TestFleet),
    bring_back: impl Fn(&mut TestFleet),
) {
    let clients = fleet.clients().await.unwrap();
    let session = create(&clients[0], "counts").await;
    let unseen = create(&clients[0], "unseen").await;
    for session in [&session, &unseen] {
        run_ok(&clients[0], session, "n = 0").await;
    }
    let mut count = 0;
    // The second node knows the owner from now on. The third one does not.
    counts_on(&clients[..2], &session, &mut count).await;

    take_down(&mut fleet);
    counts_on(&clients[..2], &session, &mut count).await;
    creates_nothing(&clients[0], "refused").await;
    creates_nothing(&clients[1], "refused").await;
    // A node that must ask the store says that it cannot. It does not say that there is no such session.
    let refused = within(TURN_WITHIN, clients[2].session(&unseen)).await.unwrap_err();
    assert_eq!(refused.code(), FLEET_UNAVAILABLE, "{refused:?}");
    counts_on(&clients[..2], &session, &mut count).await;

    bring_back(&mut fleet);
    for (number, client) in clients.iter().enumerate() {
        let name = format!("after-{number}");
        let made = create_patiently(client, &named(&name), BACK_WITHIN).await.unwrap();
        for door in &clients {
            // The door's node may still be on its way back to the store.
            let ran = async || door.run_turn(&made.id, turn("6 * 7")).await;
            assert_eq!(eventually(BACK_WITHIN, ran).await.output.text, "42\n", "{name}");
        }
    }
    // Nothing was lost: every node reaches the sessions from before, with their state.
    counts_on(&clients, &session, &mut count).await;
    for client in &clients {
        let looked = client.session(&unseen).await.unwrap();
        assert_eq!((looked.state, looked.restarts), (SessionState::Idle, 0));
    }
}

#[tokio::test]
async fn contract_105_sessions_go_on_while_all_servers_are_dead() {
    let Some(fleet) = start(TestFleetPlan::patient(3)).await else { return };
    let take_down = |fleet: &mut TestFleet| fleet.kill_servers().unwrap();
    goes_on_without_the_store(fleet, take_down, |fleet| fleet.run_servers().unwrap()).await;
}

/// A stopped server keeps its connections, so nobody is told that it does not answer.
#[tokio::test]
async fn contract_105_sessions_go_on_while_all_servers_are_stopped() {
    let Some(fleet) = start(TestFleetPlan::patient(3)).await else { return };
    goes_on_without_the_store(fleet, |fleet| fleet.stop_servers(), |fleet| fleet.resume_servers())
        .await;
}

/// The end of the session is in the node's journal. Only a request that reads is answered: the name may have a new session.
#[tokio::test]
async fn contract_105_a_node_that_starts_without_the_store_tells_of_sessions_that_ended_before() {
    let Some(mut fleet) = start(TestFleetPlan::patient(1)).await else { return };
    let client = fleet.client(0).await.unwrap();
    let session = create(&client, "closed").await;
    run_ok(&client, &session, "6 * 7").await;
    client.close_session(&session, AT_ONCE).await.unwrap();
    fleet.stop_servers();
    fleet.restart(0).await.unwrap();
    let client = fleet.client(0).await.unwrap().with_retry_for(Duration::ZERO);
    let found = within(TURN_WITHIN, client.session(&session)).await.unwrap();
    assert_eq!(found.state, SessionState::Ended);
    assert_eq!(found.ended.map(|ended| ended.reason), Some(EndReason::Closed));
    let one = turn("1");
    let refused = within(TURN_WITHIN, client.submit_turn(&session, &one)).await.unwrap_err();
    assert_eq!(refused.code(), FLEET_UNAVAILABLE, "{refused:?}");
    fleet.resume_servers();
}

/// Creates sessions at both nodes in turn. Returns the names that a node acknowledged.
async fn acknowledged(clients: &[Client], round: usize) -> Vec<SessionId> {
    let mut names = Vec::new();
    for number in 0..SESSIONS {
        let client = &clients[number % clients.len()];
        // A creation without an answer may have been done, so every attempt has a name of its own.
        let mut attempt = 0;
        let made = eventually(BACK_WITHIN, async || {
            attempt += 1;
            let name = format!("r{round}-{number}-{attempt}");
            client.create_session(&named(&name)).await.map_err(|error| {
                assert_eq!(error.code(), FLEET_UNAVAILABLE, "{error:?}");
                error
            })
        });
        names.push(made.await.session.id);
    }
    names
}

#[tokio::test]
async fn contract_106_no_acknowledged_session_is_lost_when_servers_are_killed() {
    let Some(mut fleet) = start(TestFleetPlan::patient(2)).await else { return };
    let clients = fleet.clients().await.unwrap();
    let (mut live, mut closed) = (vec![create(&clients[0], "before").await], Vec::new());
    // One of the three is the leader of the directory's stream, and the others follow.
    for round in 0..SERVERS {
        fleet.servers().kill(round).unwrap();
        for (number, name) in acknowledged(&clients, round).await.into_iter().enumerate() {
            if number % 2 == 0 {
                live.push(name);
            } else {
                // The end of a session is its own node's, so it needs no answer of the store.
                let closing = clients[number % clients.len()].close_session(&name, AT_ONCE);
                within(BACK_WITHIN, closing).await.unwrap();
                closed.push(name);
            }
        }
        fleet.servers().run(round).unwrap();
    }
    for client in &clients {
        for name in &live {
            let found = eventually(BACK_WITHIN, async || client.session(name).await).await;
            assert_eq!((&found.id, found.ended), (name, None));
        }
        for name in &closed {
            let found = eventually(BACK_WITHIN, async || client.session(name).await).await;
            assert_eq!((&found.id, found.state), (name, SessionState::Ended));
        }
    }
    // Names stay taken, and sessions work through each node.
    for client in &clients {
        assert_eq!(run_ok(client, &id("before"), "6 * 7").await, "42\n");
        let refused = client.create_session(&named("before")).await.unwrap_err();
        assert_eq!(refused.code(), "session_exists", "{refused:?}");
    }
    for name in &live {
        assert_eq!(run_ok(&clients[1], name, "6 * 7").await, "42\n");
    }
}

/// Two of three servers are dead, so that the third one cannot acknowledge anything.
#[tokio::test]
async fn contract_106_nothing_is_acknowledged_without_a_quorum() {
    let Some(mut fleet) = start(TestFleetPlan::patient(2)).await else { return };
    let clients = fleet.clients().await.unwrap();
    let before = create(&clients[0], "before").await;
    for number in [0, 1] {
        fleet.servers().kill(number).unwrap();
    }
    creates_nothing(&clients[0], "refused").await;
    creates_nothing(&clients[1], "refused").await;
    for number in [0, 1] {
        fleet.servers().run(number).unwrap();
    }
    let after = create_patiently(&clients[1], &named("after"), BACK_WITHIN).await.unwrap().id;
    for client in &clients {
        for name in [&before, &after] {
            // The other node may have lost its lease, and takes it again.
            let ran = eventually(BACK_WITHIN, async || client.run_turn(name, turn("6 * 7")).await);
            assert_eq!(ran.await.output.text, "42\n");
        }
    }
}
