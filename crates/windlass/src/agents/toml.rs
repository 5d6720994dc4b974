//! Edits TOML. `toml_edit` provides the positions, and the text is cut and joined there, because the writer
//! of `toml_edit` would turn CRLF into LF and add a newline at the end. A new Windlass entry becomes a table
//! at the end of the file. An existing entry is changed in its place, also if it is an inline table.

use std::ops::Range;

use serde_json::{Map, Value};
use toml_edit::{Array, Document, DocumentMut, InlineTable, Item, Table};

use super::client::ENTRY;
use super::document::{EditError, is_stale};

/// The parsed file.
pub fn read(text: &str) -> Result<Value, EditError> {
    Ok(table_value(parse(text)?.as_table()))
}

pub fn set(text: &str, section: &str, entry: &Map<String, Value>) -> Result<String, EditError> {
    let document = parse(text)?;
    match document.get(section) {
        Some(Item::Value(_)) => edit_inline(text, &[section], &document, |servers| {
            let ours = servers.entry(ENTRY).or_insert_with(|| InlineTable::new().into());
            fill(ours, entry)
        }),
        Some(Item::Table(servers)) => match servers.get(ENTRY) {
            None => append(text, section, entry),
            Some(Item::Value(_)) => {
                edit_inline(text, &[section, ENTRY], &document, |ours| fill_table(ours, entry))
            }
            // The file has only subtables of the entry, such as [mcp_servers.windlass.env].
            Some(Item::Table(ours)) if ours.is_implicit() && !ours.is_dotted() => {
                append(text, section, entry)
            }
            Some(Item::Table(ours)) => update(text, ours, entry),
            Some(_) => Err(EditError::NotATable(ENTRY.to_owned())),
        },
        Some(_) => Err(EditError::NotATable(section.to_owned())),
        None => append(text, section, entry),
    }
}

pub fn remove(text: &str, section: &str) -> Result<String, EditError> {
    let document = parse(text)?;
    match document.get(section) {
        Some(Item::Value(_)) => edit_inline(text, &[section], &document, |servers| {
            servers.remove(ENTRY);
            Ok(())
        }),
        Some(Item::Table(servers)) => {
            let mut pieces = Vec::new();
            collect_pieces(text, servers, ENTRY, &mut pieces);
            Ok(without(text, pieces))
        }
        _ => Ok(text.to_owned()),
    }
}

fn parse(text: &str) -> Result<Document<&str>, EditError> {
    Document::parse(text).map_err(|error| {
        let at = error.span().map_or(0, |span| span.start);
        let before = text.get(..at).unwrap_or(text);
        let line_start = before.rfind('\n').map_or(0, |newline| newline + 1);
        EditError::Syntax {
            line: before.matches('\n').count() + 1,
            column: before[line_start..].chars().count() + 1,
            reason: error.message().lines().next().unwrap_or("not TOML").to_owned(),
        }
    })
}

/// Appends the table after an empty line. A file without a final newline stays without one, so that a
/// removal can restore the original text.
fn append(text: &str, section: &str, entry: &Map<String, Value>) -> Result<String, EditError> {
    let newline = newline(text);
    let mut lines = vec![format!("[{section}.{ENTRY}]")];
    for (key, value) in entry {
        lines.push(format!("{key} = {}", written(value)?));
    }
    let block = lines.join(newline);
    Ok(match text {
        "" => format!("{block}{newline}"),
        ended if ended.ends_with('\n') => format!("{ended}{newline}{block}{newline}"),
        open => format!("{open}{newline}{newline}{block}"),
    })
}

