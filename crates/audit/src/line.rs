//! The form of a record on the disk, and the chain of hashes. Pure.
//!
//! A line ends in `,"hash":"HASH"}`. HASH is the SHA-256 of the line's bytes without the member `hash` and the newline:
//! what stands before `,"hash":`, and `}`. `prev` is the hash of the line before.

use std::borrow::Cow;

use ring::digest;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::entry::{
    AuditActor, AuditDetail, AuditDetails, AuditEntry, DETAILS_BYTES_MAX, TEXT_BYTES_MAX,
};

/// The version of the format.
pub(crate) const VERSION: u32 = 1;

/// The `prev` of the first record.
const NO_HASH: &str = "0000000000000000000000000000000000000000000000000000000000000000";

/// Length of a hash: hexadecimal digits.
const HASH_LETTERS: usize = 64;

/// What stands around the hash at the end of a line.
const BEFORE_HASH: &str = ",\"hash\":\"";
const AFTER_HASH: &str = "\"}";

/// Maximum bytes of what a client says it is.
const CLIENT_BYTES_MAX: usize = 200;

/// Maximum size of a line that a reader accepts. The node writes shorter ones.
pub(crate) const LINE_BYTES_MAX: usize = 64 * 1024;

/// A record as a reader gets it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct AuditRecord {
    pub v: u32,
    pub seq: u64,
    pub at_ms: u64,
    pub who: Value,
    pub did: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub session: Option<String>,
    #[serde(default)]
    pub what: Map<String, Value>,
    pub prev: String,
    pub hash: String,
}

/// The last record of a chain.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ChainHead {
    /// 0 before the first record.
    pub seq: u64,
    pub hash: String,
}

impl ChainHead {
    pub(crate) fn start() -> Self {
        Self { seq: 0, hash: NO_HASH.to_owned() }
    }
}

/// What is wrong with a line by itself.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum LineFault {
    #[error("the line is not a record")]
    Form,
    #[error("the line has version {0}, and this release knows version {VERSION}")]
    Version(u32),
    #[error("the line was changed: its hash is {found}, and its content has the hash {computed}")]
    Hash { found: String, computed: String },
}

/// Appends the line of an entry. Returns the chain's new head.
pub(crate) fn append(text: &mut String, head: &ChainHead, entry: &AuditEntry) -> ChainHead {
    let seq = head.seq.saturating_add(1);
    let begin = text.len();
    let who = actor_json(&entry.who);
    let session = entry.session.as_deref().map(json_text);
    let session = session.map(|id| format!(",\"session\":{id}")).unwrap_or_default();
    let AuditEntry { at_ms, did, .. } = entry;
    let (did, what, prev) = (json_text(did), details_json(&entry.what), &head.hash);
    text.push_str(&format!(
        "{{\"v\":{VERSION},\"seq\":{seq},\"at_ms\":{at_ms},\"who\":{who},\"did\":{did}{session},\"what\":{what},\
         \"prev\":\"{prev}\"}}"
    ));
    let hash = sha256(&text.as_bytes()[begin..]);
    text.pop();
    for part in [BEFORE_HASH, &hash, AFTER_HASH, "\n"] {
        text.push_str(part);
    }
    ChainHead { seq, hash }
}

/// Reads a line, without its newline, and checks its hash.
pub(crate) fn read(line: &[u8]) -> Result<AuditRecord, LineFault> {
    let text = std::str::from_utf8(line).map_err(|_| LineFault::Form)?;
    let rest = text.strip_suffix(AFTER_HASH).ok_or(LineFault::Form)?;
    let at = rest.len().checked_sub(HASH_LETTERS).ok_or(LineFault::Form)?;
    let (rest, hash) = rest.split_at_checked(at).ok_or(LineFault::Form)?;
    let hashed = rest.strip_suffix(BEFORE_HASH).ok_or(LineFault::Form)?;
    let computed = sha256(format!("{hashed}}}").as_bytes());
    if hash != computed {
        return Err(LineFault::Hash { found: clean(hash, HASH_LETTERS).into_owned(), computed });
    }
    let record: AuditRecord = serde_json::from_str(text).map_err(|_| LineFault::Form)?;
    // Of two members of a name, a reader takes the last one.
    if record.hash != computed {
        return Err(LineFault::Form);
    }
    if record.v != VERSION { Err(LineFault::Version(record.v)) } else { Ok(record) }
}

