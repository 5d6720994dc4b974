//! Line 104: a node that comes back in time has its sessions again; one that comes back too late ends them and says
//! so.

use std::path::Path;
use std::time::Duration;

use serde_json::Value;
use tokio::time::Instant;
use windlass_client::Client;
use windlass_client::protocol::SessionId;
use windlass_client::protocol::api::CreateSession;
use windlass_testkit::fleet::FLEET_UNAVAILABLE;
use windlass_testkit::{
    PATIENCE, TestFleet, TestFleetPlan, eventually, processes, run_ok, turn, within,
};

use crate::http::{HttpAsk, ask};
use crate::{SEEN_WITHIN, create, named, start};

/// A node with short leases has lost its lease after this time, and others have not declared it lost.
const WITHOUT_LEASE: Duration = Duration::from_millis(3_500);

/// A node with short leases is fenced after this time, and others have not declared it lost.
const FENCED: Duration = Duration::from_millis(8_500);

/// Others have declared a node with short leases lost after this time.
const LOST_WITHIN: Duration = Duration::from_secs(25);

/// Waits until this time has passed since `since`. The times of a lease are the subject of these tests.
async fn passed(since: Instant, time: Duration) {
    tokio::time::sleep_until(since + time).await;
}

/// Submits a turn through a node that does not reach the owner. The answer must come soon and name the owner.
async fn is_unreachable(other: &Client, session: &SessionId) {
    let one = turn("1");
    let submit = other.submit_turn(session, &one);
    let refused = within(Duration::from_secs(5), submit).await.unwrap_err();
    assert_eq!(refused.code(), "node_unreachable", "{refused:?}");
    assert!(refused.to_string().contains("n1"), "{refused}");
}

#[tokio::test]
async fn contract_104_a_killed_node_that_comes_back_in_time_has_its_sessions() {
    let Some(mut fleet) = start(TestFleetPlan::short(2)).await else { return };
    let clients = fleet.clients().await.unwrap();
    let session = create(&clients[0], "kept").await;
    run_ok(&clients[1], &session, "x = 42").await;
    let worker = clients[0].session(&session).await.unwrap().keeper_pid.unwrap();

    fleet.kill9(0);
    let killed = Instant::now();
    eventually(Duration::from_secs(8), async || {
        match clients[1].submit_turn(&session, &turn("1")).await {
            Err(error) if error.code() == "node_unreachable" => Ok(()),
            other => Err(other),
        }
    })
    .await;
    passed(killed, WITHOUT_LEASE).await;
    is_unreachable(&clients[1], &session).await;
    fleet.restart(0).await.unwrap();
    for client in [fleet.client(1).await.unwrap(), fleet.client(0).await.unwrap()] {
        let ran = eventually(SEEN_WITHIN, async || client.run_turn(&session, turn("x")).await);
        assert_eq!(ran.await.output.text, "42\n");
    }
    let found = clients[1].session(&session).await.unwrap();
    assert_eq!(found.keeper_pid, Some(worker), "it is the same session");
    assert_eq!(found.ended, None);
    fleet.joined(0).await.unwrap();
}

/// The same when the node is only stopped for less than its fence.
#[tokio::test]
async fn contract_104_a_stopped_node_that_wakes_up_in_time_has_its_sessions() {
    let Some(fleet) = start(TestFleetPlan::short(2)).await else { return };
    let clients = fleet.clients().await.unwrap();
    let session = create(&clients[0], "kept").await;
    run_ok(&clients[1], &session, "x = 42").await;
    fleet.stop(0);
    passed(Instant::now(), WITHOUT_LEASE).await;
    fleet.resume(0);
    let ran = eventually(SEEN_WITHIN, async || clients[1].run_turn(&session, turn("x")).await);
    assert_eq!(ran.await.output.text, "42\n");
    fleet.joined(0).await.unwrap();
    assert_eq!(run_ok(&clients[0], &session, "x").await, "42\n");
}

/// How the session ended, as this node says. An error is what the node said instead.
async fn end_said_by(socket: &Path, session: &SessionId) -> Result<Value, Value> {
    let said = ask(socket, HttpAsk::get(&format!("/v1/sessions/{session}"))).await.json();
    if said["code"] == "session_lost" || said["state"] == "ended" { Ok(said) } else { Err(said) }
}

