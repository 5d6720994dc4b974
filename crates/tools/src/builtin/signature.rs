//! A tool's signature as a line of code, made from its JSON schema, for a model to read. Schema parts that
//! this module does not understand are left out. Types and values are written in the session's language.

use serde_json::{Map, Value};
use windlass_protocol::host::ToolOffer;
use windlass_protocol::kinds::LanguageTerms;

/// Maximum number of characters in a signature; a longer one is cut.
const CHARS_MAX: usize = 400;

/// Maximum number of characters in a literal; a longer one is written as `...`.
const DEFAULT_CHARS_MAX: usize = 40;

/// Maximum number of choices that are written out; for more, only the type is written.
const CHOICES_MAX: usize = 8;

/// Maximum depth of nested types that is written out.
const DEPTH_MAX: usize = 3;

pub(super) fn of(offer: &ToolOffer, words: &LanguageTerms) -> String {
    let nothing = Map::new();
    let schema = offer.input_schema.as_ref();
    let properties = schema.and_then(|schema| schema["properties"].as_object()).unwrap_or(&nothing);
    let required = schema.and_then(|schema| schema["required"].as_array());
    let is_required =
        |name: &str| required.is_some_and(|names| names.iter().any(|other| other == name));
    let (must, may): (Vec<_>, Vec<_>) =
        properties.iter().partition(|(name, _)| is_required(name.as_str()));
    let must = must.into_iter().map(|(name, schema)| argument(name, schema, words));
    let may = may.into_iter().map(|(name, schema)| {
        let default = schema.get("default").unwrap_or(&Value::Null);
        format!("{} = {}", argument(name, schema, words), literal(default, words))
    });
    let arguments: Vec<String> = must.chain(may).collect();
    let whole = format!("{}({})", offer.name, arguments.join(", "));
    if whole.chars().count() <= CHARS_MAX {
        return whole;
    }
    let start: String = whole.chars().take(CHARS_MAX).collect();
    format!("{start}...")
}

fn argument(name: &str, schema: &Value, words: &LanguageTerms) -> String {
    match kind(schema, DEPTH_MAX, words) {
        Some(kind) => format!("{name}: {kind}"),
        None => name.to_owned(),
    }
}

/// The type, if the schema names one that the language has a word for.
fn kind(schema: &Value, depth: usize, words: &LanguageTerms) -> Option<String> {
    if let Some(choices) = schema["enum"].as_array()
        && choices.len() <= CHOICES_MAX
    {
        let choices: Vec<String> = choices.iter().map(|choice| literal(choice, words)).collect();
        return Some(format!("{}[{}]", words.choice, choices.join(", ")));
    }
    if let Some(either) = schema["anyOf"].as_array().or_else(|| schema["oneOf"].as_array()) {
        let depth = depth.checked_sub(1)?;
        return joined(either.iter().map(|one| kind(one, depth, words)));
    }
    match &schema["type"] {
        Value::String(name) => word(name, schema, depth, words),
        Value::Array(names) => {
            joined(names.iter().map(|name| word(name.as_str()?, schema, depth, words)))
        }
        _ => None,
    }
}

fn joined(kinds: impl Iterator<Item = Option<String>>) -> Option<String> {
    let kinds: Option<Vec<String>> = kinds.collect();
    kinds.filter(|kinds| !kinds.is_empty()).map(|kinds| kinds.join(" | "))
}

fn word(name: &str, schema: &Value, depth: usize, words: &LanguageTerms) -> Option<String> {
    let word = match name {
        "string" => words.string,
        "integer" => words.integer,
        "number" => words.number,
        "boolean" => words.boolean,
        "object" => words.object,
        "null" => words.null,
        "array" => {
            let items = depth.checked_sub(1).and_then(|depth| kind(&schema["items"], depth, words));
            return Some(match items {
                Some(items) => format!("{}[{items}]", words.list),
                None => words.list.to_owned(),
            });
        }
        _ => return None,
    };
    Some(word.to_owned())
}

/// A JSON value as the language writes it.
fn literal(value: &Value, words: &LanguageTerms) -> String {
    let text = match value {
        Value::Null => words.null.to_owned(),
        Value::Bool(true) => words.yes.to_owned(),
        Value::Bool(false) => words.no.to_owned(),
        Value::Number(_) | Value::String(_) => value.to_string(),
        Value::Array(items) if items.is_empty() => "[]".to_owned(),
        Value::Object(fields) if fields.is_empty() => "{}".to_owned(),
        Value::Array(_) | Value::Object(_) => "...".to_owned(),
    };
    if text.chars().count() > DEFAULT_CHARS_MAX { "...".to_owned() } else { text }
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use windlass_protocol::kinds;

    use super::*;

    fn signature(schema: Option<Value>) -> String {
        let offer = ToolOffer {
            name: "t".to_owned(),
            description: String::new(),
            input_schema: schema,
            deadline_ms: None,
        };
        of(&offer, &kinds::DEFAULT.terms)
    }

    fn with(properties: Value) -> String {
        signature(Some(json!({"properties": properties, "required": ["must"]})))
    }

    #[test]
    fn a_schema_reads_as_code() {
        for (properties, expected) in [
            (
                json!({"limit": {"type": "integer", "default": 10}, "must": {"type": "string"}}),
                "t(must: str, limit: int = 10)",
            ),
            (json!({"a": {"type": ["string", "null"]}}), "t(a: str | None = None)"),
            (
                json!({"a": {"anyOf": [{"type": "number"}, {"type": "boolean", "default": 1}]}}),
                "t(a: float | bool = None)",
            ),
            (
                json!({"must": {"type": "array", "items": {"type": "array", "items": {"type": "object"}}}}),
                "t(must: list[list[dict]])",
            ),
            (
                json!({"a": {"enum": ["x", 1, null], "default": "x"}}),
                r#"t(a: Literal["x", 1, None] = "x")"#,
            ),
            (json!({"a": {"default": true}, "b": {"default": [1]}}), "t(a = True, b = ...)"),
            (json!({"a": {"$ref": "#/x"}, "b": 3, "must": null}), "t(must, a = None, b = None)"),
            (json!({}), "t()"),
            (json!([]), "t()"),
        ] {
            assert_eq!(with(properties.clone()), expected, "{properties}");
        }
        assert_eq!(signature(None), "t()");
        assert_eq!(signature(Some(json!({"required": 3}))), "t()");
    }

    #[test]
    fn a_long_signature_is_cut() {
        let many: Map<String, Value> =
            (0..1000).map(|n| (format!("a{n}"), json!({"type": "string"}))).collect();
        assert!(with(Value::Object(many)).len() < CHARS_MAX + 10);
        let mut deep = json!({"type": "string"});
        for _ in 0..100 {
            deep = json!({"type": "array", "items": deep});
        }
        assert_eq!(with(json!({"must": deep})), "t(must: list[list[list[list]]])");
    }
}