/// The SHA-256 of bytes, as hexadecimal digits.
pub(crate) fn sha256(bytes: &[u8]) -> String {
    let hash = digest::digest(&digest::SHA256, bytes);
    hash.as_ref().iter().map(|byte| format!("{byte:02x}")).collect()
}

fn actor_json(who: &AuditActor) -> String {
    let short = |text: &Option<String>| {
        text.as_deref().map(|text| clean(text, CLIENT_BYTES_MAX).into_owned())
    };
    let who = AuditActor {
        token: short(&who.token),
        tenant: short(&who.tenant),
        node: short(&who.node),
        client: short(&who.client),
        ..who.clone()
    };
    serde_json::to_string(&who).expect("an actor has only texts and numbers")
}

fn details_json(details: &AuditDetails) -> String {
    let mut map = Map::new();
    for (name, detail) in &details.0 {
        let value = match detail {
            AuditDetail::Text(text) => Value::from(clean(text, TEXT_BYTES_MAX)),
            AuditDetail::Number(number) => Value::from(*number),
            AuditDetail::Flag(flag) => Value::from(*flag),
            AuditDetail::Json(value) => cleaned(value),
            AuditDetail::Code(code) => {
                add_code(&mut map, code.len(), sha256(code));
                continue;
            }
            AuditDetail::HashedCode { bytes, sha256 } => {
                add_code(&mut map, *bytes, sha256.clone());
                continue;
            }
        };
        map.insert((*name).to_owned(), value);
    }
    let json = Value::Object(map).to_string();
    match json.len() {
        bytes if bytes > DETAILS_BYTES_MAX => format!("{{\"left_out_bytes\":{bytes}}}"),
        _ => json,
    }
}

fn add_code(map: &mut Map<String, Value>, bytes: usize, sha256: String) {
    map.insert("code_bytes".to_owned(), Value::from(bytes));
    map.insert("code_sha256".to_owned(), Value::from(sha256));
}

/// The value with clean texts.
fn cleaned(value: &Value) -> Value {
    match value {
        Value::String(text) => Value::from(clean(text, TEXT_BYTES_MAX)),
        Value::Array(values) => values.iter().map(cleaned).collect(),
        Value::Object(members) => {
            let member = |(name, value): (&String, &Value)| {
                (clean(name, TEXT_BYTES_MAX).into_owned(), cleaned(value))
            };
            Value::Object(members.iter().map(member).collect())
        }
        other => other.clone(),
    }
}

/// A text as JSON.
fn json_text(text: &str) -> String {
    Value::from(clean(text, TEXT_BYTES_MAX)).to_string()
}

/// The beginning of a text, with a replacement for each character that a terminal does not show as one.
fn clean(text: &str, bytes_max: usize) -> Cow<'_, str> {
    if text.len() <= bytes_max && !text.contains(is_control) {
        return Cow::Borrowed(text);
    }
    let end = text.floor_char_boundary(bytes_max);
    let cut = if end < text.len() { "…" } else { "" };
    let shown = text[..end].replace(is_control, "\u{fffd}");
    Cow::Owned(shown + cut)
}

/// Control characters, and those that cannot be seen or that change the order or the lines of the text around them.
pub fn is_control(letter: char) -> bool {
    letter.is_control()
        || matches!(
            letter,
            '\u{ad}' | '\u{61c}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{2069}'
                | '\u{feff}' | '\u{e0000}'..='\u{e007f}'
        )
}
