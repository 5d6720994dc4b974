//! Clients that are limited to the children of one session. The MCP door serves the agent of a session with such a
//! client, so nothing that the agent asks for can reach another session.

use axum::http::{HeaderMap, Method, Request};
use windlass_protocol::host::PARENT_HEADER;
use windlass_protocol::{ErrorCode, SessionId};

use super::App;
use crate::failure::Failure;
use crate::session::spec::parent_of;
use crate::session_rows::{OVERVIEW, SESSIONS};

/// What a limited client may request of a session: the rest of the path, up to its second part.
const OF_A_CHILD: [&str; 6] = ["", "displays", "interrupt", "output", "reset", "turns"];

/// What else a limited client may read: about the node, and the overview, which then has only the children.
const MAY_READ: [&str; 4] = ["/v1/health", OVERVIEW, "/v1/version", "/v1/workers"];

/// The session to whose children the client is limited, if it is.
pub(super) fn parent(headers: &HeaderMap) -> Result<Option<SessionId>, Failure> {
    let Some(value) = headers.get(PARENT_HEADER) else { return Ok(None) };
    match value.to_str().ok().map(SessionId::parse) {
        Some(Ok(parent)) => Ok(Some(parent)),
        _ => Err(Failure::new(ErrorCode::BadRequest, format!("{PARENT_HEADER} is a session's id"))),
    }
}

/// Refuses a request of a limited client for anything but the children of its session.
pub(super) fn check<B>(request: &Request<B>, context: &App) -> Result<(), Failure> {
    let Some(parent) = parent(request.headers())? else { return Ok(()) };
    let path = request.uri().path();
    if path == SESSIONS || (request.method() == Method::GET && MAY_READ.contains(&path)) {
        return Ok(());
    }
    let not_found =
        || Failure::new(ErrorCode::NotFound, format!("there is nothing at {path} for a child"));
    let rest = path.strip_prefix(SESSIONS).and_then(|rest| rest.strip_prefix('/'));
    let (id, rest) = match rest.ok_or_else(not_found)?.split_once('/') {
        Some((id, rest)) => (id, rest.split('/').next().unwrap_or_default()),
        None => (rest.unwrap_or_default(), ""),
    };
    if !OF_A_CHILD.contains(&rest) {
        return Err(not_found());
    }
    let of = match SessionId::parse(id) {
        Ok(id) => parent_in(context, &id)?,
        Err(_) => None,
    };
    match of == Some(parent) {
        true => Ok(()),
        false => Err(Failure::new(ErrorCode::SessionNotFound, format!("there is no session {id}"))),
    }
}

/// The parent of a session, live or ended.
fn parent_in(context: &App, id: &SessionId) -> Result<Option<SessionId>, Failure> {
    if let Some(handle) = context.sessions.find(id) {
        return Ok(handle.parent);
    }
    let recorded = context.serving.log.session(id);
    let recorded = recorded.map_err(|error| Failure::internal(&error.to_string()))?;
    Ok(recorded.as_ref().and_then(parent_of))
}
