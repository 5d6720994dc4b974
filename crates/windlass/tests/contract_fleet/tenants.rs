//! Line 108 in a fleet: a tenant's client reaches the tenant's sessions through each node, and no others.

use windlass_client::protocol::api::{CreateSession, Session, SessionsQuery};
use windlass_client::protocol::{ErrorCode, TenantName, TokenName};
use windlass_client::{Client, ClientError, NamedTokens, NewToken, RemoteNode, TokenScope};
use windlass_testkit::{TestFleet, TestFleetPlan, TestNode, run_ok, skip, within};

use crate::{PROGRAM, START_WAIT, id, named};

/// A client of a node's TCP door, with a token of this tenant.
async fn client_of(node: &TestNode, tenant: &str) -> Client {
    let new = NewToken {
        name: TokenName::parse(tenant).unwrap(),
        scope: TokenScope::Run,
        tenant: Some(TenantName::parse(tenant).unwrap()),
        created_at_ms: 0,
        expires_at_ms: None,
    };
    let token = NamedTokens::create(&node.dirs().named_tokens(), new).unwrap();
    let status = node.client().await.unwrap().node_status().await.unwrap();
    let url = format!("http://{}", status.listen.unwrap());
    let remote = RemoteNode::new(&url, &token).unwrap();
    Client::connect_remote(remote, node.dirs().clone()).await.unwrap()
}

fn code(answer: Result<Session, ClientError>) -> Option<ErrorCode> {
    answer.unwrap_err().api_code()
}

#[tokio::test]
async fn contract_108_each_node_of_a_fleet_shows_a_tenant_its_own_sessions() {
    let listening = || TestNode::builder(PROGRAM).arg("--listen").arg("127.0.0.1:0");
    let fleet = TestFleet::start_with(TestFleetPlan::patient(2), listening);
    let Some(fleet) = within(START_WAIT, fleet).await.unwrap() else {
        return skip("there is no nats-server: put it on the PATH, or set WINDLASS_TEST_NATS");
    };
    let owner = fleet.client(0).await.unwrap();
    let acme = client_of(fleet.node(1), "acme").await;
    let other = client_of(fleet.node(1), "other").await;
    // The tests' interpreter belongs to the first node, so the sessions are there.
    for tenant in ["acme", "other"] {
        let create = CreateSession { tenant: TenantName::parse(tenant).ok(), ..named("dev") };
        let made = owner.create_session(&create).await.unwrap().session;
        assert_eq!(made.id.to_string(), format!("dev@{tenant}"));
    }
    owner.create_session(&named("dev")).await.unwrap();
    // Both forms of the name lead to the other node.
    assert_eq!(run_ok(&acme, &id("dev"), "x = 'acme'; print(x)").await, "acme\n");
    assert_eq!(run_ok(&acme, &id("dev@acme"), "print(x)").await, "acme\n");
    assert_eq!(run_ok(&other, &id("dev"), "print('x' in dir())").await, "False\n");
    for victim in ["dev@acme", "nil@acme"] {
        let found = code(other.session(&id(victim)).await);
        assert_eq!(found, Some(ErrorCode::SessionNotFound), "{victim}");
    }
    let query = SessionsQuery { fleet: true, ..SessionsQuery::default() };
    for (client, own) in [(&acme, "dev@acme"), (&other, "dev@other")] {
        let list = client.session_page(&query).await.unwrap().sessions;
        let ids: Vec<&str> = list.iter().map(|session| session.id.as_str()).collect();
        assert_eq!(ids, [own]);
        // The row of a session of another node has the name of that node.
        let rows = client.overview(&query).await.unwrap().sessions;
        let found: Vec<_> = rows.iter().map(|row| (row.id.as_str(), &row.node)).collect();
        assert_eq!(found, [(own, &list[0].node)]);
    }
    assert_eq!(owner.session_page(&query).await.unwrap().sessions.len(), 3);
}
