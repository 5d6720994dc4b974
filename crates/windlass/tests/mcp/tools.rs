//! The tools: listed without a node, with results that match their schemas.

use std::time::{Duration, Instant};

use serde_json::{Value, json};
use windlass_testkit::McpClient;
use windlass_testkit::mcp::{STATELESS, output_of, text_of};

use crate::{is_error, place, said};

/// Placeholder for the id of the turn that waits for input.
const ASKING: &str = "the one that asks";

/// Time from the start of the bridge to the list, on a busy machine; the bench has the exact figure.
const LISTED_WITHIN: Duration = Duration::from_secs(3);

#[tokio::test]
async fn tools_are_listed_soon_without_a_node_and_none_is_started() {
    let place = place();
    for revision in [STATELESS, "2025-11-25"] {
        let began = Instant::now();
        let mut agent = McpClient::builder(&place).revision(revision).start().await.unwrap();
        let listed = agent.request("tools/list", json!({})).await.unwrap().unwrap();
        let took = began.elapsed();
        assert!(took < LISTED_WITHIN, "{revision}: {took:?}");
        let tools = listed["tools"].as_array().unwrap();
        let names: Vec<&str> = tools.iter().map(|tool| tool["name"].as_str().unwrap()).collect();
        let all = ["run", "continue", "interrupt", "reset", "sessions", "read_output"];
        assert_eq!(names, all);
        for tool in tools {
            assert!(tool["annotations"]["readOnlyHint"].is_boolean(), "{tool}");
        }
        for method in ["resources/list", "resources/templates/list"] {
            assert!(agent.request(method, json!({})).await.unwrap().is_ok(), "{method}");
        }
        assert!(agent.close().await.unwrap().success());
    }
    assert!(!place.dirs().socket().exists(), "a node was started by looking");
}

#[tokio::test]
async fn an_exception_and_wrong_arguments_are_errors_of_the_tool_and_no_tool_is_the_protocols() {
    let place = place();
    for revision in [STATELESS, "2025-11-25"] {
        let mut agent = McpClient::builder(&place).revision(revision).start().await.unwrap();
        let failed = agent.run("print('before')\n1 / 0").await;
        assert!(is_error(&failed), "{failed}");
        assert_eq!(said(&failed, "outcome"), "error", "{failed}");
        assert_eq!(said(&failed, "error")["name"], "ZeroDivisionError", "{failed}");
        assert!(text_of(&failed).starts_with("before\nTraceback"), "{failed}");
        assert_eq!(text_of(&failed).matches("ZeroDivisionError").count(), 1, "{failed}");

        for (tool, arguments, named) in [
            ("run", json!({}), "code"),
            ("run", json!({"code": 1}), "string"),
            ("run", json!({"code": "1", "sesion": "a"}), "sesion"),
            ("run", json!({"code": "1", "session": "a/b"}), "a/b"),
            ("run", json!({"code": "1", "language": "cobol"}), "cobol"),
            ("continue", json!({"session": "never-there"}), "sessions"),
            ("continue", json!({"turn": "t999"}), "t999"),
            ("sessions", json!({"all": true}), "all"),
        ] {
            let refused = agent.call(tool, arguments.clone()).await;
            assert!(is_error(&refused), "{tool} {arguments}: {refused}");
            assert!(text_of(&refused).contains(named), "{tool} {arguments}: {refused}");
        }

        let params = json!({"name": "rm", "arguments": {}});
        let unknown = agent.request("tools/call", params).await.unwrap().unwrap_err();
        assert_eq!(unknown["code"], -32602, "{unknown}");
        let unknown = agent.request("tools/burn", json!({})).await.unwrap().unwrap_err();
        assert_eq!(unknown["code"], -32601, "{unknown}");
        // The bridge keeps serving after invalid requests.
        assert_eq!(agent.run_ok("6 * 7").await, "42\n");
    }
}

#[tokio::test]
async fn an_image_is_image_content() {
    // The content of the image is not inspected on the way.
    const CODE: &str =
        "class Plot:\n    def _repr_png_(self):\n        return b'not really'\nPlot()";
    let place = place();
    let mut agent = McpClient::start(&place).await.unwrap();
    let reply = agent.run(CODE).await;
    let images: Vec<&Value> =
        reply["content"].as_array().unwrap().iter().filter(|it| it["type"] == "image").collect();
    assert_eq!(images.len(), 1, "{reply}");
    assert_eq!(images[0]["mimeType"], "image/png");
    assert_eq!(images[0]["data"], "bm90IHJlYWxseQ==");
    assert_eq!(said(&reply, "images"), 1, "{reply}");
}

