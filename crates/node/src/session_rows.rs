//! The rows of lists of sessions: whole sessions, or the short rows of the overview. A list is made in the same way for
//! each kind of row.

use serde::Deserialize;
use serde::de::DeserializeOwned;
use windlass_protocol::api::{Session, SessionRow, SessionState};
use windlass_protocol::{NodeName, SessionId};

use crate::session::SessionHandle;

/// Where whole sessions are listed.
pub(crate) const SESSIONS: &str = "/v1/sessions";

/// Where sessions are listed as short rows.
pub(crate) const OVERVIEW: &str = "/v1/overview";

/// Some rows, in the form in which each list has them.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub(crate) struct RowPage<Row> {
    pub sessions: Vec<Row>,
    /// Where the next page begins.
    #[serde(default)]
    pub cursor: Option<String>,
}

impl<Row> Default for RowPage<Row> {
    fn default() -> Self {
        Self { sessions: Vec::new(), cursor: None }
    }
}

/// A row in a list of sessions.
pub(crate) trait ListRow: DeserializeOwned + Send {
    /// The path at which a node lists such rows.
    const LIST: &'static str;

    fn of_live(handle: &SessionHandle) -> Self;

    fn of_session(session: Session) -> Self;

    fn id(&self) -> &SessionId;

    fn state(&self) -> SessionState;

    fn created_at_ms(&self) -> u64;

    fn parent(&self) -> Option<&SessionId>;

    /// Names the node that has the session.
    fn set_node(&mut self, node: Option<NodeName>);
}

impl ListRow for Session {
    const LIST: &'static str = SESSIONS;

    fn of_live(handle: &SessionHandle) -> Self {
        handle.info()
    }

    fn of_session(session: Session) -> Self {
        session
    }

    fn id(&self) -> &SessionId {
        &self.id
    }

    fn state(&self) -> SessionState {
        self.state
    }

    fn created_at_ms(&self) -> u64 {
        self.created_at_ms
    }

    fn parent(&self) -> Option<&SessionId> {
        self.parent.as_ref()
    }

    fn set_node(&mut self, node: Option<NodeName>) {
        self.node = node;
    }
}

impl ListRow for SessionRow {
    const LIST: &'static str = OVERVIEW;

    fn of_live(handle: &SessionHandle) -> Self {
        handle.row()
    }

    fn of_session(session: Session) -> Self {
        Self::from(&session)
    }

    fn id(&self) -> &SessionId {
        &self.id
    }

    fn state(&self) -> SessionState {
        self.state
    }

    fn created_at_ms(&self) -> u64 {
        self.created_at_ms
    }

    fn parent(&self) -> Option<&SessionId> {
        self.parent.as_ref()
    }

    fn set_node(&mut self, node: Option<NodeName>) {
        self.node = node;
    }
}
