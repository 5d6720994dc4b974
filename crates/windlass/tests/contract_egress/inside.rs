//! A session with a network, and what its code is told.

use windlass_client::Client;
use windlass_client::protocol::SessionId;
use windlass_client::protocol::api::CreateSession;
use windlass_client::protocol::confinement::Isolation;
use windlass_client::protocol::policy::{HostRule, HostRules, Network, PolicyRequest};
use windlass_testkit::{TestNode, run_ok};

/// What the code in every session has.
const WAYS: &str = include_str!("ways.py");

/// A session whose code has the [`WAYS`].
pub struct Inside {
    pub client: Client,
    pub session: SessionId,
}

impl Inside {
    pub async fn new(node: &TestNode, network: Network) -> Self {
        Self::with(node, network, TestNode::create()).await
    }

    pub async fn with(node: &TestNode, network: Network, mut create: CreateSession) -> Self {
        let client = node.client().await.unwrap();
        create.policy = Some(PolicyRequest {
            isolation: Some(Isolation::Full),
            network: Some(network),
            ..create.policy.unwrap_or_default()
        });
        let session = client.create_session(&create).await.unwrap().session.id;
        run_ok(&client, &session, WAYS).await;
        Self { client, session }
    }

    /// What an expression of Python is.
    pub async fn says(&self, expression: &str) -> String {
        let text = run_ok(&self.client, &self.session, &format!("print({expression})")).await;
        text.trim_end().to_owned()
    }

    /// What one of the [`WAYS`] says.
    pub async fn ask(&self, way: &str, host: &str, port: u16) -> String {
        self.says(&format!("{way}({host:?}, {port})")).await
    }

    /// Refusals so far: host, port and reason.
    pub async fn refusals(&self) -> Vec<(String, u16, String)> {
        let log = self.client.egress(&self.session).await.unwrap();
        let refused = log.decisions.into_iter().filter(|decision| !decision.allowed);
        refused.map(|decision| (decision.host, decision.port, decision.reason)).collect()
    }
}

pub fn rules(texts: &[String]) -> Network {
    Network::Hosts(HostRules(texts.iter().map(|rule| HostRule::parse(rule).unwrap()).collect()))
}
