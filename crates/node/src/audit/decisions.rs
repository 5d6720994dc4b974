//! What the node decides itself, as records: egress, uses of secrets, changes of tokens, the ends of sessions, and the
//! permissions that agents report.

use std::sync::Arc;

use serde_json::{Value, json};
use windlass_audit::{AuditActor, AuditDetails, AuditEntry, AuditLog};
use windlass_client::NamedToken;
use windlass_egress::Ledger;
use windlass_journal::NewEvent;
use windlass_protocol::agent::{self, AgentEvent, AgentEventKind};
use windlass_protocol::api::EgressDecision;
use windlass_protocol::event::EventKind;
use windlass_protocol::kinds::agent::is_agent;
use windlass_protocol::policy::SecretName;
use windlass_protocol::{SessionId, TenantName, TurnNo};

use super::{NodeAudit, decision};
use crate::clock::now_ms;

/// Maximum number of decisions about permissions that are recorded for a session. A session reports them itself, so it
/// could flood the log.
const PERMISSIONS_MAX: u32 = 1000;

/// Maximum size of a display that is searched for such a decision.
const PERMISSION_BYTES_MAX: usize = 16 * 1024;

/// Maximum number of destinations in the summary of a session's egress.
const TRAFFIC_ROWS_MAX: usize = 64;

/// What is recorded of one session, besides the requests of clients.
#[derive(Debug, Default)]
pub(crate) struct SessionAudit {
    ledger: Option<Arc<Ledger>>,
    /// How many decisions about permissions are still recorded: none of a session that is no agent.
    permissions_left: u32,
}

impl SessionAudit {
    pub fn new(worker_kind: &str, ledger: Option<Arc<Ledger>>) -> Self {
        let permissions_left = if is_agent(worker_kind) { PERMISSIONS_MAX } else { 0 };
        Self { ledger, permissions_left }
    }

    /// Records the decisions among new events of the session.
    pub fn note(&mut self, audit: &NodeAudit, session: &SessionId, events: &[NewEvent]) {
        for event in events {
            match &event.kind {
                EventKind::Egress { host, port, allowed, reason } => {
                    let what = AuditDetails::default()
                        .with("host", host.as_str())
                        .with("port", u64::from(*port))
                        .with("allowed", *allowed)
                        .with("rule", reason.as_str());
                    audit.decided("egress.decide", Some(session), with_turn(what, event.turn));
                }
                EventKind::SessionEnded { reason, message, .. } => {
                    self.note_traffic(audit, session);
                    let mut what = AuditDetails::default().with("reason", json!(reason));
                    if let Some(message) = message {
                        what.add("message", message.as_str());
                    }
                    audit.decided("session.end", Some(session), what);
                }
                EventKind::Display { mime, more: false, .. } if mime == agent::MIME => {
                    self.note_permission(audit, session, event);
                }
                _ => {}
            }
        }
    }

    /// Records where a session's bytes went, with the counts of its decisions.
    fn note_traffic(&self, audit: &NodeAudit, session: &SessionId) {
        let Some(ledger) = &self.ledger else { return };
        let log = ledger.log();
        if log.decisions.is_empty() {
            return;
        }
        let rows: Vec<Value> = log.decisions.iter().take(TRAFFIC_ROWS_MAX).map(row).collect();
        let mut what = AuditDetails::default().with("decisions", Value::from(rows));
        let more = log.decisions.len().saturating_sub(TRAFFIC_ROWS_MAX);
        if more > 0 {
            what.add("more", u64::try_from(more).unwrap_or(u64::MAX));
        }
        audit.decided("egress.summary", Some(session), what);
    }

    /// Records who decided about a permission that an agent asked for. The session says it itself.
    fn note_permission(&mut self, audit: &NodeAudit, session: &SessionId, event: &NewEvent) {
        if self.permissions_left == 0 || event.body.len() > PERMISSION_BYTES_MAX {
            return;
        }
        let Ok(AgentEvent { kind: AgentEventKind::Decision { id, option, allowed, by }, .. }) =
            serde_json::from_slice::<AgentEvent>(&event.body)
        else {
            return;
        };
        self.permissions_left -= 1;
        let mut what = AuditDetails::default()
            .with("permission", id)
            .with("allowed", allowed)
            .with("by", json!(by));
        if let Some(option) = option {
            what.add("option", option);
        }
        let mut told = decision("permission.decide", Some(session), with_turn(what, event.turn));
        told.who = Arc::new(AuditActor { door: "session", ..AuditActor::default() });
        audit.log.record(told);
    }
}

