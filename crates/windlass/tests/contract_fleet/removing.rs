//! A node that was removed from the fleet: the others refuse it, although its certificate is valid.

use std::time::Duration;

use windlass_client::Client;
use windlass_client::protocol::SessionId;
use windlass_client::protocol::event::EndReason;
use windlass_testkit::{TestFleetPlan, eventually, run_ok};

use crate::{SEEN_WITHIN, command, create, start};

/// Each node looks for removals every 10 s. The authority's node finds one first, and then the others do.
const REFUSED_WITHIN: Duration = Duration::from_secs(30);

/// Others have declared a node with short leases lost after this time.
const LOST_WITHIN: Duration = Duration::from_secs(25);

/// The node answers from the copy that the session is lost. An error is what the node said instead.
async fn tells_as_lost(client: &Client, session: &SessionId) -> Result<(), String> {
    match client.session(session).await {
        Ok(found) if found.ended.as_ref().is_some_and(|end| end.reason == EndReason::Lost) => {
            Ok(())
        }
        said => Err(format!("{:?}", said.map(|found| found.state))),
    }
}

#[tokio::test]
async fn the_lost_sessions_of_a_removed_node_are_read_from_the_copy() {
    let Some(mut fleet) = start(TestFleetPlan::short(2)).await else { return };
    let clients = fleet.clients().await.unwrap();
    let own = create(&clients[0], "own").await;
    let session = create(&clients[1], "of-removed").await;
    run_ok(&clients[0], &session, "6 * 7").await;
    fleet.kill9(1);
    let other = clients[0].with_retry_for(Duration::ZERO);
    eventually(LOST_WITHIN, async || tells_as_lost(&other, &session).await).await;
    fleet.restart(1).await.unwrap();
    fleet.joined(1).await.unwrap();
    let said = command(fleet.node(0), &["fleet", "remove", "n2"]).await;
    assert!(said.status.success(), "{said:?}");
    // The node goes on and keeps its lease, but gets no requests.
    let removed = fleet.client(1).await.unwrap().with_retry_for(Duration::ZERO);
    eventually(REFUSED_WITHIN, async || match removed.session(&own).await {
        Err(error) if error.code() == "node_removed" => Ok(()),
        said => Err(said.map(|found| found.state)),
    })
    .await;
    eventually(SEEN_WITHIN, async || tells_as_lost(&other, &session).await).await;
}

#[tokio::test]
async fn a_removed_node_is_refused_and_gets_no_requests() {
    let Some(fleet) = start(TestFleetPlan::patient(3)).await else { return };
    let clients = fleet.clients().await.unwrap();
    let own = create(&clients[0], "own").await;
    let of_removed = create(&clients[1], "of-removed").await;
    for client in &clients {
        for session in [&own, &of_removed] {
            assert_eq!(run_ok(client, session, "6 * 7").await, "42\n");
        }
    }

    let said = command(fleet.node(0), &["fleet", "remove", "n2"]).await;
    assert!(said.status.success(), "{said:?}");
    for number in [0, 2] {
        let client = clients[number].with_retry_for(Duration::ZERO);
        eventually(REFUSED_WITHIN, async || match client.session(&of_removed).await {
            Err(error) if error.to_string().contains("was removed from the fleet") => Ok(()),
            said => Err(said.map(|found| found.state)),
        })
        .await;
    }
    let removed = clients[1].with_retry_for(Duration::ZERO);
    let refused = removed.session(&own).await.unwrap_err();
    assert_eq!(refused.code(), "node_removed", "{refused:?}");
    // The others cannot end what runs on the machine.
    assert_eq!(run_ok(&clients[1], &of_removed, "6 * 7").await, "42\n");
    assert_eq!(run_ok(&clients[2], &own, "6 * 7").await, "42\n");
}
