//! Where a new session is made, if the node has a fleet. Reads the request's body for the placement, within the limits
//! that hold for every body. The handler of the session reads the same bytes again.

use axum::body::Body;
use axum::http::{Method, Request};
use windlass_client::TokenRights;

use super::App;
use super::body;
use super::reply::Refusal;
use crate::fleet::forward::Passed;
use crate::fleet::load;
use crate::fleet::placing::{self, CreationRequest};

/// Whether the request creates a session.
pub(super) fn is_creation<B>(request: &Request<B>) -> bool {
    request.method() == Method::POST && request.uri().path() == "/v1/sessions"
}

/// A creation of this node's own client: finds the node for it.
pub(super) async fn place(request: Request<Body>, rights: &TokenRights, context: &App) -> Passed {
    let Some(fleet) = context.fleet() else { return Passed::Here(request) };
    let (parts, body) = request.into_parts();
    let bounds = context.serving.bounds.of(rights.tenant.as_ref());
    match body::read(body, &bounds.input).await {
        Ok(body) => placing::place(context, fleet, rights, CreationRequest { parts, body }).await,
        Err(Refusal(failure)) => Passed::Refused(failure),
    }
}

/// A creation that another node has passed on: this node takes it if it has room.
pub(super) fn admit(request: Request<Body>, context: &App) -> Passed {
    match context.fleet().and_then(|fleet| load::refuse_placed(context, fleet)) {
        Some(failure) => Passed::Refused(failure),
        None => Passed::Here(request),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_post_of_sessions_creates_one() {
        for (method, path, expected) in [
            (Method::POST, "/v1/sessions", true),
            (Method::POST, "/v1/sessions?a=b", true),
            (Method::GET, "/v1/sessions", false),
            (Method::POST, "/v1/sessions/s1/turns", false),
            (Method::POST, "/v1/sessions/", false),
        ] {
            let mut request = Request::new(());
            (*request.method_mut(), *request.uri_mut()) = (method, path.parse().unwrap());
            assert_eq!(is_creation(&request), expected, "{path}");
        }
    }
}
