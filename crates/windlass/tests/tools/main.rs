//! The door for tool hosts as a host sees it: who may attach, which messages are valid, how it ends, and
//! which tools code finds. The promises for calls are in `contract_tools`.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod door;
mod hostile;
mod places;
mod scopes;
mod socket;
mod survival;

use windlass_client::Client;
use windlass_client::protocol::SessionId;
use windlass_testkit::TestNode;

const PROGRAM: &str = env!("CARGO_BIN_EXE_windlass");

async fn start() -> (TestNode, Client) {
    let node = TestNode::start(PROGRAM).await.unwrap();
    let client = node.client().await.unwrap();
    (node, client)
}

async fn start_session() -> (TestNode, Client, SessionId) {
    let (node, client) = start().await;
    let session = node.session(&client).await.unwrap().id;
    (node, client, session)
}
