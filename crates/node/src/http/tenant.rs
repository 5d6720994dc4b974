//! Requests of tenants' clients. A tenant is a part of the ids of its sessions. The door writes it into the path and the
//! query of each request of such a client, so the client cannot name a session of anyone else.

use std::sync::Arc;

use axum::extract::FromRequestParts;
use axum::http::request::Parts;
use axum::http::uri::PathAndQuery;
use axum::http::{Extensions, Request, Uri};
use windlass_protocol::host::PARENT_HEADER;
use windlass_protocol::ids::IdError;
use windlass_protocol::{ErrorCode, Owner, SessionId, TenantName};
use windlass_tools::HostScope;

use super::App;
use super::reply::{Answer, Refusal, internal};
use crate::bounds::Bounds;
use crate::failure::Failure;

/// The path of a session, without its id.
const SESSION: &str = "/v1/sessions/";

/// Where a tool host attaches. The query names the session or the owner.
const TOOL_HOST: &str = "/v1/tools/host";

/// The tenant of the client that sends a request. Absent: the client has no tenant, and sees all sessions.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct RequestTenant(pub Option<TenantName>);

impl<S: Send + Sync> FromRequestParts<S> for RequestTenant {
    type Rejection = Refusal;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Refusal> {
        // The door has put it there. Without it nothing is known of the client, so the request is not served.
        parts
            .extensions
            .get::<Self>()
            .cloned()
            .ok_or_else(|| internal("a request without its tenant"))
    }
}

/// What the client of a request may hold. `extensions` are those of the request.
pub(super) fn bounds_of(extensions: &Extensions, app: &App) -> Arc<Bounds> {
    let tenant = extensions.get::<RequestTenant>();
    app.serving.bounds.of(tenant.and_then(|RequestTenant(tenant)| tenant.as_ref()))
}

/// Marks a request with the tenant of its client, and completes the names in its path and its query.
pub(super) fn enter<B>(
    request: &mut Request<B>,
    tenant: Option<&TenantName>,
) -> Result<(), Failure> {
    request.extensions_mut().insert(RequestTenant(tenant.cloned()));
    if tenant.is_some() && request.headers().contains_key(PARENT_HEADER) {
        let message = format!("the header {PARENT_HEADER} needs a token without a tenant");
        return Err(Failure::new(ErrorCode::Forbidden, message));
    }
    if let Some(named) = complete(request.uri(), tenant)? {
        *request.uri_mut() = named;
    }
    Ok(())
}

/// The URI with the complete names of sessions and owners; `None` if it has them already.
fn complete(uri: &Uri, tenant: Option<&TenantName>) -> Result<Option<Uri>, Failure> {
    let is_plain = uri.path_and_query().is_none_or(|whole| !whole.as_str().contains("%40"));
    if tenant.is_none() && is_plain {
        // So are most requests.
        return Ok(None);
    }
    let path = uri.path();
    let (path, query) = if let Some(rest) = path.strip_prefix(SESSION) {
        let (id, rest) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
        (format!("{SESSION}{}{rest}", complete_id(id, tenant)?), uri.query().map(str::to_owned))
    } else if path == TOOL_HOST {
        let query = uri.query().map(|query| complete_query(query, tenant)).transpose()?;
        (path.to_owned(), query)
    } else {
        return Ok(None);
    };
    let whole = match query {
        Some(query) => format!("{path}?{query}"),
        None => path,
    };
    if uri.path_and_query().is_some_and(|before| before.as_str() == whole) {
        return Ok(None);
    }
    let invalid = || Failure::new(ErrorCode::BadRequest, "the request's path is invalid");
    let mut parts = uri.clone().into_parts();
    parts.path_and_query = Some(PathAndQuery::try_from(whole).map_err(|_| invalid())?);
    Uri::from_parts(parts).map(Some).map_err(|_| invalid())
}

