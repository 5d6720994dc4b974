//! Requests that this node sends to another node for itself, such as for its load. Each has a time limit, and its
//! answer a maximum size. Never sends a request twice that may have been done.

use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::http::header::CONTENT_TYPE;
use axum::http::{HeaderValue, Method, Request, Response, Uri};
use serde::de::DeserializeOwned;
use windlass_client::{TokenRights, TokenScope};
use windlass_protocol::api::ApiError;
use windlass_protocol::{ErrorCode, NodeName};

use super::FleetNode;
use super::forward::{ClientConnection, OutgoingBody, SendError, prepare};
use crate::failure::Failure;

/// Maximum size of an answer: a page of sessions with their policies.
pub(super) const ANSWER_BYTES_MAX: usize = 32 * 1024 * 1024;

/// A request of this node to another one.
#[derive(Debug)]
pub(crate) struct PeerQuestion {
    pub method: Method,
    /// Path and query.
    pub target: String,
    /// JSON, or empty.
    pub body: Bytes,
    /// What the request needs at the other node.
    pub scope: TokenScope,
    /// The time limit, with the connection.
    pub wait: Duration,
}

impl PeerQuestion {
    pub fn get(target: impl Into<String>, wait: Duration) -> Self {
        let (method, body, scope) = (Method::GET, Bytes::new(), TokenScope::Read);
        Self { method, target: target.into(), body, scope, wait }
    }
}

/// The answer of another node as JSON, or its failure.
pub(crate) async fn ask<T: DeserializeOwned>(
    fleet: &FleetNode,
    node: &NodeName,
    question: PeerQuestion,
) -> Result<T, Failure> {
    let wait = question.wait;
    let answered = tokio::time::timeout(wait, answer(fleet, node, question)).await;
    answered.unwrap_or_else(|_| {
        let message = format!("node {node} did not answer within {} ms", wait.as_millis());
        Err(Failure::new(ErrorCode::NodeUnreachable, message))
    })
}

async fn answer<T: DeserializeOwned>(
    fleet: &FleetNode,
    node: &NodeName,
    question: PeerQuestion,
) -> Result<T, Failure> {
    let PeerQuestion { method, target, body, scope, .. } = question;
    let unusable =
        |what: String| Failure::new(ErrorCode::NodeUnreachable, format!("node {node} {what}"));
    let uri: Uri = target.parse().map_err(|_| unusable(format!("cannot be asked for {target}")))?;
    let mut request = Request::new(());
    *request.method_mut() = method;
    *request.uri_mut() = uri;
    if !body.is_empty() {
        let json = HeaderValue::from_static("application/json");
        request.headers_mut().insert(CONTENT_TYPE, json);
    }
    prepare(request.headers_mut(), &TokenRights::of_node(scope), false);
    let (parts, ()) = request.into_parts();
    let sent = fleet.exchange(node, None, &parts, OutgoingBody::Whole(body)).await;
    let (response, sender) = match sent {
        Ok(answered) => answered,
        Err(SendError::Unreachable(failure)) => return Err(failure),
        Err(SendError::Cut) => return Err(unusable("ended the connection".to_owned())),
    };
    let response = fleet.returned(node.clone(), response, sender, ClientConnection::default());
    let is_good = response.status().is_success();
    let status = response.status().as_u16();
    let bytes = axum::body::to_bytes(response.into_body(), ANSWER_BYTES_MAX)
        .await
        .map_err(|error| unusable(format!("sent an answer that cannot be read: {error}")))?;
    if !is_good {
        let refused = refusal_in(&bytes);
        return Err(refused.unwrap_or_else(|| unusable(format!("answered with status {status}"))));
    }
    serde_json::from_slice(&bytes)
        .map_err(|error| unusable(format!("sent an answer that this release cannot read: {error}")))
}

/// The failure that another node tells.
pub(super) fn refusal_in(body: &[u8]) -> Option<Failure> {
    let ApiError { code, message, .. } = serde_json::from_slice(body).ok()?;
    Some(Failure::new(code, message))
}

/// An answer that was read whole, for the client.
pub(super) fn whole(parts: axum::http::response::Parts, body: Bytes) -> Response<Body> {
    Response::from_parts(parts, Body::from(body))
}
