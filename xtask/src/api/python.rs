//! Writes the types in Python: `TypedDict` for objects, `Literal` for fixed strings, aliases for the rest.

use std::fmt::Write;

use super::model::{Field, Model, NamedType, Shape, Type};

const OPENING: &str = r#""""The JSON of the node's HTTP door, as types.

Written by `cargo xtask api` from docs/openapi.json; not to be changed by hand.
"""

from __future__ import annotations

from typing import Any, Literal, Optional, TypedDict, Union
"#;

/// Python keywords: they cannot be field names in a class body.
const KEYWORDS: &[&str] =
    &["from", "class", "global", "import", "in", "is", "lambda", "not", "or", "pass", "with"];

pub fn text(model: &Model) -> String {
    let mut text = OPENING.to_owned();
    for named in &model.types {
        match &named.shape {
            Shape::Alias(kind) => {
                let quoted = kind_text(kind, TypePosition::Alias);
                write_line(
                    &mut text,
                    &format!("\n{}{} = {quoted}", comment(&named.doc, ""), named.name),
                );
            }
            Shape::Object(fields) => object(&mut text, named, fields),
        }
    }
    text
}

/// Required and optional fields are in two classes, because the oldest supported Python has no `NotRequired`.
fn object(text: &mut String, named: &NamedType, fields: &[Field]) {
    let (required, optional): (Vec<&Field>, Vec<&Field>) =
        fields.iter().partition(|field| field.required);
    let (name, doc) = (named.name.as_str(), named.doc.as_str());
    if required.is_empty() || optional.is_empty() {
        let total = if optional.is_empty() { "TypedDict" } else { "TypedDict, total=False" };
        class(text, name, total, doc, fields);
        return;
    }
    let base = format!("_{name}");
    let required: Vec<Field> = required.into_iter().cloned().collect();
    let optional: Vec<Field> = optional.into_iter().cloned().collect();
    class(text, &base, "TypedDict", "", &required);
    class(text, name, &format!("{base}, total=False"), doc, &optional);
}

fn class(text: &mut String, name: &str, bases: &str, doc: &str, fields: &[Field]) {
    text.push('\n');
    let is_plain = |field: &Field| !KEYWORDS.contains(&field.name.as_str());
    if bases == "TypedDict" && !fields.iter().all(is_plain) {
        // The name of a field is a keyword, which only the call syntax allows.
        write_line(text, &format!("\n{}{name} = TypedDict(", comment(doc, "")));
        write_line(text, &format!("    \"{name}\",\n    {{"));
        for field in fields {
            let kind = kind_text(&field.kind, TypePosition::Call);
            let said = comment(&field.doc, "        ");
            write_line(text, &format!("{said}        \"{}\": {kind},", field.name));
        }
        write_line(text, "    },\n)");
        return;
    }
    write_line(text, &format!("\nclass {name}({bases}):"));
    if !doc.is_empty() {
        write_line(text, &format!("    \"\"\"{doc}\"\"\"\n"));
    }
    if fields.is_empty() && doc.is_empty() {
        write_line(text, "    pass");
    }
    for field in fields {
        let said = comment(&field.doc, "    ");
        write_line(
            text,
            &format!("{said}    {}: {}", field.name, kind_text(&field.kind, TypePosition::Class)),
        );
    }
}

/// Where a type is written. In a class body, names need no quotes, because Python evaluates them later. In
/// calls and aliases it evaluates them at once, so names are quoted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum TypePosition {
    Class,
    Call,
    Alias,
}

fn kind_text(kind: &Type, position: TypePosition) -> String {
    match kind {
        Type::Text => "str".to_owned(),
        Type::Integer => "int".to_owned(),
        Type::Number => "float".to_owned(),
        Type::Boolean => "bool".to_owned(),
        Type::Null => "None".to_owned(),
        Type::Anything => "Any".to_owned(),
        Type::Words(words) => {
            let words: Vec<String> = words.iter().map(|word| format!("\"{word}\"")).collect();
            format!("Literal[{}]", words.join(", "))
        }
        Type::Named(name) if position == TypePosition::Class => name.clone(),
        Type::Named(name) => format!("\"{name}\""),
        Type::List(item) => format!("list[{}]", kind_text(item, position)),
        Type::Map(value) => format!("dict[str, {}]", kind_text(value, position)),
        Type::Union(kinds) => union_text(kinds, position),
    }
}

fn union_text(kinds: &[Type], position: TypePosition) -> String {
    let others: Vec<String> =
        kinds.iter().filter(|k| **k != Type::Null).map(|k| kind_text(k, position)).collect();
    let joined = match others.as_slice() {
        [single] => single.clone(),
        many => format!("Union[{}]", many.join(", ")),
    };
    if others.len() < kinds.len() { format!("Optional[{joined}]") } else { joined }
}

fn comment(doc: &str, indent: &str) -> String {
    if doc.is_empty() { String::new() } else { format!("{indent}# {doc}\n") }
}

fn write_line(text: &mut String, line: &str) {
    writeln!(text, "{line}").expect("writing to a string cannot fail");
}
