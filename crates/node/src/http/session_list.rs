//! Lists of sessions: those of this node, and those of a whole fleet in pages. A page of a fleet asks only the nodes that
//! it needs. The overview (`super::overview`) is the same list with other rows.

use std::collections::HashSet;

use axum::Json;
use axum::extract::State;
use axum::http::HeaderMap;
use windlass_protocol::api::{
    ApiError, SESSION_PAGE_DEFAULT, SESSION_PAGE_MAX, SessionList, SessionState, SessionsQuery,
};
use windlass_protocol::{NodeName, SessionId, TenantName};

use super::App;
use super::body::Asked;
use super::fleet_view::{fleet_of, unknown_node};
use super::reply::{Answer, bad_request, internal};
use super::scope;
use super::tenant::RequestTenant;
use crate::fleet::FleetNode;
use crate::fleet::listing::{self, ListSource, ListedNode};
use crate::session::start;
use crate::session_rows::{ListRow, RowPage};

/// Maximum number of sessions of the journal in a list.
const LIST_MAX: usize = 1000;

/// Maximum number of nodes that one page looks at. Nodes without sessions make a page short.
const NODES_PER_PAGE_MAX: usize = 16;

/// The live sessions, or all that the journal knows.
#[utoipa::path(get, path = "/v1/sessions", params(SessionsQuery),
    responses((status = 200, body = SessionList), (status = "default", body = ApiError)))]
pub(super) async fn list(
    State(app): State<App>,
    RequestTenant(tenant): RequestTenant,
    headers: HeaderMap,
    Asked(query): Asked<SessionsQuery>,
) -> Answer<Json<SessionList>> {
    let RowPage { sessions, cursor } = wanted_rows(&app, tenant, &headers, query).await?;
    Ok(Json(SessionList { sessions, cursor }))
}

/// The rows that a client asks for, of those that it may see.
pub(super) async fn wanted_rows<Row: ListRow>(
    app: &App,
    tenant: Option<TenantName>,
    headers: &HeaderMap,
    mut query: SessionsQuery,
) -> Answer<RowPage<Row>> {
    if query.limit.is_some_and(|limit| limit == 0 || limit > SESSION_PAGE_MAX) {
        return Err(bad_request(format!("limit is 1 to {SESSION_PAGE_MAX}")));
    }
    if let Some(tenant) = tenant {
        // For a client of a tenant there are no other tenants.
        if query.tenant.as_ref().is_some_and(|named| *named != tenant) {
            return Ok(RowPage::default());
        }
        query.tenant = Some(tenant);
    }
    let parent = scope::parent(headers)?;
    // A client that is limited to the children of a session finds them where the session lives.
    if query.fleet && parent.is_none() {
        return of_fleet(app, fleet_of(app)?, &query).await;
    }
    if query.node.is_some() {
        return Err(bad_request("`node` needs `fleet=true`"));
    }
    let limit = query.limit.or(query.cursor.as_ref().map(|_| SESSION_PAGE_DEFAULT));
    let after = query.cursor.as_deref().map(session_after).transpose()?;
    of_node(app, &query, parent.as_ref(), after.as_ref(), limit).await
}

fn session_after(text: &str) -> Answer<SessionId> {
    SessionId::parse(text).map_err(|_| bad_cursor())
}

fn bad_cursor() -> super::reply::Refusal {
    bad_request("`cursor` is not one that a reply of this list had; begin without it")
}

/// The sessions of this node: all of them, the newest first; or a page of them, by id.
async fn of_node<Row: ListRow>(
    app: &App,
    query: &SessionsQuery,
    parent: Option<&SessionId>,
    after: Option<&SessionId>,
    limit: Option<usize>,
) -> Answer<RowPage<Row>> {
    let mut handles = app.sessions.handles();
    let mut rows = Vec::<Row>::new();
    if query.all {
        let live = handles.iter().map(|handle| handle.id.clone()).collect();
        rows = ended(app, live, query.tenant.as_ref()).await?;
    }
    let is_listed = |id: &SessionId, parent_of: Option<&SessionId>| {
        let is_child = parent.is_none_or(|parent| parent_of == Some(parent));
        let is_of_tenant = query.tenant.is_none() || id.is_of(query.tenant.as_ref());
        is_child && is_of_tenant && after.is_none_or(|after| id > after)
    };
    let has_state = |row: &Row| query.state.is_none_or(|state| row.state() == state);
    rows.retain(|row| is_listed(row.id(), row.parent()) && has_state(row));
    handles.retain(|handle| is_listed(&handle.id, handle.parent.as_ref()));
    handles.sort_by(|a, b| a.id.cmp(&b.id));
    let live = handles.iter().map(Row::of_live).filter(|row| has_state(row));
    // One row more than the page has tells that there is a next page. Further rows are not even made.
    rows.extend(live.take(limit.map_or(usize::MAX, |limit| limit + 1)));
    let node = app.fleet().map(|fleet| fleet.name().clone());
    rows.iter_mut().for_each(|row| row.set_node(node.clone()));
    if let Some(limit) = limit {
        return Ok(page(rows, after, limit));
    }
    rows.sort_by(|a, b| b.created_at_ms().cmp(&a.created_at_ms()).then(a.id().cmp(b.id())));
    Ok(RowPage { sessions: rows, cursor: None })
}

/// The sessions behind an id, in the order of ids.
fn page<Row: ListRow>(
    mut sessions: Vec<Row>,
    after: Option<&SessionId>,
    limit: usize,
) -> RowPage<Row> {
    sessions.retain(|session| after.is_none_or(|after| session.id() > after));
    sessions.sort_by(|a, b| a.id().cmp(b.id()));
    let has_more = sessions.len() > limit;
    sessions.truncate(limit);
    let last = sessions.last().filter(|_| has_more);
    let cursor = last.map(|session| session.id().to_string());
    RowPage { sessions, cursor }
}