/// The query of a tool host.
fn complete_query(query: &str, tenant: Option<&TenantName>) -> Result<String, Failure> {
    let mut pairs = Vec::new();
    for pair in query.split('&') {
        pairs.push(match pair.split_once('=') {
            Some((name @ ("session" | "owner"), value)) => {
                format!("{name}={}", complete_id(value, tenant)?)
            }
            _ => pair.to_owned(),
        });
    }
    Ok(pairs.join("&"))
}

/// The id in the form in which the node routes it. A client without a tenant may send anything: the handler says what is
/// wrong with it.
fn complete_id(written: &str, tenant: Option<&TenantName>) -> Result<String, Failure> {
    let id = written.replace("%40", "@");
    match tenant {
        None => Ok(id),
        Some(tenant) => match SessionId::within(&id, tenant) {
            Ok(id) => Ok(id.to_string()),
            Err(IdError::OtherTenant(id)) => Err(no_session(&id)),
            Err(error) => Err(Failure::new(ErrorCode::BadRequest, error.to_string())),
        },
    }
}

/// The answer for a session of another tenant. It is the same whether there is such a session or not.
fn no_session(id: &str) -> Failure {
    Failure::new(ErrorCode::SessionNotFound, format!("there is no session {id}"))
}

impl RequestTenant {
    /// Refuses a tool host whose tools would be for sessions that are not the client's. The names in the query are
    /// complete, unless the client wrote the query in a way that the door does not know.
    pub fn check_host(&self, scope: &HostScope) -> Answer<()> {
        let Self(Some(tenant)) = self else { return Ok(()) };
        let failure = match scope {
            HostScope::Session(id) if id.is_of(Some(tenant)) => return Ok(()),
            HostScope::Owner(owner) if owner.is_of(Some(tenant)) => return Ok(()),
            HostScope::Session(id) => no_session(id.as_str()),
            HostScope::Owner(_) | HostScope::Shared | HostScope::Everyone => {
                let message = format!(
                    "a tool host of tenant {tenant} is for a session or an owner of the tenant; tools for other \
                     sessions need a token of the scope run without a tenant"
                );
                Failure::new(ErrorCode::Forbidden, message)
            }
        };
        Err(failure.into())
    }

    /// Whether a tool host of the client may send messages to this session.
    pub fn may_answer(&self, session: &SessionId) -> bool {
        self.0.is_none() || session.is_of(self.0.as_ref())
    }

    /// The session of a name that is in the query.
    pub fn session(&self, text: String) -> Answer<SessionId> {
        let id = match &self.0 {
            None => SessionId::parse(text),
            Some(tenant) => SessionId::within(&text, tenant),
        };
        id.map_err(|error| bad_name(&error))
    }

    /// The owner of a name that is in the query.
    pub fn owner(&self, text: String) -> Answer<Owner> {
        let owner = match &self.0 {
            None => Owner::parse(text),
            Some(tenant) => Owner::within(&text, tenant),
        };
        owner.map_err(|error| bad_name(&error))
    }
}

fn bad_name(error: &IdError) -> Refusal {
    match error {
        IdError::OtherTenant(id) => no_session(id).into(),
        error => Failure::new(ErrorCode::BadRequest, error.to_string()).into(),
    }
}

#[cfg(test)]
mod tests {
    use axum::http::HeaderValue;

    use super::*;

    fn acme() -> TenantName {
        TenantName::parse("acme").unwrap()
    }

    /// The URI that the router sees, or the code of the refusal.
    fn entered(uri: &str, tenant: Option<&TenantName>) -> Result<String, ErrorCode> {
        let mut request = Request::new(());
        *request.uri_mut() = uri.parse().unwrap();
        enter(&mut request, tenant).map_err(|failure| failure.code)?;
        assert_eq!(request.extensions().get(), Some(&RequestTenant(tenant.cloned())));
        Ok(request.uri().to_string())
    }