/// Changes the values of the table in place, and adds missing keys below its header.
fn update(text: &str, ours: &Table, entry: &Map<String, Value>) -> Result<String, EditError> {
    let mut text_after = text.to_owned();
    let mut changes: Vec<(Range<usize>, String)> = Vec::new();
    let mut missing = String::new();
    for (key, wanted) in entry {
        match ours.get(key) {
            Some(item) if item_value(item) == *wanted => {}
            Some(item) => {
                let span = item.as_value().and_then(|value| value.span());
                changes.push((span.ok_or(EditError::Unfaithful)?, written(wanted)?));
            }
            None => missing += &format!("{key} = {}{}", written(wanted)?, newline(text)),
        }
    }
    if !missing.is_empty() {
        let head = ours.span().filter(|_| !ours.is_dotted()).ok_or(EditError::Unfaithful)?;
        let at = line_end(text, head.end);
        if !text[..at].ends_with('\n') {
            missing.insert_str(0, newline(text));
        }
        changes.push((at..at, missing));
    }
    let mut stale = Vec::new();
    for (key, _) in ours.iter().filter(|(key, _)| is_stale(key, entry)) {
        collect_pieces(text, ours, key, &mut stale);
    }
    changes.extend(stale.into_iter().map(|piece| (piece, String::new())));
    changes.sort_by_key(|(range, _)| range.start);
    for (range, replacement) in changes.into_iter().rev() {
        text_after.replace_range(range, &replacement);
    }
    Ok(text_after)
}

/// Applies `change` to the inline table at `path`, and replaces its text with the result.
fn edit_inline(
    text: &str,
    path: &[&str],
    document: &Document<&str>,
    change: impl FnOnce(&mut InlineTable) -> Result<(), EditError>,
) -> Result<String, EditError> {
    let not_a_table = || EditError::NotATable(path.join("."));
    let mut place = document.as_item();
    let mut editable = text.parse::<DocumentMut>().map_err(|_| EditError::Unfaithful)?;
    let mut item = editable.as_item_mut();
    for key in path {
        place = place.get(key).ok_or_else(not_a_table)?;
        item = item.get_mut(key).ok_or_else(not_a_table)?;
    }
    let span = place.span().ok_or(EditError::Unfaithful)?;
    let table = item.as_inline_table_mut().ok_or_else(not_a_table)?;
    change(table)?;
    // The text around the span has the whitespace already.
    table.decor_mut().clear();
    Ok(format!("{}{table}{}", &text[..span.start], &text[span.end..]))
}

fn fill(ours: &mut toml_edit::Value, entry: &Map<String, Value>) -> Result<(), EditError> {
    let ours = ours.as_inline_table_mut();
    fill_table(ours.ok_or_else(|| EditError::NotATable(ENTRY.to_owned()))?, entry)
}

fn fill_table(ours: &mut InlineTable, entry: &Map<String, Value>) -> Result<(), EditError> {
    let stale: Vec<_> =
        ours.iter().map(|(key, _)| key.to_owned()).filter(|key| is_stale(key, entry)).collect();
    for key in stale {
        ours.remove(&key);
    }
    for (key, wanted) in entry {
        if ours.get(key).is_none_or(|value| plain_value(value) != *wanted) {
            ours.insert(key, toml_value(wanted)?);
        }
    }
    Ok(())
}

/// Collects the lines of `key`: its value, and its tables from their header to their last value.
fn collect_pieces(text: &str, parent: &Table, key: &str, pieces: &mut Vec<Range<usize>>) {
    let Some((name, item)) = parent.get_key_value(key) else { return };
    match item {
        Item::None => {}
        Item::Value(value) => {
            if let (Some(name), Some(value)) = (name.span(), value.span()) {
                pieces.push(line_start(text, name.start)..line_end(text, value.end));
            }
        }
        Item::Table(table) => collect_table(text, table, pieces),
        Item::ArrayOfTables(tables) => {
            tables.iter().for_each(|table| collect_table(text, table, pieces));
        }
    }
}

