//! Requests about sessions: create, list, get, reset, fork, close.

use axum::Json;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use serde::Deserialize;
use windlass_protocol::api::{
    ApiError, CloseQuery, CreateSession, Created, ForkSession, ForkedSession, Session, SessionList,
    SessionState,
};
use windlass_protocol::limits::DEADLINE_MS_MAX;
use windlass_protocol::link::ForkDone;
use windlass_protocol::{ErrorCode, SessionId};

use super::App;
use super::body::{Asked, InPath, JsonBody};
use super::reply::{Answer, Refusal, about_to_stop, bad_request, internal, session_id};
use super::scope;
use super::turns::Wish;
use crate::directory::SessionOwner;
use crate::failure::Failure;
use crate::session::fork::{NewTwin, TwinRequest};
use crate::session::start::MadeSession;
use crate::session::{self, Request, SessionHandle, start};

/// Maximum number of sessions of the journal in a list.
const LIST_MAX: usize = 1000;

/// Default time that the worker of a closed session has to finish.
const CLOSE_GRACE_MS: u64 = 2000;

/// Create a session, with its first turn if one is given.
#[utoipa::path(post, path = "/v1/sessions", request_body = CreateSession,
    responses((status = 201, body = Created), (status = "default", body = ApiError)))]
pub(super) async fn create(
    State(app): State<App>,
    headers: HeaderMap,
    JsonBody(mut wanted): JsonBody<CreateSession>,
) -> Answer<(StatusCode, Json<Created>)> {
    if app.stop.borrow().is_some() {
        return Err(about_to_stop().into());
    }
    if wanted.deadline_ms.is_some_and(|deadline| deadline > DEADLINE_MS_MAX) {
        return Err(bad_request(format!("deadline_ms is at most {DEADLINE_MS_MAX}")));
    }
    if let Some(parent) = scope::parent(&headers)? {
        wanted.parent = Some(parent);
    }
    let id = wanted.id.take().unwrap_or_else(start::new_id);
    let check = |turn| Wish::check(turn, &headers, &app.serving.bounds);
    let first = wanted.turn.take().map(check).transpose()?;
    let (first, pending) = match first {
        None => (None, None),
        Some(wish) => {
            let (request, pending) = wish.into_request();
            (Some(request), Some(pending))
        }
    };
    let MadeSession { handle, left_out, .. } = start::create(&app, id, wanted, first).await?;
    let turn = match pending {
        None => None,
        Some(pending) => Some(pending.answer(&app, &handle).await?),
    };
    let created = Created {
        session: handle.info(),
        turn,
        left_out: left_out.directories,
        left_out_more: left_out.directories_more,
    };
    Ok((StatusCode::CREATED, Json(created)))
}

#[derive(Debug, Default, Deserialize, utoipa::IntoParams)]
pub(super) struct ListQuery {
    /// Ended sessions too, newest first.
    #[serde(default)]
    all: bool,
}

/// The live sessions, or all that the journal knows.
#[utoipa::path(get, path = "/v1/sessions", params(ListQuery),
    responses((status = 200, body = SessionList)))]
pub(super) async fn list(
    State(app): State<App>,
    headers: HeaderMap,
    Asked(query): Asked<ListQuery>,
) -> Answer<Json<SessionList>> {
    let mut sessions: Vec<Session> =
        app.sessions.handles().iter().map(SessionHandle::info).collect();
    if query.all {
        let live: std::collections::HashSet<SessionId> =
            sessions.iter().map(|session| session.id.clone()).collect();
        let log = app.serving.log.clone();
        let kept = tokio::task::spawn_blocking(move || log.sessions(LIST_MAX))
            .await
            .map_err(internal)?
            .map_err(internal)?;
        let ended = kept.iter().filter(|facts| {
            !live.contains(&facts.created.id) && !app.sessions.knows(&facts.created.id)
        });
        // A session whose record cannot be read is left out, and `start::info` logs it.
        sessions.extend(ended.filter_map(|facts| start::info(facts, SessionState::Ended).ok()));
    }
    if let Some(parent) = scope::parent(&headers)? {
        sessions.retain(|session| session.parent.as_ref() == Some(&parent));
    }
    sessions.sort_by(|a, b| b.created_at_ms.cmp(&a.created_at_ms).then(a.id.cmp(&b.id)));
    Ok(Json(SessionList { sessions }))
}

/// A session as it is.
#[utoipa::path(get, path = "/v1/sessions/{session}", params(("session" = String, Path)),
    responses((status = 200, body = Session), (status = "default", body = ApiError)))]
