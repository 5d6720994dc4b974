//! Doors that the node serves besides its own, made by the program that runs the node.

use std::fmt;
use std::os::unix::net::UnixListener;
use std::sync::Arc;

use axum::Router;
use futures_util::future::BoxFuture;
use windlass_protocol::host::Within;

/// Doors of other crates.
#[derive(Debug)]
pub struct Doors {
    /// Further paths of the HTTP door.
    pub router: Router,
    pub agents: AgentDoor,
    /// The socket of the HTTP door, if a service manager listens at it for the node.
    pub socket: Option<UnixListener>,
}

/// Answers the MCP requests that the agents of sessions send. Clones share one door.
#[derive(Clone)]
pub struct AgentDoor(Arc<AnswerRequest>);

type AnswerRequest = dyn Fn(Within, Vec<u8>) -> BoxFuture<'static, Vec<u8>> + Send + Sync;

impl AgentDoor {
    /// `answer` gets the call that carries the request, and a JSON-RPC request that a session's code wrote. It gives a
    /// response. A future that is dropped stops what the request runs.
    pub fn new(
        answer: impl Fn(Within, Vec<u8>) -> BoxFuture<'static, Vec<u8>> + Send + Sync + 'static,
    ) -> Self {
        Self(Arc::new(answer))
    }

    pub(crate) fn answer(&self, call: Within, request: Vec<u8>) -> BoxFuture<'static, Vec<u8>> {
        (self.0)(call, request)
    }
}

impl fmt::Debug for AgentDoor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("AgentDoor")
    }
}