/// The ended sessions that the journal has: those of a tenant, so that others cannot fill its list.
async fn ended<Row: ListRow>(
    app: &App,
    live: HashSet<SessionId>,
    tenant: Option<&TenantName>,
) -> Answer<Vec<Row>> {
    let (log, tenant) = (app.serving.log.clone(), tenant.cloned());
    let kept = tokio::task::spawn_blocking(move || log.sessions(tenant.as_ref(), LIST_MAX))
        .await
        .map_err(internal)?
        .map_err(internal)?;
    let ended = kept.iter().filter(|facts| {
        !live.contains(&facts.created.id) && !app.sessions.knows(&facts.created.id)
    });
    // A session whose record cannot be read is left out, and `start::info` logs it.
    let sessions = ended.filter_map(|facts| start::info(facts, SessionState::Ended).ok());
    Ok(sessions.map(Row::of_session).collect())
}

/// Where a page of a fleet begins.
#[derive(Debug, PartialEq, Eq)]
struct FleetCursor {
    node: NodeName,
    /// Behind this session of the node; its first one if absent.
    after: Option<SessionId>,
}

impl FleetCursor {
    /// `NODE/SESSION`, or `NODE/`.
    fn parse(text: &str) -> Option<Self> {
        let (node, session) = text.split_once('/')?;
        let after = match session {
            "" => None,
            session => Some(SessionId::parse(session).ok()?),
        };
        Some(Self { node: NodeName::parse(node).ok()?, after })
    }
}

/// A page of the sessions of all nodes.
async fn of_fleet<Row: ListRow>(
    app: &App,
    fleet: &FleetNode,
    query: &SessionsQuery,
) -> Answer<RowPage<Row>> {
    let limit = query.limit.unwrap_or(SESSION_PAGE_DEFAULT);
    let from = query.cursor.as_deref();
    let from = from.map(|text| FleetCursor::parse(text).ok_or_else(bad_cursor)).transpose()?;
    let mut nodes = listing::nodes(fleet)?;
    if let Some(node) = &query.node {
        nodes.retain(|listed| listed.node == *node);
        if nodes.is_empty() {
            return Err(unknown_node(node));
        }
    }
    nodes.retain(|listed| {
        let is_ahead = from.as_ref().is_none_or(|from| listed.node >= from.node);
        is_ahead && listed.told_by.may_have(query.state)
    });
    let mut list = RowPage::<Row>::default();
    for (number, listed) in nodes.iter().enumerate() {
        let left = limit - list.sessions.len();
        if left == 0 || number == NODES_PER_PAGE_MAX {
            list.cursor = Some(format!("{}/", listed.node));
            break;
        }
        let from = from.as_ref().filter(|from| from.node == listed.node);
        let after = from.and_then(|from| from.after.as_ref());
        let part = of_listed::<Row>(app, fleet, listed, query, after, left).await?;
        list.sessions.extend(part.sessions.into_iter().take(left));
        if let Some(last) = part.cursor {
            list.cursor = Some(format!("{}/{last}", listed.node));
            break;
        }
    }
    Ok(list)
}

async fn of_listed<Row: ListRow>(
    app: &App,
    fleet: &FleetNode,
    listed: &ListedNode,
    query: &SessionsQuery,
    after: Option<&SessionId>,
    left: usize,
) -> Answer<RowPage<Row>> {
    match listed.told_by {
        ListSource::Own => of_node(app, query, None, after, Some(left)).await,
        ListSource::Node | ListSource::Directory(_) => {
            Ok(listing::page_of(fleet, listed, query, after, left).await?)
        }
    }
}

#[cfg(test)]
mod tests {
    use windlass_protocol::api::{Session, SessionRow};

    use super::*;

    fn id(text: &str) -> SessionId {
        SessionId::parse(text).unwrap()
    }

    fn node(text: &str) -> NodeName {
        NodeName::parse(text).unwrap()
    }

    #[test]
    fn pages_have_each_session_once_and_end() {
        check_pages::<Session>();
        check_pages::<SessionRow>();
    }

    fn check_pages<Row: ListRow>() {
        let named = |name| Session::of_directory(id(name), node("n1"), SessionState::Idle);
        let rows = || ["e", "b", "d", "a", "c"].map(|name| Row::of_session(named(name)));
        for limit in 1..=6 {
            let (mut seen, mut after) = (String::new(), None);
            loop {
                let page = page::<Row>(rows().into(), after.as_ref(), limit);
                assert!(page.sessions.len() <= limit);
                seen.extend(page.sessions.iter().map(|session| session.id().as_str()));
                match page.cursor {
                    Some(last) => after = Some(id(&last)),
                    None => break,
                }
            }
            assert_eq!(seen, "abcde", "limit {limit}");
        }
        let none = page::<Row>(Vec::new(), None, 1);
        assert!(none.sessions.is_empty() && none.cursor.is_none());
    }

    #[test]
    fn a_cursor_names_a_node_and_perhaps_a_session() {
        let cursor = |name: &str, after: Option<&str>| FleetCursor {
            node: node(name),
            after: after.map(id),
        };
        assert_eq!(FleetCursor::parse("n1/s1"), Some(cursor("n1", Some("s1"))));
        assert_eq!(FleetCursor::parse("n1/"), Some(cursor("n1", None)));
        for text in ["", "n1", "/s1", "n1/s1/s2", "n 1/s1", "n1/ s"] {
            assert_eq!(FleetCursor::parse(text), None, "{text:?}");
        }
    }
}
