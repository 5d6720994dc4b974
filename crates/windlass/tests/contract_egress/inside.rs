//! A session with a network, and the results that its code sees.

use windlass_client::Client;
use windlass_client::protocol::SessionId;
use windlass_client::protocol::api::CreateSession;
use windlass_client::protocol::confinement::Isolation;
use windlass_client::protocol::policy::{HostRule, HostRules, Network, PolicyRequest};
use windlass_testkit::{TestNode, run_ok};

/// Code that every session gets.
const WAYS: &str = include_str!("ways.py");

/// A session whose code has the functions of [`WAYS`].
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

    /// The value of a Python expression.
    pub async fn says(&self, expression: &str) -> String {
        let text = run_ok(&self.client, &self.session, &format!("print({expression})")).await;
        text.trim_end().to_owned()
    }

    /// The result of one of the [`WAYS`].
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
