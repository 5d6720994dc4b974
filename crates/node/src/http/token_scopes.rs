//! Which scope a token needs for a request, and which requests the token of a tenant allows. A request that no row of the
//! table names needs the scope `admin` and a token without a tenant, so a new route is closed to other tokens until it
//! has a row. A method that a path of the table does not have is refused as
//! the router would refuse it, and stays closed too.

use axum::http::Method;
use windlass_client::{TokenRights, TokenScope};
use windlass_protocol::ErrorCode;

use super::{console_gate, fleet_view, peers};
use crate::failure::Failure;
use crate::fleet::load::LOAD;
use crate::session_rows::OVERVIEW;

use TenantAccess::{Own, Refused};
use TokenScope::{Admin, Read, Run};

/// What the clients of a tenant may do with a route, whatever their scope.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum TenantAccess {
    /// The route shows and changes only sessions of the tenant (`super::tenant`), or is the same for everyone.
    Own,
    /// The route is about the node, about the fleet or about what the owner of the node keeps there.
    Refused,
}

/// Method, path and scope of each route, and whether it is open to tenants. `{name}` stands for one part of the path,
/// `{*name}` for the rest.
const ROUTES: [(Method, &str, TokenScope, TenantAccess); 57] = [
    (Method::GET, "/metrics", Read, Refused),
    // What a login may do is decided by the client for whom it is.
    (Method::POST, console_gate::LOGINS, Admin, Refused),
    // Anyone may try to log in. A page of each scope may log out.
    (Method::POST, console_gate::SESSION, Read, Own),
    (Method::DELETE, console_gate::SESSION, Read, Own),
    (Method::GET, "/v1/environments", Read, Refused),
    (Method::POST, "/v1/environments", Run, Refused),
    (Method::GET, "/v1/environments/{name}", Read, Refused),
    (Method::DELETE, "/v1/environments/{name}", Run, Refused),
    // Only for nodes, at their own door (`super::peers`). No token is enough.
    (Method::POST, peers::JOIN, Admin, Refused),
    (Method::POST, peers::RENEW, Admin, Refused),
    (Method::POST, fleet_view::CORDON, Admin, Refused),
    (Method::GET, LOAD, Read, Refused),
    (Method::GET, "/v1/fleet/nodes", Read, Refused),
    (Method::POST, "/v1/fleet/nodes/{node}/cordon", Admin, Refused),
    (Method::GET, "/v1/fleet/status", Read, Refused),
    (Method::GET, "/v1/health", Read, Own),
    (Method::GET, "/v1/metrics", Read, Refused),
    (Method::GET, "/v1/node/disk", Read, Refused),
    (Method::POST, "/v1/node/doctor", Admin, Refused),
    (Method::POST, "/v1/node/prune", Admin, Refused),
    (Method::POST, "/v1/node/stop", Admin, Refused),
    (Method::GET, "/v1/openapi.json", Read, Own),
    (Method::GET, OVERVIEW, Read, Own),
    (Method::GET, "/v1/secrets", Admin, Refused),
    (Method::PUT, "/v1/secrets/{name}", Admin, Refused),
    (Method::DELETE, "/v1/secrets/{name}", Admin, Refused),
    (Method::GET, "/v1/sessions", Read, Own),
    (Method::POST, "/v1/sessions", Run, Own),
    (Method::GET, "/v1/sessions/{session}", Read, Own),
    (Method::DELETE, "/v1/sessions/{session}", Run, Own),
    (Method::GET, "/v1/sessions/{session}/displays/{seq}", Read, Own),
    (Method::GET, "/v1/sessions/{session}/egress", Read, Own),
    (Method::GET, "/v1/sessions/{session}/events", Read, Own),
    // Files can hold what no session printed.
    (Method::GET, "/v1/sessions/{session}/files", Run, Own),
    // Writes into the directory that a workspace was copied from. A client without a tenant has chosen it.
    (Method::POST, "/v1/sessions/{session}/files", Run, Refused),
    (Method::GET, "/v1/sessions/{session}/files/{*path}", Run, Own),
    (Method::PUT, "/v1/sessions/{session}/files/{*path}", Run, Own),
    (Method::DELETE, "/v1/sessions/{session}/files/{*path}", Run, Own),
    (Method::POST, "/v1/sessions/{session}/fork", Run, Own),
    (Method::POST, "/v1/sessions/{session}/interrupt", Run, Own),
    (Method::GET, "/v1/sessions/{session}/output", Read, Own),
    (Method::GET, "/v1/sessions/{session}/output/search", Read, Own),
    (Method::POST, "/v1/sessions/{session}/reset", Run, Own),
    // The rules tell where secrets go.
    (Method::GET, "/v1/sessions/{session}/secrets", Admin, Refused),
    (Method::PUT, "/v1/sessions/{session}/secrets", Admin, Refused),
    (Method::GET, "/v1/sessions/{session}/tools", Read, Own),
    (Method::POST, "/v1/sessions/{session}/turns", Run, Own),
    (Method::GET, "/v1/sessions/{session}/turns/{turn}", Read, Own),
    (Method::POST, "/v1/sessions/{session}/turns/{turn}/input", Run, Own),
    (Method::POST, "/v1/sessions/{session}/turns/{turn}/interrupt", Run, Own),
    (Method::GET, "/v1/tools/host", Run, Own),
    (Method::GET, "/v1/usage", Read, Own),
    (Method::GET, "/v1/version", Read, Own),
    (Method::GET, "/v1/workers", Read, Refused),
    // The MCP door runs code in sessions of its own.
    (Method::GET, "/mcp", Run, Refused),
    (Method::POST, "/mcp", Run, Refused),
    (Method::DELETE, "/mcp", Run, Refused),
];

