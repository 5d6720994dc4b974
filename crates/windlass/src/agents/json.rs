//! Edits JSON with and without comments. The syntax tree of `jsonc-parser` keeps every unchanged byte. Only
//! an object on one line is edited as text, because the tree would split it into several lines.

use jsonc_parser::ast;
use jsonc_parser::cst::{CstInputValue, CstObject, CstObjectProp, CstRootNode};
use jsonc_parser::{CollectOptions, ParseOptions};
use serde_json::{Map, Value, json};

use super::client::{ENTRY, Syntax};
use super::document::{EditError, EmptySection, is_stale};

/// The parsed file. An empty file equals `{}`.
pub fn read(text: &str, syntax: Syntax) -> Result<Value, EditError> {
    let root = parse(text, syntax)?;
    match root.value() {
        None => Ok(json!({})),
        Some(_) => root.to_serde_value().ok_or(EditError::Unfaithful),
    }
}

pub fn set(
    text: &str,
    syntax: Syntax,
    section: &str,
    entry: &Map<String, Value>,
) -> Result<String, EditError> {
    let root = parse(text, syntax)?;
    let not_a_table = |what: &str| EditError::NotATable(what.to_owned());
    let top = root.object_value_or_create().ok_or_else(|| not_a_table("the file"))?;
    let Some(servers) = top.get(section) else {
        let value = json!({ ENTRY: entry });
        return Ok(append(text, &root, (&top, &[]), section, &value));
    };
    let servers = servers.object_value().ok_or_else(|| not_a_table(section))?;
    match servers.get(ENTRY) {
        None => {
            let value = Value::Object(entry.clone());
            Ok(append(text, &root, (&servers, &[section]), ENTRY, &value))
        }
        Some(existing) => {
            update(&existing, entry)?;
            Ok(root.to_string())
        }
    }
}

pub fn remove(
    text: &str,
    syntax: Syntax,
    section: &str,
    emptied: EmptySection,
) -> Result<String, EditError> {
    let root = parse(text, syntax)?;
    let Some(top) = root.object_value() else { return Ok(text.to_owned()) };
    let Some(servers) = top.get(section).and_then(|servers| servers.object_value()) else {
        return Ok(text.to_owned());
    };
    if let Some(existing) = servers.get(ENTRY) {
        existing.remove();
    }
    let holds_nothing = servers.children().iter().all(|child| !child.is_comment())
        && servers.properties().is_empty();
    if holds_nothing
        && emptied == EmptySection::Remove
        && let Some(servers) = top.get(section)
    {
        servers.remove();
    }
    Ok(root.to_string())
}

fn parse(text: &str, syntax: Syntax) -> Result<CstRootNode, EditError> {
    let refused = |error: jsonc_parser::errors::ParseError| EditError::Syntax {
        line: error.line_display(),
        column: error.column_display(),
        reason: error.kind().to_string(),
    };
    let options = options(syntax);
    // The tree parser accepts comments in every syntax, so check the allowed syntax first.
    jsonc_parser::parse_to_ast(text, &CollectOptions::default(), &options).map_err(refused)?;
    CstRootNode::parse(text, &options).map_err(refused)
}

/// Parser options that accept exactly what the clients accept.
fn options(syntax: Syntax) -> ParseOptions {
    ParseOptions {
        allow_comments: syntax != Syntax::Json,
        allow_trailing_commas: syntax == Syntax::JsonWithCommentsAndCommas,
        allow_loose_object_property_names: false,
        allow_missing_commas: false,
        allow_single_quoted_strings: false,
        allow_hexadecimal_numbers: false,
        allow_unary_plus_numbers: false,
        allow_bare_decimal_point_numbers: false,
        allow_non_finite_numbers: false,
        allow_extended_string_escapes: false,
    }
}

fn update(existing: &CstObjectProp, entry: &Map<String, Value>) -> Result<(), EditError> {
    let Some(object) = existing.object_value() else {
        return Err(EditError::NotATable(ENTRY.to_owned()));
    };
    for property in object.properties() {
        let name = property.decoded_name();
        if name.is_some_and(|name| is_stale(&name, entry)) {
            property.remove();
        }
    }
    for (key, wanted) in entry {
        match object.get(key) {
            None => {
                object.append(key, input(wanted));
            }
            Some(property) => {
                let current = property.value().and_then(|value| value.to_serde_value());
                if current.as_ref() != Some(wanted) {
                    set_value(&property, wanted);
                }
            }
        }
    }
    Ok(())
}

/// Sets the property to another value. Keeps the spacing of the old value if both have the same structure.
fn set_value(property: &CstObjectProp, wanted: &Value) {
    let old = match (property.value(), wanted) {
        (Some(old), Value::String(_)) => vec![old],
        (Some(old), Value::Array(_)) => {
            old.as_array().map(|old| old.elements()).unwrap_or_default()
        }
        _ => Vec::new(),
    };
    let new = match wanted {
        Value::Array(values) => values.iter().collect(),
        value => vec![value],
    };
    let old: Vec<_> = old.iter().filter_map(|value| value.as_string_lit()).collect();
    if old.len() == new.len() && new.iter().all(|value| value.is_string()) {
        old.iter().zip(new).for_each(|(old, new)| old.set_raw_value(new.to_string()));
    } else {
        property.set_value(input(wanted));
    }
}

/// The text with a new property at the end of an object.
fn append(
    text: &str,
    root: &CstRootNode,
    (object, path): (&CstObject, &[&str]),
    name: &str,
    value: &Value,
) -> String {
    let written = object.to_string();
    let on_one_line = !object.properties().is_empty() && !written.contains('\n');
    if on_one_line && let Some(at) = end_of_last_property(text, path) {
        let spaced = written.contains(", ") || written.contains(": ");
        let (comma, colon) = if spaced { (", ", ": ") } else { (",", ":") };
        let name = Value::from(name);
        return format!("{}{comma}{name}{colon}{value}{}", &text[..at], &text[at..]);
    }
    object.append(name, input(value));
    root.to_string()
}

/// The offset where the last property of the object at `path` ends.
fn end_of_last_property(text: &str, path: &[&str]) -> Option<usize> {
    let parsed =
        jsonc_parser::parse_to_ast(text, &CollectOptions::default(), &ParseOptions::default());
    let ast::Value::Object(mut object) = parsed.ok()?.value? else { return None };
    for key in path {
        object = object.take_object(key)?;
    }
    Some(object.properties.last()?.range.end)
}

fn input(value: &Value) -> CstInputValue {
    match value {
        Value::Null => CstInputValue::Null,
        Value::Bool(value) => CstInputValue::Bool(*value),
        Value::Number(value) => CstInputValue::Number(value.to_string()),
        Value::String(value) => CstInputValue::String(value.clone()),
        Value::Array(values) => CstInputValue::Array(values.iter().map(input).collect()),
        Value::Object(values) => CstInputValue::Object(
            values.iter().map(|(name, value)| (name.clone(), input(value))).collect(),
        ),
    }
}
