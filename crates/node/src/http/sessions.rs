//! Requests about sessions: create, get, reset, fork, close.

use axum::Json;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use windlass_protocol::api::{
    ApiError, CLIENT_HEADER, CloseQuery, CreateSession, Created, ForkSession, ForkedSession,
    Session, SessionState,
};
use windlass_protocol::limits::DEADLINE_MS_MAX;
use windlass_protocol::link::ForkDone;
use windlass_protocol::{ClientName, ErrorCode, SessionId};

use super::App;
use super::body::{Asked, InPath, JsonBody};
use super::reply::{Answer, Refusal, about_to_stop, bad_request, internal, session_id};
use super::scope;
use super::tenant::RequestTenant;
use super::transfers::trace_parent;
use super::turns::Wish;
use crate::audit::AuditNote;
use crate::failure::Failure;
use crate::fleet::load;
use crate::session::fork::{NewTwin, TwinRequest};
use crate::session::start::{MadeSession, SessionOrigin};
use crate::session::{self, Request, SessionHandle, ids, start};
use crate::tenancy;

/// Default time that the worker of a closed session has to finish.
const CLOSE_GRACE_MS: u64 = 2000;

/// Create a session, with its first turn if one is given.
#[utoipa::path(post, path = "/v1/sessions", request_body = CreateSession,
    responses((status = 201, body = Created), (status = "default", body = ApiError)))]
pub(super) async fn create(
    State(app): State<App>,
    tenant: RequestTenant,
    note: AuditNote,
    headers: HeaderMap,
    JsonBody(mut wanted): JsonBody<CreateSession>,
) -> Answer<(StatusCode, Json<Created>)> {
    if app.stop.borrow().is_some() {
        return Err(about_to_stop().into());
    }
    if wanted.deadline_ms.is_some_and(|deadline| deadline > DEADLINE_MS_MAX) {
        return Err(bad_request(format!("deadline_ms is at most {DEADLINE_MS_MAX}")));
    }
    if wanted.placement.is_some() && app.fleet().is_none() {
        let message = "this node has no fleet, so a request cannot choose another node: leave `placement` out";
        return Err(bad_request(message));
    }
    let client = client_of(&headers)?;
    if let Some(parent) = scope::parent(&headers)? {
        wanted.parent = Some(parent);
    }
    tenancy::assign(tenant.0.as_ref(), &app.config.tenants, &mut wanted)?;
    if tenant.0.is_some() {
        tenancy::limit(&mut wanted, app.config.defaults.output_quota_bytes);
    }
    let id = wanted.id.take().unwrap_or_else(|| ids::new_id_of(wanted.tenant.as_ref()));
    note_order(&note, &id, &wanted);
    let turn_note = first_turn_note(&note, &id, &wanted);
    let trace = trace_parent(&app, &headers);
    let check = |turn| {
        let bounds = app.serving.bounds.of_session(&id);
        let wish = Wish::check(turn, &headers, &bounds, turn_note.clone());
        wish.map(|wish| wish.under(trace))
    };
    let first = wanted.turn.take().map(check).transpose();
    let first = first.inspect_err(|_| turn_note.discard())?;
    let (first, pending) = match first {
        None => (None, None),
        Some(wish) => {
            let (request, pending) = wish.into_request();
            (Some(request), Some(pending))
        }
    };
    let made = start::create(&app, id, wanted, SessionOrigin { client, trace }, first).await;
    let MadeSession { handle, left_out, .. } = made.inspect_err(|_| turn_note.discard())?;
    let info = handle.info();
    note.add("kind", info.kind);
    note.add("workspace", info.workspace);
    // Now, because the client may wait for the end of the first turn.
    note.send();
    let turn = match pending {
        None => None,
        Some(pending) => {
            let answer = pending.answer(&app, &handle).await;
            Some(answer.inspect_err(|refusal| turn_note.refuse(refusal.0.code.as_str()))?)
        }
    };
    let created = Created {
        session: shown(&app, handle.info()),
        turn,
        left_out: left_out.directories,
        left_out_more: left_out.directories_more,
    };
    Ok((StatusCode::CREATED, Json(created)))
}

