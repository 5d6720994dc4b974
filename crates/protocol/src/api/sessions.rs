//! Lists of sessions, of one node or of a whole fleet, and the states of sessions in them.

use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use super::Session;
use crate::{NodeName, Seq, SessionId, TenantName};

/// Maximum number of sessions in one page.
pub const SESSION_PAGE_MAX: usize = 500;

/// Number of sessions in a page if the request names none.
pub const SESSION_PAGE_DEFAULT: usize = 100;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum SessionState {
    Starting,
    Idle,
    Busy,
    AwaitingInput,
    Interrupting,
    Restarting,
    Ended,
    /// The session's node cannot be reached. The session may come back. Only in a list of a whole fleet.
    Unreachable,
    /// The session is lost with its node. Only in a list of a whole fleet.
    Lost,
}

impl SessionState {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Starting => "starting",
            Self::Idle => "idle",
            Self::Busy => "busy",
            Self::AwaitingInput => "awaiting_input",
            Self::Interrupting => "interrupting",
            Self::Restarting => "restarting",
            Self::Ended => "ended",
            Self::Unreachable => "unreachable",
            Self::Lost => "lost",
        }
    }

    pub fn parse(text: &str) -> Option<Self> {
        let all = [
            Self::Starting,
            Self::Idle,
            Self::Busy,
            Self::AwaitingInput,
            Self::Interrupting,
            Self::Restarting,
            Self::Ended,
            Self::Unreachable,
            Self::Lost,
        ];
        all.into_iter().find(|state| state.as_str() == text)
    }

    /// Whether only the directory of the fleet knows the session, and no node answers for it.
    pub fn is_of_directory(self) -> bool {
        matches!(self, Self::Unreachable | Self::Lost)
    }
}

/// Which sessions to list.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub struct SessionsQuery {
    /// Ended sessions too, newest first.
    #[serde(default)]
    pub all: bool,
    /// The sessions of all nodes of the fleet, in pages: by node, then by session.
    #[serde(default)]
    pub fleet: bool,
    /// Only sessions in this state.
    #[serde(default)]
    #[param(value_type = Option<String>)]
    pub state: Option<SessionState>,
    /// Only sessions of this node. Needs `fleet`.
    #[serde(default)]
    #[param(value_type = Option<String>)]
    pub node: Option<NodeName>,
    /// Only sessions of this tenant. A client whose token has a tenant sees no others.
    #[serde(default)]
    #[param(value_type = Option<String>)]
    pub tenant: Option<TenantName>,
    /// Maximum number of sessions in the reply, at most 500. With it, or with `cursor`, the sessions come by id. Default:
    /// 100 with `fleet`, else all.
    #[serde(default)]
    pub limit: Option<usize>,
    /// The `cursor` of the reply before this page.
    #[serde(default)]
    pub cursor: Option<String>,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct SessionList {
    pub sessions: Vec<Session>,
    /// Where the next page begins. Absent on the last page. A page can have fewer sessions than the request allows, also
    /// none, and still not be the last one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cursor: Option<String>,
}

impl Session {
    /// A session of which only its entry in the fleet's directory is known.
    pub fn of_directory(id: SessionId, node: NodeName, state: SessionState) -> Self {
        Self {
            tenant: id.tenant(),
            id,
            state,
            node: Some(node),
            worker: String::new(),
            kind: String::new(),
            workspace: String::new(),
            environment: None,
            terminal: None,
            copied_from: None,
            created_at_ms: 0,
            turn: None,
            waiting: 0,
            turns: 0,
            seq: Seq(0),
            restarts: 0,
            keeper_pid: None,
            worker_pid: None,
            started_by: None,
            start_figures: None,
            capabilities: None,
            hold: None,
            policy: None,
            client: None,
            owner: None,
            forked_from: None,
            parent: None,
            resume: None,
            confinement: None,
            output_bytes: 0,
            output_dropped_bytes: 0,
            messages_dropped: 0,
            idle_s: None,
            deadline_ms: None,
            ended: None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_state_is_written_as_it_is_read() {
        for text in ["starting", "idle", "awaiting_input", "ended", "unreachable", "lost"] {
            let state = SessionState::parse(text).unwrap();
            assert_eq!(serde_json::to_value(state).unwrap(), text);
        }
        assert_eq!(SessionState::parse("Idle"), None);
    }

    #[test]
    fn a_session_of_the_directory_can_be_read_by_a_client() {
        let id = SessionId::parse("s1").unwrap();
        let node = NodeName::parse("n1").unwrap();
        let session = Session::of_directory(id, node, SessionState::Lost);
        let text = serde_json::to_string(&session).unwrap();
        assert_eq!(serde_json::from_str::<Session>(&text).unwrap(), session);
    }
}
