//! Checks that the JSON schema of the worker protocol in git, `docs/schema/worker-v1.json`, matches the code.
//! `UPDATE_SCHEMA=1` rewrites it. A change must say how old workers and keepers handle it.

use std::fs;
use std::path::Path;

use schemars::generate::SchemaSettings;
use serde_json::{Value, json};
use windlass_protocol::worker::{FromWorker, PROTOCOL, ToWorker};

const FILE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/schema/worker-v1.json");

#[test]
fn the_worker_schema_in_git_is_not_stale() {
    let generated = schema();
    if std::env::var_os("UPDATE_SCHEMA").is_some() {
        fs::create_dir_all(Path::new(FILE).parent().unwrap()).unwrap();
        fs::write(FILE, &generated).unwrap();
    }
    let in_git = fs::read_to_string(FILE).unwrap_or_default();
    assert!(
        in_git == generated,
        "docs/schema/worker-v1.json is stale: run this test with UPDATE_SCHEMA=1"
    );
}

#[test]
fn the_schema_names_every_kind_of_message() {
    let schema: Value = serde_json::from_str(&schema()).unwrap();
    let kinds = |side: &str| -> Vec<String> {
        let variants = schema["$defs"][side]["oneOf"].as_array().unwrap();
        let kind =
            |variant: &Value| variant["properties"]["kind"]["const"].as_str().map(Into::into);
        variants.iter().filter_map(kind).collect()
    };
    assert_eq!(
        kinds("ToWorker"),
        ["turn_start", "turn_input", "interrupt", "tool_result", "fork", "shutdown"]
    );
    assert_eq!(
        kinds("FromWorker"),
        [
            "worker_ready",
            "output",
            "display",
            "stdin_wait",
            "tool_call",
            "tool_cancel",
            "fork_wait",
            "forked",
            "idle",
            "session_end"
        ]
    );
}

fn schema() -> String {
    let mut generator = SchemaSettings::draft2020_12().into_generator();
    let to = generator.subschema_for::<ToWorker>();
    let from = generator.subschema_for::<FromWorker>();
    let mut definitions = generator.take_definitions(true);
    // `unknown` stands for every kind that this release does not know. No worker sends it.
    if let Some(Value::Array(kinds)) = definitions["FromWorker"].get_mut("oneOf") {
        kinds.retain(|kind| kind["properties"]["kind"]["const"] != "unknown");
    }
    let whole = json!({
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": format!("Headers of the Windlass worker protocol, version {PROTOCOL}"),
        "description": "Each frame's header is one of these; ToWorker goes to the worker, \
                        FromWorker comes from it. Bodies are raw bytes and not described here.",
        "anyOf": [to, from],
        "$defs": definitions,
    });
    let mut text = serde_json::to_string_pretty(&whole).expect("a schema is JSON");
    text.push('\n');
    text
}