    #[test]
    fn a_tenant_can_name_only_what_is_its_own() {
        use ErrorCode::{BadRequest, SessionNotFound};
        for (uri, expected) in [
            ("/v1/sessions", Ok("/v1/sessions")),
            ("/v1/version", Ok("/v1/version")),
            ("/v1/sessions/s1", Ok("/v1/sessions/s1@acme")),
            ("/v1/sessions/s1?a=s1", Ok("/v1/sessions/s1@acme?a=s1")),
            ("/v1/sessions/s1/files/a/b%20c", Ok("/v1/sessions/s1@acme/files/a/b%20c")),
            ("/v1/sessions/s1@acme/turns", Ok("/v1/sessions/s1@acme/turns")),
            ("/v1/sessions/s1%40acme/turns", Ok("/v1/sessions/s1@acme/turns")),
            ("/v1/sessions/s1@other", Err(SessionNotFound)),
            ("/v1/sessions/s1%40other/turns", Err(SessionNotFound)),
            ("/v1/sessions/s1@other@acme", Err(SessionNotFound)),
            ("/v1/sessions/s1@acme@other", Err(SessionNotFound)),
            ("/v1/sessions/s1%2540other", Err(BadRequest)),
            ("/v1/sessions/%731", Err(BadRequest)),
            ("/v1/sessions/..", Err(BadRequest)),
            ("/v1/sessions/", Err(BadRequest)),
            ("/v1/tools/host", Ok("/v1/tools/host")),
            ("/v1/tools/host?session=s1", Ok("/v1/tools/host?session=s1@acme")),
            ("/v1/tools/host?a=b&owner=me", Ok("/v1/tools/host?a=b&owner=me@acme")),
            ("/v1/tools/host?session=s1@other", Err(SessionNotFound)),
            ("/v1/tools/host?session=s1&session=s1%40other", Err(SessionNotFound)),
        ] {
            let found = entered(uri, Some(&acme()));
            assert_eq!(found.as_deref().map_err(|code| *code), expected, "{uri}");
        }
    }

    #[test]
    fn a_client_without_a_tenant_names_sessions_of_all() {
        for (uri, expected) in [
            ("/v1/sessions/s1", "/v1/sessions/s1"),
            ("/v1/sessions/s1@acme/turns", "/v1/sessions/s1@acme/turns"),
            ("/v1/sessions/s1%40acme/turns?x=1", "/v1/sessions/s1@acme/turns?x=1"),
            ("/v1/sessions/%2e%2e/turns", "/v1/sessions/%2e%2e/turns"),
            ("/v1/tools/host?session=s1%40acme", "/v1/tools/host?session=s1@acme"),
        ] {
            assert_eq!(entered(uri, None).as_deref(), Ok(expected), "{uri}");
        }
    }

    #[test]
    fn a_tenant_cannot_speak_for_the_parent_of_sessions() {
        let mut request = Request::new(());
        request.headers_mut().insert(PARENT_HEADER, HeaderValue::from_static("s1"));
        assert!(enter(&mut request, None).is_ok());
        let failure = enter(&mut request, Some(&acme())).unwrap_err();
        assert_eq!(failure.code, ErrorCode::Forbidden);
    }

    #[test]
    fn a_tool_host_of_a_tenant_is_for_its_sessions_and_owners() {
        let tenant = RequestTenant(Some(acme()));
        let session = |text: &str| HostScope::Session(SessionId::parse(text).unwrap());
        let owner = |text: &str| HostScope::Owner(Owner::parse(text).unwrap());
        for (scope, expected) in [
            (session("a@acme"), true),
            (session("a@other"), false),
            (session("a"), false),
            (owner("me@acme"), true),
            (owner("me"), false),
            (HostScope::Shared, false),
            (HostScope::Everyone, false),
        ] {
            assert_eq!(tenant.check_host(&scope).is_ok(), expected, "{scope:?}");
            assert!(RequestTenant(None).check_host(&scope).is_ok(), "{scope:?}");
        }
    }
}
