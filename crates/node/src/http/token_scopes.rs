//! Which scope a token needs for a request. A request that no row of the table names needs the scope `admin`, so a
//! new route is closed to other tokens until it has a row.

use axum::http::Method;
use windlass_client::TokenScope;
use windlass_protocol::ErrorCode;

use crate::failure::Failure;

use TokenScope::{Admin, Read, Run};

/// Method, path and scope of each route. `{name}` stands for one part of the path, `{*name}` for the rest.
const ROUTES: [(Method, &str, TokenScope); 44] = [
    (Method::GET, "/metrics", Read),
    (Method::GET, "/v1/environments", Read),
    (Method::POST, "/v1/environments", Run),
    (Method::GET, "/v1/environments/{name}", Read),
    (Method::DELETE, "/v1/environments/{name}", Run),
    (Method::GET, "/v1/health", Read),
    (Method::GET, "/v1/metrics", Read),
    (Method::GET, "/v1/node/disk", Read),
    (Method::POST, "/v1/node/prune", Admin),
    (Method::POST, "/v1/node/stop", Admin),
    (Method::GET, "/v1/openapi.json", Read),
    (Method::GET, "/v1/secrets", Admin),
    (Method::PUT, "/v1/secrets/{name}", Admin),
    (Method::DELETE, "/v1/secrets/{name}", Admin),
    (Method::GET, "/v1/sessions", Read),
    (Method::POST, "/v1/sessions", Run),
    (Method::GET, "/v1/sessions/{session}", Read),
    (Method::DELETE, "/v1/sessions/{session}", Run),
    (Method::GET, "/v1/sessions/{session}/displays/{seq}", Read),
    (Method::GET, "/v1/sessions/{session}/egress", Read),
    (Method::GET, "/v1/sessions/{session}/events", Read),
    // Files can hold what no session printed.
    (Method::GET, "/v1/sessions/{session}/files", Run),
    (Method::POST, "/v1/sessions/{session}/files", Run),
    (Method::GET, "/v1/sessions/{session}/files/{*path}", Run),
    (Method::PUT, "/v1/sessions/{session}/files/{*path}", Run),
    (Method::DELETE, "/v1/sessions/{session}/files/{*path}", Run),
    (Method::POST, "/v1/sessions/{session}/fork", Run),
    (Method::POST, "/v1/sessions/{session}/interrupt", Run),
    (Method::GET, "/v1/sessions/{session}/output", Read),
    (Method::GET, "/v1/sessions/{session}/output/search", Read),
    (Method::POST, "/v1/sessions/{session}/reset", Run),
    // The rules tell where secrets go.
    (Method::GET, "/v1/sessions/{session}/secrets", Admin),
    (Method::PUT, "/v1/sessions/{session}/secrets", Admin),
    (Method::GET, "/v1/sessions/{session}/tools", Read),
    (Method::POST, "/v1/sessions/{session}/turns", Run),
    (Method::GET, "/v1/sessions/{session}/turns/{turn}", Read),
    (Method::POST, "/v1/sessions/{session}/turns/{turn}/input", Run),
    (Method::POST, "/v1/sessions/{session}/turns/{turn}/interrupt", Run),
    (Method::GET, "/v1/tools/host", Run),
    (Method::GET, "/v1/version", Read),
    (Method::GET, "/v1/workers", Read),
    // The MCP door runs code in sessions of its own.
    (Method::GET, "/mcp", Run),
    (Method::POST, "/mcp", Run),
    (Method::DELETE, "/mcp", Run),
];

/// Refuses a request that needs another scope than the client's token has.
pub(super) fn check(allowed: TokenScope, method: &Method, path: &str) -> Result<(), Failure> {
    // Clients of the socket and of the node's own token, which are most clients, need no search.
    if allowed == Admin {
        return Ok(());
    }
    let needed = needed(method, path);
    if needed <= allowed {
        return Ok(());
    }
    let message = format!(
        "{method} {path} needs a token of the scope {needed}; this token has the scope {allowed}"
    );
    Err(Failure::new(ErrorCode::Forbidden, message))
}

fn needed(method: &Method, path: &str) -> TokenScope {
    let method = if method == Method::HEAD { &Method::GET } else { method };
    let row = ROUTES.iter().find(|(of, template, _)| of == method && matches(template, path));
    row.map_or(Admin, |(_, _, scope)| *scope)
}

/// Whether the router takes this path to the route of this template.
fn matches(template: &str, path: &str) -> bool {
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

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use utoipa::OpenApi;

    use super::super::openapi::Document;
    use super::*;

    /// Rows whose routes are not in the document.
    const NOT_DOCUMENTED: [(&str, &str); 4] =
        [("GET", "/metrics"), ("GET", "/mcp"), ("POST", "/mcp"), ("DELETE", "/mcp")];

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
        let rows = ROUTES.iter().map(|(method, path, _)| (method.to_string(), (*path).to_owned()));
        assert_eq!(rows.clone().count(), rows.clone().collect::<BTreeSet<_>>().len());
        assert_eq!(rows.collect::<BTreeSet<_>>(), documented);
    }

    #[test]
    fn only_get_requests_are_allowed_to_readers() {
        for (method, path, scope) in &ROUTES {
            assert!(*scope != Read || *method == Method::GET, "{method} {path}");
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
            assert_eq!(needed(&method, path), expected, "{method} {path}");
        }
    }

    #[test]
    fn each_scope_includes_those_before_it() {
        for (method, path, needed) in &ROUTES {
            for allowed in TokenScope::ALL {
                let checked = check(allowed, method, path);
                assert_eq!(checked.is_ok(), allowed >= *needed, "{method} {path} with {allowed}");
                if let Err(failure) = checked {
                    assert_eq!((failure.code, failure.status()), (ErrorCode::Forbidden, 403));
                }
            }
        }
    }
}
