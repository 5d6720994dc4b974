//! The egress log of a session.

use axum::Json;
use axum::extract::State;
use windlass_protocol::api::{ApiError, EgressLog};

use super::App;
use super::body::InPath;
use super::reply::Answer;
use super::sessions::live;

/// What a live session's code reached for, and what was decided. Decisions of an ended session are
/// in its events.
#[utoipa::path(get, path = "/v1/sessions/{session}/egress", params(("session" = String, Path)),
    responses((status = 200, body = EgressLog), (status = "default", body = ApiError)))]
pub(super) async fn log(
    State(app): State<App>,
    InPath(session): InPath<String>,
) -> Answer<Json<EgressLog>> {
    let handle = live(&app, session)?;
    let log = handle.egress.as_ref().map(|ledger| ledger.log());
    Ok(Json(log.unwrap_or_default()))
}
