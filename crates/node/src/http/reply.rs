//! Replies and failures as HTTP responses.

use axum::Json;
use axum::http::{Method, StatusCode, Uri};
use axum::response::{IntoResponse, Response};
use windlass_protocol::{ErrorCode, SessionId, TurnId};

use crate::failure::Failure;

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
        (status, Json(self.0.to_api())).into_response()
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
    Refusal(Failure::new(ErrorCode::Internal, error.to_string()))
}