/// Refuses a request that needs another scope than the client's token has, or a method that its path does not have.
pub(super) fn check(rights: &TokenRights, method: &Method, path: &str) -> Result<(), Failure> {
    let allowed = rights.scope;
    // Clients of the socket and of the node's own token, which are most clients, need no search.
    if allowed == Admin && rights.tenant.is_none() {
        return Ok(());
    }
    let (needed, access) = needed(method, path);
    let is_closed = rights.tenant.is_some() && access == Refused;
    if needed <= allowed && !is_closed {
        return Ok(());
    }
    let methods = methods_of(path);
    if !methods.is_empty() && !methods.contains(&method.to_string()) {
        let message = format!("{path} has no method {method}");
        return Err(Failure::new(ErrorCode::MethodNotAllowed, message));
    }
    let message = match &rights.tenant {
        Some(tenant) if is_closed => format!(
            "{method} {path} needs a token of the scope {needed} without a tenant; this token belongs to tenant {tenant}"
        ),
        _ => format!(
            "{method} {path} needs a token of the scope {needed}; this token has the scope {allowed}"
        ),
    };
    Err(Failure::new(ErrorCode::Forbidden, message))
}

fn needed(method: &Method, path: &str) -> (TokenScope, TenantAccess) {
    let method = if method == Method::HEAD { &Method::GET } else { method };
    let row = ROUTES.iter().find(|(of, template, ..)| of == method && matches(template, path));
    row.map_or((Admin, Refused), |(_, _, scope, access)| (*scope, *access))
}

/// The methods of a path, for the header `Allow`. Empty if the table has no such path.
pub(super) fn methods_of(path: &str) -> Vec<String> {
    let rows = ROUTES.iter().filter(|(_, template, ..)| matches(template, path));
    let mut methods: Vec<String> = rows.map(|(method, ..)| method.to_string()).collect();
    if methods.iter().any(|method| method == "GET") {
        methods.push("HEAD".to_owned());
    }
    methods
}

/// Whether the router takes this path to the route of this template.
pub(super) fn matches(template: &str, path: &str) -> bool {
    let mut parts = path.split('/');
    for expected in template.split('/') {
        let Some(part) = parts.next() else { return false };
        match expected.strip_prefix('{') {
            Some(name) if name.starts_with('*') => return !part.is_empty(),
            Some(_) if part.is_empty() => return false,
            Some(_) => {}
            None if part != expected => return false,
            None => {}
        }
    }
    parts.next().is_none()
}