/// Each node says that the session has ended, and why.
async fn has_ended_everywhere(fleet: &TestFleet, session: &SessionId) {
    for node in fleet.nodes() {
        let socket = node.dirs().socket();
        let said = eventually(SEEN_WITHIN, async || end_said_by(&socket, session).await).await;
        // A node that lost the session says so as an error, or with the end of the session.
        let reason = said["ended"]["reason"].as_str().unwrap_or("");
        let message = said["ended"]["message"].as_str().or(said["message"].as_str());
        let message = message.unwrap_or_default();
        assert_ne!(reason, "closed", "no client closed it: {said}");
        assert!(message.contains("lease") || message.contains("lost"), "no reason: {said}");
    }
    for client in fleet.clients().await.unwrap() {
        let refused = client.submit_turn(session, &turn("1")).await.unwrap_err();
        let codes = ["session_ended", "session_lost"];
        assert!(codes.contains(&refused.code()), "{refused:?}");
        let message = refused.to_string();
        assert!(message.contains(session.as_str()), "{message}");
    }
}

/// Each node says that the session is lost, with the same receipt.
async fn is_lost_everywhere(fleet: &TestFleet, session: &SessionId) {
    ends_alike(fleet, session, &["lost"]).await;
}

/// Each node tells the same end of the session, for one of these reasons.
async fn ends_alike(fleet: &TestFleet, session: &SessionId, reasons: &[&str]) {
    eventually(SEEN_WITHIN, async || {
        let mut ends = Vec::new();
        for node in fleet.nodes() {
            let path = format!("/v1/sessions/{session}");
            let said = ask(&node.dirs().socket(), HttpAsk::get(&path)).await.json();
            ends.push(said["ended"].clone());
        }
        let is_wanted = ends[0]["reason"].as_str().is_some_and(|told| reasons.contains(&told));
        if is_wanted && ends.iter().all(|end| *end == ends[0]) { Ok(()) } else { Err(ends) }
    })
    .await;
}

#[tokio::test]
async fn contract_104_a_node_that_wakes_up_too_late_ends_its_sessions_and_says_so() {
    let Some(fleet) = start(TestFleetPlan::short(2)).await else { return };
    let clients = fleet.clients().await.unwrap();
    let session = create(&clients[0], "late").await;
    run_ok(&clients[1], &session, "x = 42").await;
    let keeper = clients[0].session(&session).await.unwrap().keeper_pid.unwrap();
    fleet.stop(0);
    passed(Instant::now(), FENCED).await;
    assert!(processes::alive(keeper), "the keeper does not depend on the node");
    fleet.resume(0);
    let gone = tokio::task::spawn_blocking(move || processes::wait_gone(keeper, PATIENCE));
    assert!(gone.await.unwrap(), "the processes of the session are left");
    // The node joins again and takes sessions, also of the same name if nobody has it.
    fleet.joined(0).await.unwrap();
    has_ended_everywhere(&fleet, &session).await;
    // Lost, unless the node could still write the end of the session before anybody told it as lost.
    ends_alike(&fleet, &session, &["lost", "fenced"]).await;
    let session = create(&clients[0], "fresh").await;
    assert_eq!(run_ok(&clients[1], &session, "1 + 1").await, "2\n");
}

/// The nodes run all the time, and only the store is away. Their journals say that the sessions ended by the fence.
#[tokio::test]
async fn contract_104_a_node_that_was_cut_off_says_what_the_directory_says() {
    let Some(fleet) = start(TestFleetPlan::short(2)).await else { return };
    let clients = fleet.clients().await.unwrap();
    let session = create(&clients[0], "cut-off").await;
    run_ok(&clients[1], &session, "x = 42").await;
    fleet.stop_servers();
    for client in &clients {
        let client = client.with_retry_for(Duration::ZERO);
        eventually(PATIENCE, async || match client.session(&session).await {
            Err(error) if error.code() == FLEET_UNAVAILABLE => Ok(()),
            said => Err(said.map(|found| found.ended)),
        })
        .await;
    }
    fleet.resume_servers();
    for number in [0, 1] {
        fleet.joined(number).await.unwrap();
    }
    is_lost_everywhere(&fleet, &session).await;
}

