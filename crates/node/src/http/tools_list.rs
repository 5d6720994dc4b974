//! The tools that the code of a session may call.

use axum::Json;
use axum::extract::State;
use windlass_protocol::api::{ApiError, SessionTools, SessionToolsQuery};
use windlass_protocol::kinds;

use super::App;
use super::body::{Asked, InPath};
use super::reply::Answer;
use super::sessions::live;
use windlass_tools::{Caller, builtin};

/// What a live session's code may call, whoever offers it.
#[utoipa::path(get, path = "/v1/sessions/{session}/tools",
    params(("session" = String, Path), SessionToolsQuery),
    responses((status = 200, body = SessionTools), (status = "default", body = ApiError)))]
pub(super) async fn list(
    State(app): State<App>,
    InPath(session): InPath<String>,
    Asked(query): Asked<SessionToolsQuery>,
) -> Answer<Json<SessionTools>> {
    let info = live(&app, session)?.info();
    let rules = info.policy.map_or_else(Vec::new, |policy| policy.tools);
    let words = kinds::terms_of(&info.kind);
    let caller = Caller { session: info.id, parent: info.parent, owner: info.owner, rules, words };
    Ok(Json(builtin::show(&app.tools, &caller, query.words.as_deref())))
}