/// Adds what a client wants of a new session: its policy is a preset and the differences from it.
fn note_order(note: &AuditNote, id: &SessionId, wanted: &CreateSession) {
    if !note.is_present() {
        return;
    }
    note.set_session(id.as_str());
    if let Some(policy) = wanted.policy.as_ref().and_then(|it| serde_json::to_value(it).ok()) {
        note.add("policy", policy);
    }
    if let Some(parent) = &wanted.parent {
        note.add("parent", parent.as_str());
    }
    if let Some(owner) = &wanted.owner {
        note.add("owner", owner.as_str());
    }
}

/// The record of the first turn that comes with a new session, if there is one.
fn first_turn_note(note: &AuditNote, id: &SessionId, wanted: &CreateSession) -> AuditNote {
    if wanted.turn.is_none() {
        return AuditNote::default();
    }
    let turn_note = note.another("turn.submit");
    turn_note.set_session(id.as_str());
    turn_note
}

/// A session as it is.
#[utoipa::path(get, path = "/v1/sessions/{session}", params(("session" = String, Path)),
    responses((status = 200, body = Session), (status = "default", body = ApiError)))]
pub(super) async fn look(
    State(app): State<App>,
    InPath(session): InPath<String>,
) -> Answer<Json<Session>> {
    let id = session_id(session)?;
    if let Some(handle) = app.sessions.find(&id) {
        return Ok(Json(shown(&app, handle.info())));
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
    let Some(handle) = app.sessions.find(&id) else { return ended(&app, &id).await.map(Json) };
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
    Ok(Json(shown(&app, handle.info())))
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
    Ok(Json(shown(&app, handle.info())))
}

/// Make a twin of an idle session: a copy of its worker with all its variables, and of its workspace.
#[utoipa::path(post, path = "/v1/sessions/{session}/fork", params(("session" = String, Path)),
    request_body = ForkSession,
    responses((status = 201, body = ForkedSession), (status = "default", body = ApiError)))]
pub(super) async fn fork(
    State(app): State<App>,
    InPath(session): InPath<String>,
    headers: HeaderMap,
    note: AuditNote,
    JsonBody(mut wanted): JsonBody<ForkSession>,
) -> Answer<(StatusCode, Json<ForkedSession>)> {
    if app.stop.borrow().is_some() {
        return Err(about_to_stop().into());
    }
    // A twin lives where its original lives.
    if let Some(failure) = app.fleet().and_then(|fleet| load::refuse_local(fleet)) {
        return Err(failure.into());
    }
    let original = live(&app, session)?;
    tenancy::assign_twin(&original.id, &mut wanted)?;
    let id = wanted.id.unwrap_or_else(|| ids::new_id_of(original.id.tenant().as_ref()));
    let client = client_of(&headers)?;
    note.add("twin", id.as_str());
    let wish = TwinRequest { id, client, owner: wanted.owner, copy: wanted.copy };
    let NewTwin { handle, done, left_out, left_out_more } =
        session::fork::fork(&app, original, wish).await?;
    let ForkDone { not_carried, can_reach } = done;
    let session = shown(&app, handle.info());
    let forked = ForkedSession { session, not_carried, can_reach, left_out, left_out_more };
    Ok((StatusCode::CREATED, Json(forked)))
}

/// The name that the program of a request gives itself.
fn client_of(headers: &HeaderMap) -> Answer<Option<ClientName>> {
    let Some(value) = headers.get(CLIENT_HEADER) else { return Ok(None) };
    match value.to_str().ok().map(ClientName::parse) {
        Some(Ok(client)) => Ok(Some(client)),
        Some(Err(error)) => Err(bad_request(format!("{CLIENT_HEADER}: {error}"))),
        None => Err(bad_request(format!("{CLIENT_HEADER} is printable ASCII"))),
    }
}

/// A session as clients see it: in a fleet, with the name of this node.
pub(super) fn shown(app: &App, session: Session) -> Session {
    let node = app.fleet().map(|fleet| fleet.name().clone());
    Session { node, ..session }
}

/// The live session with this id.
pub(super) fn live(app: &App, session: String) -> Answer<SessionHandle> {
    let id = session_id(session)?;
    app.sessions.find(&id).ok_or_else(|| not_live(app, &id))
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
        Some(facts) if !app.sessions.knows(id) => {
            Ok(shown(app, start::info(&facts, SessionState::Ended)?))
        }
        _ => Err(not_live(app, id)),
    }
}
