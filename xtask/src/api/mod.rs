//! `cargo xtask api`: writes the types of the HTTP API for each SDK from `docs/openapi.json`. It writes only
//! the two files of [`WRITTEN`].

mod model;
mod python;
mod typescript;

use std::fs;
use std::path::Path;

use anyhow::{Context, Result};

use crate::RunVerdict;
use crate::workspace;
use model::Model;

/// The source of the types.
const DOCUMENT: &str = "docs/openapi.json";

/// Makes the text of a file.
type Writer = fn(&Model) -> String;

/// Each file, and the function that makes its text.
const WRITTEN: &[(&str, Writer)] = &[
    ("sdk/python/src/windlass/_api.py", python::text),
    ("sdk/typescript/src/api.ts", typescript::text),
];

#[derive(Debug, clap::Args)]
pub struct Args {
    /// Write nothing; fail if a file is out of date
    #[arg(long)]
    check: bool,
}

pub fn run(args: &Args) -> Result<RunVerdict> {
    let document = fs::read_to_string(workspace::root().join(DOCUMENT))
        .with_context(|| format!("cannot read {DOCUMENT}"))?;
    let model = Model::read(&serde_json::from_str(&document)?)?;
    let mut verdict = RunVerdict::Good;
    for (path, text) in WRITTEN {
        let (whole, text) = (workspace::root().join(path), text(&model));
        if fs::read_to_string(&whole).is_ok_and(|there| there == text) {
            continue;
        }
        if args.check {
            println!("{path} does not match {DOCUMENT}\n  remedy: run `cargo xtask api`");
            verdict = RunVerdict::Bad;
        } else {
            write(&whole, &text)?;
            println!("wrote {path}");
        }
    }
    Ok(verdict)
}

fn write(path: &Path, text: &str) -> Result<()> {
    let directory = path.parent().context("a file has a directory")?;
    fs::create_dir_all(directory)?;
    fs::write(path, text).with_context(|| format!("cannot write {}", path.display()))
}

/// The type name for a name of several words: `TurnEnded` for `turn_ended`, `ReadOnly` for `read-only`.
fn type_name(text: &str) -> String {
    let parts = text.split(|c: char| !c.is_ascii_alphanumeric());
    parts
        .map(|part| {
            let mut letters = part.chars();
            let first = letters.next().map(|letter| letter.to_ascii_uppercase());
            first.into_iter().chain(letters).collect::<String>()
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn sample() -> Model {
        let document = json!({"components": {"schemas": {
            "Turn": {
                "type": "object",
                "description": "A turn.",
                "required": ["id", "from"],
                "properties": {
                    "id": {"$ref": "#/components/schemas/TurnId"},
                    "from": {"type": "integer", "description": "Where it\nstarts."},
                    "error": {"oneOf": [{"$ref": "#/components/schemas/Kind"}, {"type": "null"}]},
                    "env": {"type": "object", "additionalProperties": {"type": "string"}}
                }
            },
            "TurnId": {"type": "string"},
            "Outcome": {"type": "string", "enum": ["ok", "timed_out"]},
            "Kind": {"oneOf": [
                {"type": "object", "required": ["kind"],
                 "properties": {"kind": {"type": "string", "enum": ["turn_ended"]}}},
                {"type": "string", "enum": ["none"]}
            ]},
            "Event": {"allOf": [
                {"$ref": "#/components/schemas/Tagged"},
                {"type": "object", "required": ["seq"], "properties": {"seq": {"type": "integer"}}}
            ]},
            "Tagged": {"oneOf": [
                {"type": "object", "required": ["kind"],
                 "properties": {"kind": {"type": "string", "enum": ["output"]}}},
                {"type": "object", "required": ["kind"], "properties": {
                    "kind": {"type": "string", "enum": ["display"]},
                    "mimes": {"type": ["array", "null"], "items": {"type": "string"}}}}
            ]}
        }}});
        Model::read(&document).unwrap()
    }

    #[test]
    fn python_gets_typed_dictionaries_and_literals() {
        expect_test::expect_file!["sample.py.txt"].assert_eq(&python::text(&sample()));
    }

    #[test]
    fn typescript_gets_interfaces_and_unions() {
        expect_test::expect_file!["sample.ts.txt"].assert_eq(&typescript::text(&sample()));
    }

    #[test]
    fn a_name_in_parts_becomes_a_types_name() {
        assert_eq!(type_name("turn_ended"), "TurnEnded");
        assert_eq!(type_name("read-only"), "ReadOnly");
    }
}
