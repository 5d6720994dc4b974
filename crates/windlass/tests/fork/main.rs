//! Forking a live session: what a twin has, that the two sessions are separate, and that each ends by itself.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod ends;
mod twins;

use windlass_client::protocol::api::{
    CloseQuery, CreateSession, ForkSession, ForkedSession, Session,
};
use windlass_client::protocol::confinement::Isolation;
use windlass_client::protocol::event::StartedBy;
use windlass_client::protocol::{ErrorCode, SessionId};
use windlass_client::{Client, ClientError};
use windlass_testkit::{PATIENCE, TestNode, run_ok, within};

const PROGRAM: &str = env!("CARGO_BIN_EXE_windlass");

/// The result of a call, or the name of the exception that it raised.
const ATTEMPT: &str = "
import os, signal
def attempt(act):
    try:
        return act()
    except BaseException as error:
        return type(error).__name__
";

/// A node with one session in it.
struct Stage {
    node: TestNode,
    client: Client,
    original: SessionId,
}

impl Stage {
    async fn new() -> Self {
        Self::with(TestNode::create()).await
    }

    async fn with(create: CreateSession) -> Self {
        let node = TestNode::start(PROGRAM).await.unwrap();
        Self::on(node, create).await
    }

    async fn on(node: TestNode, create: CreateSession) -> Self {
        let client = node.client().await.unwrap();
        let original = client.create_session(&create).await.unwrap().session.id;
        run_ok(&client, &original, ATTEMPT).await;
        let started_by = client.session(&original).await.unwrap().started_by.unwrap();
        let asked_for = std::env::var("WINDLASS_TEST_START").unwrap_or_default();
        // The worker was started in the way that `WINDLASS_TEST_START` selects.
        assert_eq!(started_by == StartedBy::Exec, !["zygote", "pool"].contains(&&*asked_for));
        Self { node, client, original }
    }

    async fn fork(&self, session: &SessionId) -> ForkedSession {
        let wanted = ForkSession::default();
        let forked = self.client.fork_session(session, &wanted);
        within(PATIENCE, forked).await.unwrap()
    }

    async fn twin(&self) -> SessionId {
        self.fork(&self.original).await.session.id
    }

    async fn run(&self, session: &SessionId, code: &str) -> String {
        run_ok(&self.client, session, code).await
    }

    async fn close(&self, session: &SessionId) {
        let close = CloseQuery { grace_ms: Some(0) };
        within(PATIENCE, self.client.close_session(session, close)).await.unwrap();
    }

    async fn look(&self, session: &SessionId) -> Session {
        self.client.session(session).await.unwrap()
    }

    /// All running processes of the node's sessions.
    async fn processes(&self) -> Vec<u32> {
        self.node.session_processes().await.unwrap()
    }

    /// Whether the machine has cgroups for sessions.
    async fn has_cgroups(&self) -> bool {
        let prefix = self.node.cgroup_prefix();
        let groups = |pid| std::fs::read_to_string(format!("/proc/{pid}/cgroup"));
        let is_in_one = |pid| groups(pid).is_ok_and(|groups| groups.contains(&prefix));
        self.processes().await.into_iter().any(is_in_one)
    }

    /// Waits until only the node and the processes that it keeps ready are running.
    async fn alone(&self) {
        let alone = async {
            while !self.processes().await.is_empty() {
                self.client.node_status().await.unwrap();
            }
        };
        within(PATIENCE, alone).await;
    }
}

fn confined(isolation: Isolation) -> CreateSession {
    let mut create = TestNode::create();
    create.policy.get_or_insert_default().isolation = Some(isolation);
    create
}

fn code_of(error: ClientError) -> ErrorCode {
    match error {
        ClientError::Api(error) => error.code,
        other => panic!("{other}"),
    }
}
