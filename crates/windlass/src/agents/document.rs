//! Edits a configuration file as text: reads, sets and removes the Windlass entry, and leaves every other
//! byte unchanged. The result is parsed again and compared with the expected content. A file with an
//! unexpected structure is refused.

use serde_json::{Map, Value};

use super::client::{ClientFacts, ENTRY, Syntax};
use super::{json, toml};

/// Some editors write it at the start of a file. It is kept, but the parsers do not see it.
const BYTE_ORDER_MARK: &str = "\u{feff}";

/// Whether to keep the list of servers when the removed entry was the last one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EmptySection {
    Keep,
    Remove,
}

#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum EditError {
    #[error("line {line}, column {column}: {reason}")]
    Syntax { line: usize, column: usize, reason: String },
    #[error("{0} is not a table of names and values")]
    NotATable(String),
    #[error("the entry {ENTRY} cannot be changed without changing other content")]
    Unfaithful,
}

/// The Windlass entry, if the file has one.
pub fn read(facts: &ClientFacts, text: &str) -> Result<Option<Value>, EditError> {
    let whole = parse(facts, without_mark(text).1)?;
    Ok(whole.get(facts.section).and_then(|servers| servers.get(ENTRY)).cloned())
}

/// Whether the file has the list of servers, empty or not.
pub fn has_section(facts: &ClientFacts, text: &str) -> Result<bool, EditError> {
    Ok(parse(facts, without_mark(text).1)?.get(facts.section).is_some())
}

/// The text with the Windlass entry set to `entry`. Other keys of an existing entry stay.
pub fn set(
    facts: &ClientFacts,
    text: &str,
    entry: &Map<String, Value>,
) -> Result<String, EditError> {
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

/// The text without the Windlass entry. The file must have one.
pub fn remove(facts: &ClientFacts, text: &str, emptied: EmptySection) -> Result<String, EditError> {
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

/// Changes the parsed file to the expected content after the entry is set.
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

/// Checks that the edited text has the expected content. An empty list of servers equals a missing one.
fn faithful(facts: &ClientFacts, after: &str, expected: &Value) -> Result<(), EditError> {
    let normalized = |mut whole: Value| {
        if let Value::Object(top) = &mut whole
            && top.get(facts.section).and_then(Value::as_object).is_some_and(Map::is_empty)
        {
            top.shift_remove(facts.section);
        }
        whole
    };
    let after = parse(facts, after).map_err(|_| EditError::Unfaithful)?;
    match normalized(after) == normalized(expected.clone()) {
        true => Ok(()),
        false => Err(EditError::Unfaithful),
    }
}

fn parse(facts: &ClientFacts, text: &str) -> Result<Value, EditError> {
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