fn with_turn(what: AuditDetails, turn: Option<TurnNo>) -> AuditDetails {
    match turn {
        Some(turn) => what.with("turn", turn.0),
        None => what,
    }
}

fn row(decision: &EgressDecision) -> Value {
    let EgressDecision { host, port, allowed, count, sent_bytes, received_bytes, .. } = decision;
    json!({
        "host": host,
        "port": port,
        "allowed": allowed,
        "count": count,
        "sent_bytes": sent_bytes,
        "received_bytes": received_bytes,
    })
}

/// The first time that a value of a secret was sent to a host for a family of sessions.
pub(crate) fn of_use_of_secret(
    family: &SessionId,
    name: &SecretName,
    host: &str,
    port: u16,
) -> AuditEntry {
    let what = AuditDetails::default()
        .with("name", name.to_string())
        .with("host", host)
        .with("port", u64::from(port));
    decision("secret.use", Some(family), what)
}

/// Records which named tokens the file of the tokens has gained and lost.
pub(crate) fn note_token_changes(log: &AuditLog, before: &[NamedToken], after: &[NamedToken]) {
    let has = |all: &[NamedToken], one: &NamedToken| all.iter().any(|other| other == one);
    let removed = before.iter().filter(|one| !has(after, one)).map(|one| ("token.remove", one));
    let created = after.iter().filter(|one| !has(before, one)).map(|one| ("token.create", one));
    for (did, token) in removed.chain(created) {
        let tenant = token.tenant.as_ref().map(TenantName::to_string);
        let mut what = AuditDetails::default()
            .with("name", token.name.to_string())
            .with("scope", token.scope.as_str());
        if let Some(tenant) = tenant {
            what.add("tenant", tenant);
        }
        log.record(AuditEntry {
            at_ms: now_ms(),
            who: AuditActor::node(),
            did,
            session: None,
            what,
        });
    }
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;
    use std::time::Duration;

    use bytes::Bytes;
    use windlass_audit::{AuditFilter, AuditOptions, AuditRecord, find};

    use super::*;

    fn event(kind: EventKind, body: &str) -> NewEvent {
        let body = Bytes::copy_from_slice(body.as_bytes());
        NewEvent { at_ms: 1, turn: Some(TurnNo(3)), link: None, kind, body }
    }

    /// What is recorded of the events of a session of this kind.
    fn recorded(kind: &str, events: &[NewEvent]) -> Vec<AuditRecord> {
        let dir = tempfile::tempdir().unwrap();
        let path: PathBuf = dir.path().join("audit");
        let audit = NodeAudit::new(AuditLog::start(path.clone(), AuditOptions::default()));
        let session = SessionId::parse("s1").unwrap();
        SessionAudit::new(kind, None).note(&audit, &session, events);
        audit.log.finish(Duration::from_secs(30));
        find(&path, &AuditFilter { limit: usize::MAX, ..AuditFilter::default() }).unwrap().records
    }

    fn decided(text: &str) -> NewEvent {
        let kind = EventKind::Display {
            mime: agent::MIME.to_owned(),
            id: None,
            update: false,
            more: false,
        };
        event(kind, text)
    }

    #[test]
    fn decisions_of_a_session_become_records() {
        let text = r#"{"type":"decision","id":"p1","option":"yes","allowed":true,"by":"client"}"#;
        let egress = EventKind::Egress {
            host: "a.example".to_owned(),
            port: 443,
            allowed: false,
            reason: "no rule".to_owned(),
        };
        let events = [
            event(egress, ""),
            decided(text),
            decided(r#"{"type":"message","text":"x"}"#),
            decided("not JSON"),
        ];
        let records = recorded("agent:codex", &events);
        let acts: Vec<&str> = records.iter().map(|record| record.did.as_str()).collect();
        assert_eq!(acts, ["egress.decide", "permission.decide"]);
        assert_eq!(records[0].what["host"], "a.example");
        assert_eq!(
            (&records[1].what["by"], &records[1].what["turn"]),
            (&json!("client"), &json!(3))
        );
        assert_eq!(records[1].who["door"], "session");
        // The code of another session could print the same.
        assert!(recorded("python", &[decided(text)]).is_empty());
    }

    #[test]
    fn a_session_cannot_flood_the_log_with_decisions() {
        let text = r#"{"type":"decision","id":"p1","allowed":false,"by":"policy"}"#;
        let events: Vec<_> = (0..PERMISSIONS_MAX + 5).map(|_| decided(text)).collect();
        assert_eq!(
            recorded("agent:codex", &events).len(),
            usize::try_from(PERMISSIONS_MAX).unwrap()
        );
    }
}
