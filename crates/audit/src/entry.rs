//! What the node records: one act, who did it, and details. Building an entry formats and hashes nothing: the writer
//! thread does that.

use std::net::SocketAddr;
use std::sync::Arc;

use bytes::Bytes;
use serde::Serialize;
use serde_json::{Value, json};

/// Maximum bytes of a text in a record.
pub(crate) const TEXT_BYTES_MAX: usize = 1024;

/// Maximum size of the details of a record. Larger ones are replaced by their size.
pub(crate) const DETAILS_BYTES_MAX: usize = 32 * 1024;

/// One act.
#[derive(Debug, Clone)]
pub struct AuditEntry {
    /// Milliseconds since the Unix epoch.
    pub at_ms: u64,
    pub who: Arc<AuditActor>,
    /// What was done, as `docs/audit-log.md` lists it: `session.create`.
    pub did: &'static str,
    pub session: Option<String>,
    pub what: AuditDetails,
}

/// Who did it. The writer bounds the texts and replaces their control characters.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct AuditActor {
    /// Where the request arrived: `socket`, `tcp`, `console` or `peers`; `node` for decisions of the node.
    pub door: &'static str,
    /// The user and the process at the other end of the unix socket.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub uid: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pid: Option<i32>,
    /// The other end of a TCP connection.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub address: Option<SocketAddr>,
    /// The name of the token; `node` for the node's own.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub token: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub scope: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tenant: Option<String>,
    /// The node of the fleet that passed the request on.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub node: Option<String>,
    /// What the client says it is: its `User-Agent`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub client: Option<String>,
}

impl AuditActor {
    /// The node itself.
    pub fn node() -> Arc<Self> {
        Arc::new(Self { door: "node", ..Self::default() })
    }
}

/// The details of an act, in order.
#[derive(Debug, Clone, Default)]
pub struct AuditDetails(pub(crate) Vec<(&'static str, AuditDetail)>);

#[derive(Debug, Clone)]
pub enum AuditDetail {
    Text(String),
    Number(u64),
    Flag(bool),
    /// A value of bounded size.
    Json(Value),
    /// Text that must not be in the log: the record has its length and its hash.
    Code(Bytes),
    /// The length and the hash of such a text.
    HashedCode {
        bytes: usize,
        sha256: String,
    },
}

impl AuditDetails {
    #[must_use]
    pub fn with(mut self, name: &'static str, value: impl Into<AuditDetail>) -> Self {
        self.add(name, value);
        self
    }

    pub fn add(&mut self, name: &'static str, value: impl Into<AuditDetail>) {
        self.0.push((name, bounded(value.into())));
    }
}

/// The detail in a bounded size: thousands of records may wait for the writer.
fn bounded(detail: AuditDetail) -> AuditDetail {
    match detail {
        AuditDetail::Text(text) => AuditDetail::Text(shortened(text)),
        AuditDetail::Json(value) => match value_bytes(&value) {
            bytes if bytes > DETAILS_BYTES_MAX => {
                AuditDetail::Json(json!({"left_out_bytes": bytes}))
            }
            _ => AuditDetail::Json(value),
        },
        other => other,
    }
}

/// About the size of a value as JSON.
fn value_bytes(value: &Value) -> usize {
    match value {
        Value::Null | Value::Bool(_) | Value::Number(_) => 8,
        Value::String(text) => text.len().saturating_add(2),
        Value::Array(values) => values.iter().map(value_bytes).fold(2, usize::saturating_add),
        Value::Object(members) => members
            .iter()
            .map(|(name, value)| name.len().saturating_add(4).saturating_add(value_bytes(value)))
            .fold(2, usize::saturating_add),
    }
}

/// A text, cut to the size that a record may have.
pub fn shortened(mut text: String) -> String {
    if text.len() > TEXT_BYTES_MAX {
        text.truncate(text.floor_char_boundary(TEXT_BYTES_MAX));
        text.push('…');
        text.shrink_to_fit();
    }
    text
}

impl From<String> for AuditDetail {
    fn from(text: String) -> Self {
        Self::Text(text)
    }
}

impl From<&str> for AuditDetail {
    fn from(text: &str) -> Self {
        Self::Text(text.to_owned())
    }
}

impl From<u64> for AuditDetail {
    fn from(number: u64) -> Self {
        Self::Number(number)
    }
}

impl From<bool> for AuditDetail {
    fn from(flag: bool) -> Self {
        Self::Flag(flag)
    }
}

impl From<Value> for AuditDetail {
    fn from(value: Value) -> Self {
        Self::Json(value)
    }
}
