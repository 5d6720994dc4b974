//! Whether requests of a route are in the audit log, and as what.

use axum::http::Method;

use super::token_scopes::matches;
use super::{console_gate, fleet_view, peers};
use crate::fleet::load::LOAD;

/// The name of an act in the log. `None`: the request only reads, and what it reads is not a file of a workspace.
type RecordedAct = Option<&'static str>;

/// Each route with its act. The first rows are those of the most frequent requests that are recorded.
static ROUTES: [(Method, &str, RecordedAct); 57] = [
    (Method::POST, "/v1/sessions/{session}/turns", Some("turn.submit")),
    (Method::POST, "/v1/sessions", Some("session.create")),
    (Method::POST, "/v1/sessions/{session}/turns/{turn}/input", Some("turn.input")),
    (Method::POST, "/v1/sessions/{session}/turns/{turn}/interrupt", Some("turn.interrupt")),
    (Method::POST, "/v1/sessions/{session}/interrupt", Some("turn.interrupt")),
    (Method::POST, "/v1/sessions/{session}/reset", Some("session.reset")),
    (Method::POST, "/v1/sessions/{session}/fork", Some("session.fork")),
    (Method::DELETE, "/v1/sessions/{session}", Some("session.close")),
    (Method::PUT, "/v1/sessions/{session}/secrets", Some("session.secrets")),
    (Method::GET, "/v1/sessions/{session}/files/{*path}", Some("file.read")),
    (Method::PUT, "/v1/sessions/{session}/files/{*path}", Some("file.put")),
    (Method::DELETE, "/v1/sessions/{session}/files/{*path}", Some("file.remove")),
    (Method::POST, "/v1/sessions/{session}/files", Some("file.write_back")),
    (Method::GET, "/v1/tools/host", Some("tools.attach")),
    // The MCP door sends requests of its own for each call, and they are recorded too.
    (Method::POST, "/mcp", Some("mcp.request")),
    (Method::DELETE, "/mcp", Some("mcp.end")),
    (Method::PUT, "/v1/secrets/{name}", Some("secret.set")),
    (Method::DELETE, "/v1/secrets/{name}", Some("secret.remove")),
    (Method::POST, "/v1/environments", Some("environment.create")),
    (Method::DELETE, "/v1/environments/{name}", Some("environment.remove")),
    (Method::POST, console_gate::LOGINS, Some("console.offer")),
    (Method::POST, console_gate::SESSION, Some("console.login")),
    (Method::DELETE, console_gate::SESSION, Some("console.logout")),
    (Method::POST, peers::JOIN, Some("fleet.join")),
    (Method::POST, peers::RENEW, Some("fleet.renew")),
    (Method::POST, fleet_view::CORDON, Some("fleet.cordon")),
    (Method::POST, "/v1/fleet/nodes/{node}/cordon", Some("fleet.cordon")),
    (Method::POST, "/v1/node/doctor", Some("node.doctor")),
    (Method::POST, "/v1/node/prune", Some("node.prune")),
    (Method::POST, "/v1/node/stop", Some("node.stop")),
    (Method::GET, "/metrics", None),
    (Method::GET, "/v1/environments", None),
    (Method::GET, "/v1/environments/{name}", None),
    (Method::GET, LOAD, None),
    (Method::GET, "/v1/fleet/nodes", None),
    (Method::GET, "/v1/fleet/status", None),
    (Method::GET, "/v1/health", None),
    (Method::GET, "/v1/metrics", None),
    (Method::GET, "/v1/node/disk", None),
    (Method::GET, "/v1/openapi.json", None),
    (Method::GET, "/v1/secrets", None),
    (Method::GET, "/v1/sessions", None),
    (Method::GET, "/v1/overview", None),
    (Method::GET, "/v1/sessions/{session}", None),
    (Method::GET, "/v1/sessions/{session}/displays/{seq}", None),
    (Method::GET, "/v1/sessions/{session}/egress", None),
    (Method::GET, "/v1/sessions/{session}/events", None),
    (Method::GET, "/v1/sessions/{session}/files", None),
    (Method::GET, "/v1/sessions/{session}/output", None),
    (Method::GET, "/v1/sessions/{session}/output/search", None),
    (Method::GET, "/v1/sessions/{session}/secrets", None),
    (Method::GET, "/v1/sessions/{session}/tools", None),
    (Method::GET, "/v1/sessions/{session}/turns/{turn}", None),
    (Method::GET, "/v1/usage", None),
    (Method::GET, "/v1/version", None),
    (Method::GET, "/v1/workers", None),
    (Method::GET, "/mcp", None),
];

/// What the log says of a request: the act, and the parts of the path that have a name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct RecordedRoute<'p> {
    pub did: &'static str,
    pub parts: Vec<(&'static str, &'p str)>,
}

/// `None` if such requests are not recorded.
pub(super) fn recorded<'p>(method: &Method, path: &'p str) -> Option<RecordedRoute<'p>> {
    let acts = ROUTES.iter().filter_map(|(of, template, did)| Some((of, *template, (*did)?)));
    let mut acts = acts.filter(|(of, template, _)| *of == method && matches(template, path));
    let (_, template, did) = acts.next()?;
    Some(RecordedRoute { did, parts: parts(template, path) })
}

fn parts<'p>(template: &'static str, path: &'p str) -> Vec<(&'static str, &'p str)> {
    let mut rest = path;
    let mut found = Vec::new();
    for expected in template.split('/') {
        let name = expected.strip_prefix('{').and_then(|name| name.strip_suffix('}'));
        if let Some(name) = name.and_then(|name| name.strip_prefix('*')) {
            found.push((name, rest));
            break;
        }
        let (part, after) = rest.split_once('/').unwrap_or((rest, ""));
        found.extend(name.map(|name| (name, part)));
        rest = after;
    }
    found
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::super::token_scopes;
    use super::*;

    #[test]
    fn every_route_says_whether_it_is_recorded() {
        let rows = ROUTES.iter().map(|(method, path, _)| (method.to_string(), (*path).to_owned()));
        let rows: BTreeSet<_> = rows.collect();
        assert_eq!(rows.len(), ROUTES.len());
        let expected: BTreeSet<_> = token_scopes::routes().collect();
        assert_eq!(rows, expected);
    }

    #[test]
    fn every_route_that_changes_something_is_recorded() {
        for (method, path, did) in &ROUTES {
            assert!(*method == Method::GET || did.is_some(), "{method} {path}");
        }
    }

    #[test]
    fn the_named_parts_of_a_path_are_details() {
        for (method, path, expected) in [
            (Method::POST, "/v1/sessions", Some(("session.create", vec![]))),
            (
                Method::POST,
                "/v1/sessions/s1/turns/t2/input",
                Some(("turn.input", vec![("session", "s1"), ("turn", "t2")])),
            ),
            (
                Method::PUT,
                "/v1/sessions/s1/files/a/b.txt",
                Some(("file.put", vec![("session", "s1"), ("path", "a/b.txt")])),
            ),
            (Method::DELETE, "/v1/secrets/KEY", Some(("secret.remove", vec![("name", "KEY")]))),
            (Method::GET, "/v1/sessions/s1", None),
            (Method::POST, "/v1/unknown", None),
        ] {
            let found = recorded(&method, path).map(|route| (route.did, route.parts));
            assert_eq!(found, expected, "{method} {path}");
        }
    }
}