/// Method and path of each route.
#[cfg(test)]
pub(super) fn routes() -> impl Iterator<Item = (String, String)> {
    ROUTES.iter().map(|(method, path, ..)| (method.to_string(), (*path).to_owned()))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use utoipa::OpenApi;

    use super::super::openapi::Document;
    use super::*;

    /// Rows whose routes are not in the document.
    const NOT_DOCUMENTED: [(&str, &str); 7] = [
        ("GET", "/metrics"),
        ("GET", "/mcp"),
        ("POST", "/mcp"),
        ("DELETE", "/mcp"),
        ("POST", peers::JOIN),
        ("POST", peers::RENEW),
        ("GET", LOAD),
    ];

    #[test]
    fn every_route_of_the_document_has_a_scope_and_every_scope_has_a_route() {
        let document = serde_json::to_value(Document::openapi()).unwrap();
        let mut documented = BTreeSet::new();
        for (path, methods) in document["paths"].as_object().unwrap() {
            // The watch is served by the route of files.
            let path = path.replace("files/watch", "files/{*path}").replace("{path}", "{*path}");
            for method in methods.as_object().unwrap().keys() {
                documented.insert((method.to_uppercase(), path.clone()));
            }
        }
        documented
            .extend(NOT_DOCUMENTED.map(|(method, path)| (method.to_owned(), path.to_owned())));
        let rows = ROUTES.iter().map(|(method, path, ..)| (method.to_string(), (*path).to_owned()));
        assert_eq!(rows.clone().count(), rows.clone().collect::<BTreeSet<_>>().len());
        assert_eq!(rows.collect::<BTreeSet<_>>(), documented);
    }

    #[test]
    fn only_get_requests_and_logins_are_allowed_to_readers() {
        for (method, path, scope, _) in &ROUTES {
            let reads = *method == Method::GET || *path == console_gate::SESSION;
            assert!(*scope != Read || reads, "{method} {path}");
        }
    }

    #[test]
    fn a_request_needs_the_scope_of_its_route_and_an_unknown_one_needs_admin() {
        for (method, path, expected) in [
            (Method::GET, "/v1/sessions/s/events", Read),
            (Method::HEAD, "/v1/health", Read),
            (Method::DELETE, "/v1/health", Admin),
            (Method::GET, "/v1/sessions/s/files/a/b/c", Run),
            (Method::GET, "/v1/sessions/s/files/", Admin),
            (Method::GET, "/v1/sessions//events", Admin),
            (Method::GET, "/v1/sessions/s/events/", Admin),
            (Method::GET, "//v1/health", Admin),
            (Method::POST, "/v1/sessions/s/turns", Run),
            (Method::GET, "/v1/sessions/s/turns/1", Read),
            (Method::GET, "/v1/new", Admin),
            (Method::GET, "/", Admin),
        ] {
            assert_eq!(needed(&method, path).0, expected, "{method} {path}");
        }
    }

    #[test]
    fn a_method_that_a_path_does_not_have_is_refused_as_such() {
        for (method, path, expected) in [
            (Method::PUT, "/v1/sessions", ErrorCode::MethodNotAllowed),
            (Method::DELETE, "/v1/health", ErrorCode::MethodNotAllowed),
            (Method::GET, "/v1/node/stop", ErrorCode::MethodNotAllowed),
            (Method::POST, "/v1/node/stop", ErrorCode::Forbidden),
            (Method::PUT, "/v1/new", ErrorCode::Forbidden),
        ] {
            let failure = check(&TokenRights::of_node(Read), &method, path).unwrap_err();
            assert_eq!(failure.code, expected, "{method} {path}");
        }
        assert_eq!(methods_of("/v1/sessions"), ["GET", "POST", "HEAD"]);
        assert_eq!(methods_of("/v1/new"), Vec::<String>::new());
    }

    #[test]
    fn each_scope_includes_those_before_it() {
        for (method, path, needed, _) in &ROUTES {
            for allowed in TokenScope::ALL {
                let checked = check(&TokenRights::of_node(allowed), method, path);
                assert_eq!(checked.is_ok(), allowed >= *needed, "{method} {path} with {allowed}");
                if let Err(failure) = checked {
                    assert_eq!((failure.code, failure.status()), (ErrorCode::Forbidden, 403));
                }
            }
        }
    }

    #[test]
    fn a_tenant_reaches_its_sessions_and_nothing_of_the_node() {
        let tenant = windlass_protocol::TenantName::parse("acme").ok();
        for allowed in TokenScope::ALL {
            let rights = TokenRights { scope: allowed, tenant: tenant.clone() };
            for (method, path, needed, access) in &ROUTES {
                let is_open = check(&rights, method, path).is_ok();
                assert_eq!(is_open, allowed >= *needed && *access == Own, "{method} {path}");
            }
            let unknown = check(&rights, &Method::GET, "/v1/new").unwrap_err();
            assert_eq!(unknown.code, ErrorCode::Forbidden);
        }
        let open = ROUTES.iter().filter(|(.., access)| *access == Own);
        let elsewhere =
            open.map(|(_, path, ..)| *path).filter(|path| !path.starts_with("/v1/sessions"));
        let elsewhere: Vec<&str> = elsewhere.collect();
        let expected = [
            console_gate::SESSION,
            console_gate::SESSION,
            "/v1/health",
            "/v1/openapi.json",
            OVERVIEW,
            "/v1/tools/host",
            "/v1/usage",
            "/v1/version",
        ];
        assert_eq!(elsewhere, expected);
    }
}
