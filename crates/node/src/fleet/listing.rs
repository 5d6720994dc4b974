//! The sessions of other nodes, in pages: a node that answers is asked, of any other node the directory tells the names.

use std::fmt::Write as _;
use std::time::Duration;

use tokio::time::timeout;
use windlass_fleet::directory::FoundEntry;
use windlass_lifecycle::fleet::{PeerStatus, SessionFate};
use windlass_protocol::api::{Session, SessionState, SessionsQuery};
use windlass_protocol::{ErrorCode, NodeName, SessionId, TenantName};

use super::asking::{PeerQuestion, ask};
use super::{FleetNode, view};
use crate::failure::Failure;
use crate::session_rows::{ListRow, RowPage, SESSIONS};

/// How long another node may take for a page.
const PAGE_WAIT: Duration = Duration::from_secs(2);

/// How long the directory may take for a page.
const DIRECTORY_WAIT: Duration = Duration::from_secs(4);

/// A node whose sessions are listed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ListedNode {
    pub node: NodeName,
    pub told_by: ListSource,
}

/// Who knows the sessions of a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ListSource {
    /// It is this node.
    Own,
    /// The node itself.
    Node,
    /// The directory: the node has no lease, and its sessions have this state.
    Directory(SessionState),
}

impl ListSource {
    /// Whether a list of sessions in this state has to look there.
    pub fn may_have(self, state: Option<SessionState>) -> bool {
        match (self, state) {
            (_, None) => true,
            (Self::Own | Self::Node, Some(state)) => !state.is_of_directory(),
            (Self::Directory(_), Some(state)) => state.is_of_directory(),
        }
    }
}

/// All nodes of the fleet, by name.
pub(crate) fn nodes(fleet: &FleetNode) -> Result<Vec<ListedNode>, Failure> {
    if fleet.joined().is_none() {
        return Err(fleet.not_joined());
    }
    let others = view::others(fleet).into_iter().map(|other| ListedNode {
        told_by: match other.status {
            PeerStatus::Alive => ListSource::Node,
            PeerStatus::Unreachable => ListSource::Directory(SessionState::Unreachable),
            PeerStatus::Lost(_) => ListSource::Directory(SessionState::Lost),
        },
        node: other.node,
    });
    let mut nodes: Vec<ListedNode> = others.collect();
    nodes.push(ListedNode { node: fleet.name().clone(), told_by: ListSource::Own });
    nodes.sort_by(|a, b| a.node.cmp(&b.node));
    Ok(nodes)
}

/// A page of a node's sessions, from the node itself or, if it does not answer, from the directory. The page's `cursor`
/// is the id of its last session, if there are more.
pub(crate) async fn page_of<Row: ListRow>(
    fleet: &FleetNode,
    listed: &ListedNode,
    query: &SessionsQuery,
    after: Option<&SessionId>,
    limit: usize,
) -> Result<RowPage<Row>, Failure> {
    if listed.told_by == ListSource::Node {
        match ask_page(fleet, &listed.node, query, after, limit).await {
            Err(failure) if failure.code == ErrorCode::NodeUnreachable => {
                tracing::debug!(node = %listed.node, why = %failure.message, "the directory lists its sessions");
            }
            answered => {
                let mut list: RowPage<Row> = answered?;
                keep_own(&mut list, query.tenant.as_ref());
                return Ok(list);
            }
        }
    }
    let page = from_directory::<Row>(fleet, &listed.node, query.tenant.as_ref(), after, limit);
    let mut list = match timeout(DIRECTORY_WAIT, page).await {
        Ok(list) => list?,
        Err(_) => return Err(no_directory(&listed.node, "the fleet's store does not answer")),
    };
    list.sessions.retain(|row| query.state.is_none_or(|state| row.state() == state));
    Ok(list)
}

/// A page from the node itself. A node of an earlier release has no overview: its whole sessions become rows.
async fn ask_page<Row: ListRow>(
    fleet: &FleetNode,
    node: &NodeName,
    query: &SessionsQuery,
    after: Option<&SessionId>,
    limit: usize,
) -> Result<RowPage<Row>, Failure> {
    let question = |list| PeerQuestion::get(target(list, query, after, limit), PAGE_WAIT);
    match ask::<RowPage<Row>>(fleet, node, question(Row::LIST)).await {
        // A path that a node does not know is closed to a reader.
        Err(Failure { code: ErrorCode::NotFound | ErrorCode::Forbidden, .. })
            if Row::LIST != SESSIONS =>
        {
            let list = ask::<RowPage<Session>>(fleet, node, question(SESSIONS)).await?;
            let sessions = list.sessions.into_iter().map(Row::of_session).collect();
            Ok(RowPage { sessions, cursor: list.cursor })
        }
        answered => answered,
    }
}