pub(super) async fn look(
    State(app): State<App>,
    InPath(session): InPath<String>,
) -> Answer<Json<Session>> {
    let id = session_id(session)?;
    if let Some(handle) = local(&app, &id)? {
        return Ok(Json(handle.info()));
    }
    ended(&app, &id).await.map(Json)
}

/// End a session and everything it started.
#[utoipa::path(delete, path = "/v1/sessions/{session}",
    params(("session" = String, Path), CloseQuery),
    responses((status = 200, body = Session), (status = "default", body = ApiError)))]
pub(super) async fn close(
    State(app): State<App>,
    InPath(session): InPath<String>,
    Asked(query): Asked<CloseQuery>,
) -> Answer<Json<Session>> {
    let id = session_id(session)?;
    let Some(handle) = local(&app, &id)? else { return ended(&app, &id).await.map(Json) };
    let grace_ms = query.grace_ms.unwrap_or(CLOSE_GRACE_MS);
    match handle.ask(|reply| Request::Close { grace_ms, reply }).await {
        Ok(()) => {}
        // The session was released before it was closed. The next node can close it.
        Err(_) if app.let_go() => {
            return Err(about_to_stop().into());
        }
        // The session has ended meanwhile, which is what the client wants.
        Err(failure) if failure.code == ErrorCode::SessionEnded => {}
        Err(failure) => return Err(failure.into()),
    }
    Ok(Json(handle.info()))
}

/// Give a session a fresh worker.
#[utoipa::path(post, path = "/v1/sessions/{session}/reset", params(("session" = String, Path)),
    responses((status = 200, body = Session), (status = "default", body = ApiError)))]
pub(super) async fn reset(
    State(app): State<App>,
    InPath(session): InPath<String>,
) -> Answer<Json<Session>> {
    let handle = live(&app, session)?;
    handle.ask(|reply| Request::Reset { reply }).await?;
    Ok(Json(handle.info()))
}

/// Make a twin of an idle session: a copy of its worker with all its variables, and of its workspace.
#[utoipa::path(post, path = "/v1/sessions/{session}/fork", params(("session" = String, Path)),
    request_body = ForkSession,
    responses((status = 201, body = ForkedSession), (status = "default", body = ApiError)))]
pub(super) async fn fork(
    State(app): State<App>,
    InPath(session): InPath<String>,
    JsonBody(wanted): JsonBody<ForkSession>,
) -> Answer<(StatusCode, Json<ForkedSession>)> {
    if app.stop.borrow().is_some() {
        return Err(about_to_stop().into());
    }
    let original = live(&app, session)?;
    let id = wanted.id.unwrap_or_else(start::new_id);
    let wish = TwinRequest { id, owner: wanted.owner, copy: wanted.copy };
    let NewTwin { handle, done, left_out, left_out_more } =
        session::fork::fork(&app, original, wish).await?;
    let ForkDone { not_carried, can_reach } = done;
    let session = handle.info();
    let forked = ForkedSession { session, not_carried, can_reach, left_out, left_out_more };
    Ok((StatusCode::CREATED, Json(forked)))
}

/// The live session with this id.
pub(super) fn live(app: &App, session: String) -> Answer<SessionHandle> {
    let id = session_id(session)?;
    local(app, &id)?.ok_or_else(|| not_live(app, &id))
}

/// The session, if it lives in this node. A session of another node is refused, with that node's name.
pub(super) fn local(app: &App, id: &SessionId) -> Answer<Option<SessionHandle>> {
    match app.sessions.resolve(id) {
        Some(SessionOwner::Local(handle)) => Ok(Some(handle)),
        Some(SessionOwner::Remote(node)) => {
            let message = format!("session {id} lives in node {node}");
            Err(Failure::new(ErrorCode::NotHere, message).into())
        }
        None => Ok(None),
    }
}

/// Why there is no live session with this id.
pub(super) fn not_live(app: &App, id: &SessionId) -> Refusal {
    let failure = match app.serving.log.session(id) {
        Ok(Some(facts)) if !app.sessions.knows(id) => {
            let why = facts.ended.and_then(|ended| ended.message);
            let why = why.map(|why| format!(": {why}")).unwrap_or_default();
            Failure::new(ErrorCode::SessionEnded, format!("session {id} has ended{why}"))
        }
        Ok(_) => Failure::new(ErrorCode::SessionNotFound, format!("there is no session {id}")),
        Err(error) => return internal(error),
    };
    failure.into()
}

/// An ended session, from the journal.
pub(super) async fn ended(app: &App, id: &SessionId) -> Answer<Session> {
    match app.serving.log.session(id).map_err(internal)? {
        Some(facts) if !app.sessions.knows(id) => Ok(start::info(&facts, SessionState::Ended)?),
        _ => Err(not_live(app, id)),
    }
}