#[tokio::test]
async fn structured_content_agrees_with_the_schema_of_its_tool() {
    let place = place();
    let mut agent = McpClient::start(&place).await.unwrap();
    let listed = agent.request("tools/list", json!({})).await.unwrap().unwrap();
    let mut asking = Value::Null;
    let image = "class P:\n    def _repr_png_(self):\n        return b'x'\nP()";
    for (tool, mut arguments) in [
        ("run", json!({"code": "6 * 7"})),
        ("run", json!({"code": "1 / 0"})),
        ("run", json!({"code": image})),
        ("run", json!({"code": "print('a' * 100000)", "max_tokens": 50})),
        ("run", json!({"code": "import os; os._exit(3)"})),
        ("run", json!({"code": "input('name? ')"})),
        ("run", json!({"code": "1", "wait_seconds": 0})),
        ("continue", json!({"turn": ASKING})),
        ("continue", json!({"turn": ASKING, "input": "bob"})),
        ("continue", json!({})),
        ("interrupt", json!({})),
        ("run", json!({"code": "import time; time.sleep(60)", "wait_seconds": 0})),
        ("sessions", json!({})),
        ("interrupt", json!({})),
        ("read_output", json!({})),
        ("read_output", json!({"search": "42"})),
        ("read_output", json!({"tail": 5})),
        ("reset", json!({})),
        ("sessions", json!({})),
        ("reset", json!({"end": true})),
        ("sessions", json!({})),
    ] {
        let tools = listed["tools"].as_array().unwrap();
        let schema = &tools.iter().find(|it| it["name"] == tool).unwrap()["outputSchema"];
        if arguments["turn"] == ASKING {
            arguments["turn"] = asking.clone();
        }
        let reply = agent.call(tool, arguments.clone()).await;
        if said(&reply, "state") == "waiting_for_input" {
            asking = said(&reply, "turn").clone();
        }
        if let Err(why) = agrees(&reply["structuredContent"], schema) {
            panic!("{tool} {arguments}: {why} in {reply}");
        }
    }
}

/// Whether `value` matches `schema`, for the keywords that the tools' schemas use. Unknown fields are not
/// allowed.
fn agrees(value: &Value, schema: &Value) -> Result<(), String> {
    let known = match schema["type"].as_str() {
        Some("object") => value.is_object(),
        Some("array") => value.is_array(),
        Some("string") => value.is_string(),
        Some("integer") => value.is_u64(),
        Some("number") => value.is_number(),
        Some("boolean") => value.is_boolean(),
        None => schema["enum"].as_array().is_some_and(|all| all.contains(value)),
        Some(other) => return Err(format!("a schema with {other}")),
    };
    if !known {
        return Err(format!("{value} is not as {schema} says"));
    }
    for name in schema["required"].as_array().into_iter().flatten() {
        if value.get(name.as_str().unwrap()).is_none() {
            return Err(format!("no {name}"));
        }
    }
    for (name, part) in value.as_object().into_iter().flatten() {
        let Some(schema) = schema["properties"].get(name) else {
            return Err(format!("{name} is not in the schema"));
        };
        agrees(part, schema).map_err(|why| format!("{name}: {why}"))?;
    }
    for item in value.as_array().into_iter().flatten() {
        agrees(item, &schema["items"])?;
    }
    Ok(())
}

#[tokio::test]
async fn reset_gives_a_fresh_interpreter_and_end_a_fresh_session() {
    let place = place();
    let mut agent = McpClient::start(&place).await.unwrap();
    assert_eq!(agent.run_ok("x = 5; open('kept', 'w').close()").await, "");
    let reset = agent.call("reset", json!({})).await;
    assert_eq!(said(&reset, "state"), "fresh", "{reset}");
    let code = "import os; ('x' in globals(), os.path.exists('kept'))";
    assert_eq!(agent.run_ok(code).await, "(False, True)\n");
    let ended = agent.call("reset", json!({"end": true})).await;
    assert_eq!(said(&ended, "state"), "ended", "{ended}");
    let reply = agent.run("6 * 7").await;
    assert_eq!(output_of(&reply), "42\n");
    assert_ne!(said(&reply, "session"), said(&ended, "session"), "{reply}");
}