fn collect_table(text: &str, table: &Table, pieces: &mut Vec<Range<usize>>) {
    let mut inside = Vec::new();
    let mut below = Vec::new();
    for (key, item) in table {
        let own = match item {
            Item::Value(_) => true,
            Item::Table(table) => table.is_dotted(),
            _ => false,
        };
        collect_pieces(text, table, key, if own { &mut inside } else { &mut below });
    }
    match table.span().filter(|_| !table.is_implicit() && !table.is_dotted()) {
        // Comments between the values belong to the table. Comments above its header may belong elsewhere.
        Some(head) => {
            let end = inside.iter().map(|piece| piece.end).max();
            let end = end.unwrap_or(0).max(line_end(text, head.end));
            pieces.push(line_start(text, head.start)..end);
        }
        None => pieces.extend(inside),
    }
    pieces.extend(below);
}

/// The text without the pieces, and without the empty line before each piece that is a table.
fn without(text: &str, mut pieces: Vec<Range<usize>>) -> String {
    pieces.sort_by_key(|piece| piece.start);
    let mut rest = text.to_owned();
    for piece in pieces.into_iter().rev() {
        let mut start = piece.start;
        let is_table = text[piece.clone()].starts_with('[');
        let before = before_newline(&text[..start]);
        if is_table && before.is_some_and(|before| before.is_empty() || before.ends_with('\n')) {
            start = before.map_or(start, str::len);
        }
        // If the text had no final newline, the remaining text gets none either.
        if piece.end == text.len() && !text.ends_with('\n') {
            start = before_newline(&text[..start]).map_or(start, str::len);
        }
        rest.replace_range(start..piece.end.min(rest.len()), "");
    }
    rest
}

fn before_newline(text: &str) -> Option<&str> {
    text.strip_suffix("\r\n").or_else(|| text.strip_suffix('\n'))
}

fn line_start(text: &str, at: usize) -> usize {
    text[..at].rfind('\n').map_or(0, |newline| newline + 1)
}

/// The offset after the newline that ends the line at `at`.
fn line_end(text: &str, at: usize) -> usize {
    text[at..].find('\n').map_or(text.len(), |newline| at + newline + 1)
}

fn newline(text: &str) -> &'static str {
    match text.find('\n') {
        Some(at) if text[..at].ends_with('\r') => "\r\n",
        _ => "\n",
    }
}

fn written(value: &Value) -> Result<String, EditError> {
    Ok(toml_value(value)?.to_string())
}

fn toml_value(value: &Value) -> Result<toml_edit::Value, EditError> {
    Ok(match value {
        Value::Bool(value) => (*value).into(),
        Value::String(value) => value.as_str().into(),
        Value::Number(value) => value.as_i64().ok_or(EditError::Unfaithful)?.into(),
        Value::Array(values) => {
            let values: Result<Array, _> = values.iter().map(toml_value).collect();
            values?.into()
        }
        Value::Object(values) => {
            let mut table = InlineTable::new();
            for (key, value) in values {
                table.insert(key, toml_value(value)?);
            }
            table.into()
        }
        Value::Null => return Err(EditError::Unfaithful),
    })
}

fn table_value(table: &Table) -> Value {
    Value::Object(table.iter().map(|(key, item)| (key.to_owned(), item_value(item))).collect())
}

fn item_value(item: &Item) -> Value {
    match item {
        Item::None => Value::Null,
        Item::Value(value) => plain_value(value),
        Item::Table(table) => table_value(table),
        Item::ArrayOfTables(tables) => tables.iter().map(table_value).collect(),
    }
}

fn plain_value(value: &toml_edit::Value) -> Value {
    match value {
        toml_edit::Value::String(value) => value.value().as_str().into(),
        toml_edit::Value::Integer(value) => (*value.value()).into(),
        toml_edit::Value::Boolean(value) => (*value.value()).into(),
        // These are compared only with values of the same type.
        toml_edit::Value::Float(value) => value.value().to_string().into(),
        toml_edit::Value::Datetime(value) => value.value().to_string().into(),
        toml_edit::Value::Array(values) => values.iter().map(plain_value).collect(),
        toml_edit::Value::InlineTable(table) => Value::Object(
            table.iter().map(|(key, value)| (key.to_owned(), plain_value(value))).collect(),
        ),
    }
}
