//! Writes the types in TypeScript: interfaces for objects, type aliases for the rest.

use std::fmt::Write;

use super::model::{Field, Model, Shape, Type};

const OPENING: &str = "\
// The JSON of the node's HTTP door, as types.
//
// Written by `cargo xtask api` from docs/openapi.json; not to be changed by hand.
";

pub fn text(model: &Model) -> String {
    let mut text = OPENING.to_owned();
    for named in &model.types {
        text.push('\n');
        text.push_str(&comment(&named.doc, ""));
        match &named.shape {
            Shape::Alias(kind) => {
                write_line(
                    &mut text,
                    &format!("export type {} = {};", named.name, kind_text(kind)),
                );
            }
            Shape::Object(fields) => {
                write_line(&mut text, &format!("export interface {} {{", named.name));
                fields.iter().for_each(|field| field_text(&mut text, field));
                write_line(&mut text, "}");
            }
        }
    }
    text
}

fn field_text(text: &mut String, field: &Field) {
    let optional = if field.required { "" } else { "?" };
    text.push_str(&comment(&field.doc, "  "));
    write_line(text, &format!("  {}{optional}: {};", field.name, kind_text(&field.kind)));
}

fn kind_text(kind: &Type) -> String {
    match kind {
        Type::Text => "string".to_owned(),
        Type::Integer | Type::Number => "number".to_owned(),
        Type::Boolean => "boolean".to_owned(),
        Type::Null => "null".to_owned(),
        Type::Anything => "unknown".to_owned(),
        Type::Words(words) => {
            let words: Vec<String> = words.iter().map(|word| format!("\"{word}\"")).collect();
            words.join(" | ")
        }
        Type::Named(name) => name.clone(),
        Type::List(item) => match &**item {
            Type::Union(_) | Type::Words(_) => format!("({})[]", kind_text(item)),
            _ => format!("{}[]", kind_text(item)),
        },
        Type::Map(value) => format!("Record<string, {}>", kind_text(value)),
        Type::Union(kinds) => kinds.iter().map(kind_text).collect::<Vec<_>>().join(" | "),
    }
}

fn comment(doc: &str, indent: &str) -> String {
    if doc.is_empty() { String::new() } else { format!("{indent}/** {doc} */\n") }
}

fn write_line(text: &mut String, line: &str) {
    writeln!(text, "{line}").expect("writing to a string cannot fail");
}