/// Leaves out what is not the tenant's. A node of an earlier release lists all its sessions, and none is a tenant's. A
/// cursor would tell the name of one.
fn keep_own<Row: ListRow>(list: &mut RowPage<Row>, tenant: Option<&TenantName>) {
    if tenant.is_none() {
        return;
    }
    list.sessions.retain(|row| row.id().is_of(tenant));
    let is_own = |last: &String| SessionId::parse(last.as_str()).is_ok_and(|id| id.is_of(tenant));
    list.cursor = list.cursor.take().filter(is_own);
}

/// Path and query of a node's own page.
fn target(list: &str, query: &SessionsQuery, after: Option<&SessionId>, limit: usize) -> String {
    let mut target = format!("{list}?limit={limit}");
    if query.all {
        target += "&all=true";
    }
    // Ids and states need no escaping. Writing to a string cannot fail.
    if let Some(state) = query.state {
        let _ = write!(target, "&state={}", state.as_str());
    }
    if let Some(tenant) = &query.tenant {
        let _ = write!(target, "&tenant={tenant}");
    }
    if let Some(after) = after {
        let _ = write!(target, "&cursor={after}");
    }
    target
}

async fn from_directory<Row: ListRow>(
    fleet: &FleetNode,
    node: &NodeName,
    tenant: Option<&TenantName>,
    after: Option<&SessionId>,
    limit: usize,
) -> Result<RowPage<Row>, Failure> {
    let joined = fleet.joined().ok_or_else(|| fleet.not_joined())?;
    let page = joined.directory.sessions_of(node, tenant, after, limit).await;
    let page = page.map_err(|error| no_directory(node, &error.to_string()))?;
    let sessions = page.entries.into_iter().filter_map(|FoundEntry { entry, fate, .. }| {
        let state = match fate {
            SessionFate::Live => SessionState::Unreachable,
            SessionFate::Lost => SessionState::Lost,
            SessionFate::Ended => return None,
        };
        Some(Row::of_session(Session::of_directory(entry.session, entry.owner, state)))
    });
    Ok(RowPage {
        sessions: sessions.collect(),
        cursor: page.more_after.map(|last| last.to_string()),
    })
}

fn no_directory(node: &NodeName, why: &str) -> Failure {
    let message = format!("the sessions of node {node} cannot be listed: {why}");
    Failure::new(ErrorCode::FleetUnavailable, message)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_is_asked_for_what_the_client_wants() {
        let after = SessionId::parse("s7").unwrap();
        let query = SessionsQuery {
            all: true,
            fleet: true,
            state: Some(SessionState::AwaitingInput),
            node: NodeName::parse("n2").ok(),
            tenant: TenantName::parse("acme").ok(),
            limit: Some(9),
            cursor: Some("n2/s3".to_owned()),
        };
        assert_eq!(
            target("/v1/overview", &query, Some(&after), 4),
            "/v1/overview?limit=4&all=true&state=awaiting_input&tenant=acme&cursor=s7"
        );
        let all = target(SESSIONS, &SessionsQuery::default(), None, 100);
        assert_eq!(all, "/v1/sessions?limit=100");
    }

    #[test]
    fn a_page_of_an_earlier_release_tells_a_tenant_nothing_of_others() {
        let acme = TenantName::parse("acme").ok();
        for (tenant, ids, cursor, expected) in [
            (None, vec!["a", "b"], Some("b"), (2, Some("b"))),
            (acme.as_ref(), vec!["a", "b"], Some("b"), (0, None)),
            (acme.as_ref(), vec!["a@acme", "b@other"], Some("b@other"), (1, None)),
            (acme.as_ref(), vec!["a@acme", "b@acme"], Some("b@acme"), (2, Some("b@acme"))),
            (acme.as_ref(), vec!["a@acme"], None, (1, None)),
        ] {
            let session = |id: &str| {
                let (id, node) = (SessionId::parse(id).unwrap(), NodeName::parse("n1").unwrap());
                Session::of_directory(id, node, SessionState::Idle)
            };
            let sessions: Vec<Session> = ids.into_iter().map(session).collect();
            let mut list = RowPage { sessions, cursor: cursor.map(str::to_owned) };
            keep_own(&mut list, tenant);
            assert_eq!((list.sessions.len(), list.cursor.as_deref()), expected, "{tenant:?}");
        }
    }

    #[test]
    fn only_sources_that_can_have_a_state_are_asked() {
        let directory = ListSource::Directory(SessionState::Lost);
        for (source, state, expected) in [
            (ListSource::Node, None, true),
            (ListSource::Node, Some(SessionState::Idle), true),
            (ListSource::Own, Some(SessionState::Lost), false),
            (directory, Some(SessionState::Idle), false),
            (directory, Some(SessionState::Lost), true),
            (directory, Some(SessionState::Unreachable), true),
            (directory, None, true),
        ] {
            assert_eq!(source.may_have(state), expected, "{source:?} {state:?}");
        }
    }
}