#[tokio::test]
async fn contract_104_a_node_that_starts_again_after_it_was_lost_ends_its_sessions() {
    let Some(mut fleet) = start(TestFleetPlan::short(2)).await else { return };
    let clients = fleet.clients().await.unwrap();
    let (lost, given_away) =
        (create(&clients[0], "lost").await, create(&clients[0], "given-away").await);
    for session in [&lost, &given_away] {
        run_ok(&clients[1], session, "x = 42").await;
    }
    let keeper = clients[0].session(&lost).await.unwrap().keeper_pid.unwrap();
    fleet.kill9(0);
    let wanted = named("given-away");
    let found = eventually(LOST_WITHIN, async || clients[1].create_session(&wanted).await);
    assert_eq!(found.await.session.id, given_away);
    run_ok(&clients[1], &given_away, "x = 43").await;
    let other = fleet.node(1).dirs().socket();
    let told = eventually(SEEN_WITHIN, async || end_said_by(&other, &lost).await).await;

    fleet.restart(0).await.unwrap();
    let gone = tokio::task::spawn_blocking(move || processes::wait_gone(keeper, PATIENCE));
    assert!(gone.await.unwrap(), "the processes of a lost session are left");
    has_ended_everywhere(&fleet, &lost).await;
    fleet.joined(0).await.unwrap();
    // The journal of the first node may have later events than the copy. The answer stays as it was.
    is_lost_everywhere(&fleet, &lost).await;
    let again = end_said_by(&other, &lost).await.unwrap();
    assert_eq!((&again["ended"], &again["seq"]), (&told["ended"], &told["seq"]));
    // The successor on the other node is not touched, and the first node passes requests on to it.
    let first = fleet.client(0).await.unwrap();
    for client in [&clients[1], &first] {
        let ran = eventually(SEEN_WITHIN, async || client.run_turn(&given_away, turn("x")).await);
        assert_eq!(ran.await.output.text, "43\n");
    }
}

#[tokio::test]
async fn contract_103_a_creation_that_is_refused_leaves_the_lost_session_readable() {
    let Some(mut fleet) = start(TestFleetPlan::short(2)).await else { return };
    let clients = fleet.clients().await.unwrap();
    let session = create(&clients[0], "left-alone").await;
    run_ok(&clients[1], &session, "x = 42").await;
    fleet.kill9(0);
    let other = clients[1].with_retry_for(Duration::ZERO);
    let lost = eventually(LOST_WITHIN, async || match other.session(&session).await {
        Ok(found) if found.ended.is_some() => Ok(found),
        said => Err(said),
    })
    .await;
    let missing = Some("/nonexistent/directory".to_owned());
    let wanted = CreateSession { workspace: missing, ..named("left-alone") };
    other.create_session(&wanted).await.unwrap_err();
    let found = other.session(&session).await.unwrap();
    assert_eq!((found.ended, found.seq), (lost.ended, lost.seq));
}

/// The node ends its session by its own clock. Until it reaches the store, it does not know who has the name now.
#[tokio::test]
async fn contract_104_a_node_that_starts_without_the_store_does_not_speak_for_a_name_given_away() {
    let Some(mut fleet) = start(TestFleetPlan::short(2)).await else { return };
    let clients = fleet.clients().await.unwrap();
    let session = create(&clients[0], "given-away").await;
    run_ok(&clients[1], &session, "x = 42").await;
    let keeper = clients[0].session(&session).await.unwrap().keeper_pid.unwrap();
    fleet.kill9(0);
    let wanted = named("given-away");
    eventually(LOST_WITHIN, async || clients[1].create_session(&wanted).await).await;

    fleet.stop_servers();
    fleet.restart(0).await.unwrap();
    let first = fleet.client(0).await.unwrap().with_retry_for(Duration::ZERO);
    eventually(SEEN_WITHIN, async || match first.session(&session).await {
        Err(error) if error.code() == FLEET_UNAVAILABLE => Ok(()),
        said => Err(said.map(|found| found.ended)),
    })
    .await;
    fleet.resume_servers();
    fleet.joined(0).await.unwrap();
    let found = eventually(SEEN_WITHIN, async || first.session(&session).await).await;
    assert_ne!(found.keeper_pid, Some(keeper), "the session of the first node");
}
