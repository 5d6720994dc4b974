//! What a turn is given besides its code, and the value that it gives back. The same types go from client to
//! node, into the journal, and to the worker.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::Value;
use utoipa::ToSchema;

use crate::limits::{RESULT_VALUE_BYTES_MAX, RESULT_VALUE_DEPTH_MAX};

/// The surroundings of one turn. Only workers with the capability `context` take one.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema, ToSchema)]
pub struct TurnContext {
    /// The name of the code in tracebacks, usually the absolute path of its file.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub file: Option<String>,
    /// The arguments of the program, without its name.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub args: Vec<String>,
    /// The directory that the turn works in.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cwd: Option<String>,
    /// Environment variables to set for the turn.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub env: BTreeMap<String, String>,
    /// Whether the code runs as a program: as the interpreter runs a file with these arguments.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub program: bool,
}

impl TurnContext {
    /// The length of the context as JSON, which [`crate::limits::TURN_CONTEXT_BYTES_MAX`] limits.
    pub fn json_bytes(&self) -> usize {
        serde_json::to_vec(self).map_or(usize::MAX, |json| json.len())
    }
}

/// The value of a turn's last expression, as JSON. The worker that sends it is not trusted: a value over a
/// limit counts as absent.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema, ToSchema)]
#[serde(transparent)]
#[schema(value_type = Value)]
pub struct ResultValue(pub Value);

impl ResultValue {
    /// Reads a field that is present. JSON `null` is a value, too.
    pub fn present<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Self>, D::Error> {
        Ok(Self::bounded(Value::deserialize(deserializer)?))
    }

    /// The value, if it is within the limits.
    pub fn bounded(value: Value) -> Option<Self> {
        let is_small = depth_is_at_most(&value, RESULT_VALUE_DEPTH_MAX)
            && serde_json::to_vec(&value).is_ok_and(|json| json.len() <= RESULT_VALUE_BYTES_MAX);
        is_small.then_some(Self(value))
    }
}

/// Whether lists and objects are nested at most `levels` deep.
fn depth_is_at_most(value: &Value, levels: usize) -> bool {
    let Some(inner) = levels.checked_sub(1) else {
        return !matches!(value, Value::Array(_) | Value::Object(_));
    };
    match value {
        Value::Array(items) => items.iter().all(|item| depth_is_at_most(item, inner)),
        Value::Object(fields) => fields.values().all(|field| depth_is_at_most(field, inner)),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => true,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::TurnNo;
    use crate::worker::FromWorker;

    /// The value of an `idle` with this text after `"value":`. The outer `None`: the header is malformed.
    fn value_in(json: &str) -> Option<Option<Value>> {
        let header = format!(r#"{{"kind":"idle","turn":1,"outcome":"ok","value":{json}}}"#);
        match serde_json::from_str::<FromWorker>(&header).ok()? {
            FromWorker::Idle { turn: TurnNo(1), value, .. } => Some(value.map(|value| value.0)),
            _ => None,
        }
    }

    #[test]
    fn a_value_is_taken_within_its_limits_and_else_counts_as_absent() {
        let nested = |depth| format!("{}1{}", "[".repeat(depth), "]".repeat(depth));
        let text = |bytes: usize| format!("\"{}\"", "x".repeat(bytes - 2));
        let taken = |json: &str| value_in(json).flatten().is_some();
        for (json, expected) in [
            ("null".to_owned(), true),
            (r#"{"a":[1,2.5,true,"x",null]}"#.to_owned(), true),
            (nested(RESULT_VALUE_DEPTH_MAX), true),
            (nested(RESULT_VALUE_DEPTH_MAX + 1), false),
            (nested(10_000), false),
            (text(RESULT_VALUE_BYTES_MAX), true),
            (text(RESULT_VALUE_BYTES_MAX + 1), false),
            ("1e999".to_owned(), false),
            ("9".repeat(400), false),
        ] {
            assert_eq!(taken(&json), expected, "{}", &json[..json.len().min(40)]);
        }
        assert_eq!(value_in("null"), Some(Some(Value::Null)));
    }

    #[test]
    fn a_value_keeps_every_digit() {
        for json in
            ["0.30000000000000004", "1e+300", "-9223372036854775808", "18446744073709551615"]
        {
            let value = value_in(json).flatten().unwrap_or_default();
            let again: Value = serde_json::from_str(&value.to_string()).unwrap_or_default();
            assert_eq!(value.to_string(), json);
            assert_eq!(again, value);
        }
    }

    #[test]
    fn a_context_without_content_is_an_empty_object() {
        let empty = TurnContext::default();
        assert_eq!(serde_json::to_string(&empty).ok().as_deref(), Some("{}"));
        assert_eq!(empty.json_bytes(), 2);
        assert_eq!(serde_json::from_str::<TurnContext>(r#"{"new":1}"#).ok(), Some(empty));
    }
}
