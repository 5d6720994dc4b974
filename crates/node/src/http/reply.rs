//! Replies and failures as HTTP responses.

use axum::Json;
use axum::http::{Method, StatusCode, Uri};
use axum::response::{IntoResponse, Response};
use windlass_protocol::{ErrorCode, SessionId, TurnId};

use crate::failure::{Failure, FailureSubject};

/// A failure as a response.
#[derive(Debug)]
pub(super) struct Refusal(pub Failure);

impl From<Failure> for Refusal {
    fn from(failure: Failure) -> Self {
        Self(failure)
    }
}

impl IntoResponse for Refusal {
    fn into_response(self) -> Response {
        let status =
            StatusCode::from_u16(self.0.status()).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        let mut response = (status, Json(self.0.to_api())).into_response();
        response.extensions_mut().insert(RefusedWith(self.0.code));
        if self.0.subject == FailureSubject::Node {
            response.extensions_mut().insert(NodeFailure(self.0));
        }
        response
    }
}

/// In the extensions of a response to a request that was refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct RefusedWith(pub ErrorCode);

/// Marks a response whose message is about the node.
#[derive(Debug, Clone)]
struct NodeFailure(Failure);

/// The response as a client of a tenant gets it.
pub(super) fn for_tenant(mut response: Response) -> Response {
    match response.extensions_mut().remove::<NodeFailure>() {
        Some(NodeFailure(failure)) => Refusal(failure.for_tenant()).into_response(),
        None => response,
    }
}

/// The result of a handler.
pub(super) type Answer<T> = Result<T, Refusal>;

pub(super) async fn no_page(uri: Uri) -> Refusal {
    Refusal(Failure::new(ErrorCode::NotFound, format!("there is nothing at {}", uri.path())))
}

/// The router adds the header `Allow`.
pub(super) async fn no_method(method: Method, uri: Uri) -> Refusal {
    let message = format!("{} has no method {method}", uri.path());
    Refusal(Failure::new(ErrorCode::MethodNotAllowed, message))
}

pub(super) fn session_id(text: String) -> Answer<SessionId> {
    SessionId::parse(text).map_err(|error| bad_request(error.to_string()))
}

pub(super) fn turn_id(text: String) -> Answer<TurnId> {
    TurnId::parse(text).map_err(|error| bad_request(error.to_string()))
}

pub(super) fn bad_request(message: impl Into<String>) -> Refusal {
    Refusal(Failure::new(ErrorCode::BadRequest, message))
}

/// The failure of a request to a node that is about to stop. The node has done nothing, and the next node can
/// serve the request.
pub(super) fn about_to_stop() -> Failure {
    Failure::new(ErrorCode::ShuttingDown, "the node is about to stop")
}

pub(super) fn internal(error: impl std::fmt::Display) -> Refusal {
    tracing::error!(%error, "a request failed");
    Refusal(Failure::of_node(ErrorCode::Internal, error.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn only_messages_about_the_node_are_kept_from_tenants() {
        let overloaded = ErrorCode::Overloaded;
        for (failure, is_kept) in [
            (Failure::of_node(overloaded, "of all clients: 7"), false),
            (Failure::new(overloaded, "of this session: 7"), true),
        ] {
            let response = for_tenant(Refusal(failure.clone()).into_response());
            assert_eq!(response.status().as_u16(), failure.status());
            let body = axum::body::to_bytes(response.into_body(), 4096).await.unwrap();
            let told: serde_json::Value = serde_json::from_slice(&body).unwrap();
            assert_eq!(told["code"], serde_json::json!(overloaded));
            assert_eq!(told["message"] == *failure.message, is_kept, "{told}");
        }
    }
}
