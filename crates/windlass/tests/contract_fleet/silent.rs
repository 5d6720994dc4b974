//! Line 104: an owner that is silent holds no request for long. Its machine takes connections and answers nothing, as a
//! machine does whose packets are dropped.

use std::time::Duration;

use tokio::time::Instant;
use windlass_client::protocol::Seq;
use windlass_client::protocol::api::SubmitTurn;
use windlass_testkit::{
    Gate, PATIENCE, TestFleetPlan, eventually, named_turn, run_ok, turn, within,
};

use crate::{SEEN_WITHIN, create, start};

/// A request that only looks is refused within this time, also while the owner has its lease.
const LOOK_WITHIN: Duration = Duration::from_secs(6);

/// The same while the owner has no lease: a try takes 0.5 s.
const TRY_WITHIN: Duration = Duration::from_secs(3);

/// A node with patient leases has lost its lease after this time. It fences itself after 42.5 s.
const WITHOUT_LEASE: Duration = Duration::from_millis(12_500);

#[tokio::test]
async fn contract_104_a_silent_owner_holds_no_request_of_another_node() {
    let Some(fleet) = start(TestFleetPlan::patient(2)).await else { return };
    let clients = fleet.clients().await.unwrap();
    let session = create(&clients[0], "silent").await;
    // The second node keeps a connection to the first one from now on.
    run_ok(&clients[1], &session, "x = 42").await;
    let other = clients[1].with_retry_for(Duration::ZERO);
    let gate = Gate::new("silent").unwrap();
    let submit = SubmitTurn { wait_ms: 60_000, ..named_turn("waits", gate.python()) };
    let waiting = {
        let (other, session) = (other.clone(), session.clone());
        tokio::spawn(async move { other.submit_turn(&session, &submit).await })
    };
    let at_gate = within(PATIENCE, gate.reached()).await.unwrap();
    let mut events = other.events(&session, Seq(0));
    let following = tokio::spawn(async move { while let Ok(Some(_)) = events.next().await {} });

    fleet.stop(0);
    let stopped = Instant::now();
    let refused = within(LOOK_WITHIN, other.session(&session)).await.unwrap_err();
    assert_eq!(refused.code(), "node_unreachable", "{refused:?}");
    assert!(refused.to_string().contains("n1"), "{refused}");
    let waited = within(PATIENCE, waiting).await.unwrap();
    assert!(waited.is_err(), "{waited:?}");
    within(PATIENCE, following).await.unwrap();
    tokio::time::sleep_until(stopped + WITHOUT_LEASE).await;
    let one = turn("1");
    for _ in 0..3 {
        let submit = other.submit_turn(&session, &one);
        let refused = within(TRY_WITHIN, submit).await.unwrap_err();
        assert_eq!(refused.code(), "node_unreachable", "{refused:?}");
    }

    fleet.resume(0);
    at_gate.open().await.unwrap();
    let ran = eventually(SEEN_WITHIN, async || clients[1].run_turn(&session, turn("x")).await);
    assert_eq!(ran.await.output.text, "42\n");
}
