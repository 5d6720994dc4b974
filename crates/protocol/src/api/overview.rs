//! The overview of sessions: one short row for each, with what its processes use. Has no policy and no confinement,
//! which are most of the bytes of a whole [`Session`].

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::{Session, SessionState, is_false, is_zero};
use crate::{ClientName, NodeName, Owner, SessionId, TenantName, TurnNo};

/// Some sessions as short rows, in the order of the list of sessions.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct SessionOverview {
    pub sessions: Vec<SessionRow>,
    /// Where the next page begins. Absent on the last page. A page can have fewer sessions than the request allows, also
    /// none, and still not be the last one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cursor: Option<String>,
}

/// One session in the overview. Figures of use are absent for an ended session, and if no cgroup counts them.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct SessionRow {
    pub id: SessionId,
    /// The tenant that the session belongs to. It is also a part of the id.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tenant: Option<TenantName>,
    /// The node that has the session. Absent without a fleet.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node: Option<NodeName>,
    /// The kind of worker. Absent if only the fleet's directory knows the session.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub kind: String,
    pub state: SessionState,
    /// The directory that the code works in. Absent if only the fleet's directory knows the session.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub workspace: String,
    /// The package environment that the session uses.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub environment: Option<String>,
    /// The program that created the session, by the name that it gives itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub client: Option<ClientName>,
    /// The owner of the session.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub owner: Option<Owner>,
    /// The session that this session was forked from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub forked_from: Option<SessionId>,
    /// The session whose child this session is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parent: Option<SessionId>,
    /// Absent if only the fleet's directory knows the session.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub created_at_ms: u64,
    /// The idle timeout that the session was created with. 0: none. Absent: the node's default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub idle_s: Option<u64>,
    /// The number of the running turn.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub turn: Option<TurnNo>,
    /// Number of turns that wait behind the running one. Absent: 0.
    #[serde(default, skip_serializing_if = "is_none_waiting")]
    pub waiting: usize,
    /// Number of turns accepted so far.
    pub turns: u64,
    /// Memory of the session's processes, with the files that the kernel caches for them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_bytes: Option<u64>,
    /// CPU time of all processes that the session ever had, over its whole life.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpu_ms: Option<u64>,
    /// When `memory_bytes` and `cpu_ms` were read, by the clock of the session's node, which reads them at most once a
    /// second. Processors in use: the difference of two `cpu_ms` divided by that of their `measured_at_ms`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub measured_at_ms: Option<u64>,
    /// Output bytes produced so far.
    pub output_bytes: u64,
    /// Whether the running turn waits for input. Absent: it does not.
    #[serde(default, skip_serializing_if = "is_false")]
    pub waits_for_input: bool,
}

fn is_none_waiting(waiting: &usize) -> bool {
    *waiting == 0
}

impl From<&Session> for SessionRow {
    /// The row of a session, without figures of use. The number of a running turn is known if the client chose no id for
    /// the turn.
    fn from(session: &Session) -> Self {
        let number = session.turn.as_ref().and_then(|turn| turn.as_str().parse().ok());
        Self {
            id: session.id.clone(),
            tenant: session.tenant.clone(),
            node: session.node.clone(),
            kind: session.kind.clone(),
            state: session.state,
            workspace: session.workspace.clone(),
            environment: session.environment.clone(),
            client: session.client.clone(),
            owner: session.owner.clone(),
            forked_from: session.forked_from.clone(),
            parent: session.parent.clone(),
            created_at_ms: session.created_at_ms,
            idle_s: session.idle_s,
            turn: number.map(TurnNo),
            waiting: session.waiting,
            turns: session.turns,
            memory_bytes: None,
            cpu_ms: None,
            measured_at_ms: None,
            output_bytes: session.output_bytes,
            waits_for_input: session.state == SessionState::AwaitingInput,
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn session(turn: Option<&str>) -> Session {
        let text = json!({
            "id": "s1@acme", "tenant": "acme", "state": "awaiting_input", "worker": "python 3.13",
            "kind": "python", "workspace": "/srv/project", "created_at_ms": 7, "turn": turn,
            "waiting": 2, "turns": 5, "seq": 9, "restarts": 0, "output_bytes": 4,
            "output_dropped_bytes": 0, "messages_dropped": 0, "client": "claude-code",
        });
        serde_json::from_value(text).unwrap()
    }

    #[test]
    fn a_row_has_what_the_session_has() {
        for (turn, number) in [(Some("3"), Some(TurnNo(3))), (Some("mine"), None), (None, None)] {
            assert_eq!(SessionRow::from(&session(turn)).turn, number, "{turn:?}");
        }
        let row = serde_json::to_value(SessionRow::from(&session(Some("3")))).unwrap();
        let expected = json!({
            "id": "s1@acme", "tenant": "acme", "kind": "python", "state": "awaiting_input",
            "workspace": "/srv/project", "client": "claude-code", "created_at_ms": 7, "turn": 3,
            "waiting": 2, "turns": 5, "output_bytes": 4, "waits_for_input": true,
        });
        assert_eq!(row, expected);
    }

    #[test]
    fn a_row_is_short_and_is_read_as_it_was_written() {
        let mut row = SessionRow::from(&session(Some("123")));
        row.workspace = "/srv/somebody/projects/a-project-with-a-name".to_owned();
        (row.memory_bytes, row.cpu_ms) = (Some(123_456_789_012), Some(1_234_567_890));
        (row.created_at_ms, row.measured_at_ms) = (1_767_225_600_000, Some(1_767_225_600_000));
        let text = serde_json::to_string(&row).unwrap();
        assert!(text.len() <= 400, "{} bytes: {text}", text.len());
        assert_eq!(serde_json::from_str::<SessionRow>(&text).unwrap(), row);
        let (id, node) = (SessionId::parse("s1").unwrap(), NodeName::parse("n1").unwrap());
        let lost = SessionRow::from(&Session::of_directory(id, node, SessionState::Lost));
        let text = serde_json::to_string(&lost).unwrap();
        let expected = r#"{"id":"s1","node":"n1","state":"lost","turns":0,"output_bytes":0}"#;
        assert_eq!(text, expected);
        assert_eq!(serde_json::from_str::<SessionRow>(&text).unwrap(), lost);
    }
}
