//! Tests of the built-in tools, as code calls them.

use windlass_protocol::SessionId;
use windlass_protocol::host::Declaration;
use windlass_protocol::kinds;

use super::*;
use crate::HostScope;

fn world(tools: Value) -> (Hub, Caller) {
    let hub = Hub::default();
    let session = SessionId::parse("s").unwrap();
    let host = hub.attach(HostScope::Session(session.clone())).unwrap();
    let declaration: Declaration = serde_json::from_value(json!({"tools": tools})).unwrap();
    hub.declare(&host, declaration).unwrap();
    let words = &kinds::DEFAULT.terms;
    (hub, Caller { session, parent: None, owner: None, rules: Vec::new(), words })
}

fn files() -> (Hub, Caller) {
    world(json!([
        {"name": "files.write", "description": "Write a file."},
        {"name": "files.read", "description": "\n  Read a file.\n\nAll of it.",
         "input_schema": {"type": "object", "properties": {"path": {"type": "string"}},
                          "required": ["path"]}},
        {"name": "weather"},
    ]))
}

fn ask(world: &(Hub, Caller), name: &str, arguments: Value) -> Result<Value, ToolError> {
    let answer = answer(&world.0, &world.1, name, arguments.to_string().as_bytes());
    let answer = answer.unwrap_or_else(|| panic!("{name} is not a built-in tool"));
    answer.map(|json| serde_json::from_slice(&json).unwrap())
}

#[test]
fn tools_and_groups_are_described() {
    let world = files();
    for (name, expected) in [
        (
            "files.read",
            json!({"kind": "tool", "name": "files.read",
                   "description": "\n  Read a file.\n\nAll of it.",
                   "input_schema": {"type": "object", "properties": {"path": {"type": "string"}},
                                    "required": ["path"]}}),
        ),
        (
            "weather",
            json!({"kind": "tool", "name": "weather", "description": "",
                   "input_schema": {"type": "object"}}),
        ),
        (
            "files",
            json!({"kind": "group", "name": "files", "tools": [
                {"name": "files.read", "summary": "Read a file."},
                {"name": "files.write", "summary": "Write a file."}]}),
        ),
    ] {
        assert_eq!(ask(&world, "windlass.describe", json!({"name": name})), Ok(expected), "{name}");
    }
    let search = ask(&world, "windlass.describe", json!({"name": "search"})).unwrap();
    assert_eq!(search["input_schema"]["required"], json!(["words"]));
}

#[test]
fn the_error_for_an_unknown_tool_suggests_similar_names() {
    let world = files();
    let error = ask(&world, "windlass.describe", json!({"name": "files.raed"})).unwrap_err();
    assert_eq!(error.code, Some(ErrorCode::ToolNotFound));
    assert_eq!(error.message, r#"there is no tool "files.raed"; similar names: files.read"#);
    for name in ["file", "windlass", "zebra"] {
        assert!(ask(&world, "windlass.describe", json!({"name": name})).is_err(), "{name}");
    }
    let unknown = ask(&world, "windlass.nothing", json!({})).unwrap_err();
    assert_eq!(unknown.code, Some(ErrorCode::ToolNotFound));
    let alone = not_found(&Hub::default(), &world.1, "zebra");
    assert_eq!(alone.message, r#"there is no tool "zebra": no tools are offered to this session"#);
}

#[test]
fn everything_is_listed_once_and_sorted() {
    let world = files();
    let listed = ask(&world, "windlass.list", json!({})).unwrap();
    let names: Vec<&str> = listed["tools"]
        .as_array()
        .unwrap()
        .iter()
        .map(|tool| tool["name"].as_str().unwrap())
        .collect();
    assert_eq!(names, ["files.read", "files.write", "search", "weather"]);
    assert_eq!(listed["more"], json!(false));
    let many: Vec<Value> = (0..1024).map(|n| json!({"name": format!("t{n}")})).collect();
    let listed = ask(&self::world(json!(many)), "windlass.list", json!({})).unwrap();
    assert_eq!(listed["tools"].as_array().unwrap().len(), LIST_MAX);
    assert_eq!(listed["more"], json!(true));
}

#[test]
fn a_search_result_has_the_signature_of_each_tool() {
    let world = files();
    let expected = json!([
        {"name": "files.read", "summary": "Read a file.", "signature": "files.read(path: str)"},
        {"name": "files.write", "summary": "Write a file.", "signature": "files.write()"},
    ]);
    for name in ["windlass.search", "search"] {
        assert_eq!(ask(&world, name, json!({"words": "read a file"})), Ok(expected.clone()));
        assert_eq!(ask(&world, name, json!({"words": "zebra"})), Ok(json!([])));
    }
    let one = ask(&world, "search", json!({"query": "file", "limit": 1})).unwrap();
    assert_eq!(one.as_array().unwrap().len(), 1);
    for bad in [json!({}), json!([]), json!({"words": 3}), json!({"words": "x", "limit": -1})] {
        assert_eq!(ask(&world, "search", bad).unwrap_err().code, Some(ErrorCode::BadRequest));
    }
}

#[test]
fn a_host_s_search_replaces_the_built_in_one() {
    let world = world(json!([{"name": "search", "description": "The web."}]));
    assert!(answer(&world.0, &world.1, "search", b"{}").is_none());
    assert!(answer(&world.0, &world.1, "weather", b"{}").is_none());
    let described = ask(&world, "windlass.describe", json!({"name": "search"})).unwrap();
    assert_eq!(described["description"], json!("The web."));
    let listed = ask(&world, "windlass.list", json!({})).unwrap();
    assert_eq!(listed["tools"], json!([{"name": "search", "summary": "The web."}]));
}
