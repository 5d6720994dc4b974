//! A configuration file as text: reads our entry, sets it, removes it, and leaves every other byte
//! as it is. Whatever an editor did is read again and compared before it counts; a file in a shape
//! that nobody thought of is refused, not bent.

use serde_json::{Map, Value};

use super::client::{ENTRY, Facts, Syntax};
use super::{json, toml};

/// Some editors begin a file with it; it is kept, and is no business of a parser.
const BYTE_ORDER_MARK: &str = "\u{feff}";

/// What becomes of the list of servers when ours was the last.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Emptied {
    Keep,
    Remove,
}

#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum EditError {
    #[error("line {line}, column {column}: {reason}")]
    Syntax { line: usize, column: usize, reason: String },
    #[error("{0} does not hold a table of names and values")]
    NotATable(String),
    #[error("{ENTRY} cannot be changed here without touching something else")]
    Unfaithful,
}

/// Our entry, if it is there.
pub fn read(facts: &Facts, text: &str) -> Result<Option<Value>, EditError> {
    let whole = parse(facts, without_mark(text).1)?;
    Ok(whole.get(facts.section).and_then(|servers| servers.get(ENTRY)).cloned())
}

/// Whether the file has the list of servers, empty or not.
pub fn has_section(facts: &Facts, text: &str) -> Result<bool, EditError> {
    Ok(parse(facts, without_mark(text).1)?.get(facts.section).is_some())
}

/// The text with our entry in it. Keys of an existing entry that `entry` does not name stay.
pub fn set(facts: &Facts, text: &str, entry: &Map<String, Value>) -> Result<String, EditError> {
    let (mark, text) = without_mark(text);
    let mut expected = parse(facts, text)?;
    expect_entry(&mut expected, facts.section, entry)?;
    let after = match facts.syntax {
        Syntax::Toml => toml::set(text, facts.section, entry)?,
        syntax => json::set(text, syntax, facts.section, entry)?,
    };
    faithful(facts, &after, &expected)?;
    Ok(format!("{mark}{after}"))
}

/// The text without our entry, which is there.
pub fn remove(facts: &Facts, text: &str, emptied: Emptied) -> Result<String, EditError> {
    let (mark, text) = without_mark(text);
    let mut expected = parse(facts, text)?;
    if let Some(Value::Object(servers)) = expected.get_mut(facts.section) {
        servers.shift_remove(ENTRY);
    }
    let after = match facts.syntax {
        Syntax::Toml => toml::remove(text, facts.section)?,
        syntax => json::remove(text, syntax, facts.section, emptied)?,
    };
    faithful(facts, &after, &expected)?;
    Ok(format!("{mark}{after}"))
}

/// What the whole file should say once our entry is set.
fn expect_entry(
    whole: &mut Value,
    section: &str,
    entry: &Map<String, Value>,
) -> Result<(), EditError> {
    let not_a_table = |what: &str| EditError::NotATable(what.to_owned());
    let top = whole.as_object_mut().ok_or_else(|| not_a_table("the file"))?;
    let servers = top.entry(section).or_insert_with(|| Value::Object(Map::new()));
    let servers = servers.as_object_mut().ok_or_else(|| not_a_table(section))?;
    let ours = servers.entry(ENTRY).or_insert_with(|| Value::Object(Map::new()));
    let ours = ours.as_object_mut().ok_or_else(|| not_a_table(&format!("{section}.{ENTRY}")))?;
    ours.retain(|key, _| !is_stale(key, entry));
    ours.extend(entry.clone());
    Ok(())
}

/// Whether a key of an existing entry contradicts the new one.
pub fn is_stale(key: &str, entry: &Map<String, Value>) -> bool {
    super::client::REMOTE_KEYS.contains(&key) && !entry.contains_key(key)
}

/// An empty list of servers counts as none: whether it stays is a matter of taste.
fn faithful(facts: &Facts, after: &str, expected: &Value) -> Result<(), EditError> {
    let said = |mut whole: Value| {
        if let Value::Object(top) = &mut whole
            && top.get(facts.section).and_then(Value::as_object).is_some_and(Map::is_empty)
        {
            top.shift_remove(facts.section);
        }
        whole
    };
    let after = parse(facts, after).map_err(|_| EditError::Unfaithful)?;
    if said(after) == said(expected.clone()) { Ok(()) } else { Err(EditError::Unfaithful) }
}

fn parse(facts: &Facts, text: &str) -> Result<Value, EditError> {
    match facts.syntax {
        Syntax::Toml => toml::read(text),
        syntax => json::read(text, syntax),
    }
}

fn without_mark(text: &str) -> (&str, &str) {
    match text.strip_prefix(BYTE_ORDER_MARK) {
        Some(rest) => (BYTE_ORDER_MARK, rest),
        None => ("", text),
    }
}
