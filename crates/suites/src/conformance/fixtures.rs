//! Replaces the suite's test tools by Windlass turns. The suite calls tools by fixed names that no product
//! has, and checks only the form of their answers. So a call of `test_error_handling` becomes a `run` call
//! with code that raises an exception. The answer of the real server reaches the suite unchanged. The suite's
//! resources and filled-in forms are replaced in the same way.

use std::collections::BTreeMap;

use anyhow::{Context, Result};
use serde_json::{Map, Value, json};
use windlass_protocol::SessionId;
use windlass_protocol::api::CreateSession;
use windlass_testkit::{TestNode, run};

/// A test tool of the suite, and the code that replaces it.
#[derive(Debug)]
pub struct Fixture {
    pub tool: &'static str,
    /// What the code does, for the documentation.
    pub words: &'static str,
    /// The code. It finds the arguments of the call in the variable `arguments`.
    code: &'static str,
    kind: FixtureKind,
}

/// How the turn of a fixture runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum FixtureKind {
    /// The turn ends by itself, so it shares a session with others.
    Plain,
    /// The turn waits for input that may never come, so it has its own session.
    Lasting,
    /// Like `Lasting`, but the call does not wait: a client that supports tasks gets a task at once.
    Background,
}

/// The session that all `Plain` turns share.
const SHARED: &str = "suite";

/// The id of the session that exists before the suite runs.
const PREPARED: &str = "prepared";

/// The name of the Windlass tool that runs code, and of the field in the form that asks for input.
const RUN: &str = "run";
const FIELD: &str = "input";

const fn plain(tool: &'static str, words: &'static str, code: &'static str) -> Fixture {
    Fixture { tool, words, code, kind: FixtureKind::Plain }
}

const fn lasting(tool: &'static str, words: &'static str, code: &'static str) -> Fixture {
    Fixture { tool, words, code, kind: FixtureKind::Lasting }
}

const fn background(tool: &'static str, words: &'static str, code: &'static str) -> Fixture {
    Fixture { tool, words, code, kind: FixtureKind::Background }
}

const ASKS: &str = "asks for a line";
const ASK: &str = "print('Thank you,', input('Who is there? '))";

pub const FIXTURES: &[Fixture] = &[
    plain("test_simple_text", "prints a line", "print('A line of text.')"),
    plain("test_image_content", "shows an image", IMAGE),
    plain("test_error_handling", "raises an exception", "raise ValueError('on purpose')"),
    plain("test_tool_with_progress", "takes some seconds", "import time; time.sleep(3.5)"),
    plain("test_logging_tool", "prints a line", "print('No log.')"),
    lasting("test_elicitation", ASKS, ASK),
    lasting("test_streaming_elicitation", ASKS, ASK),
    lasting("test_input_required_result_elicitation", ASKS, ASK),
    lasting("test_input_required_result_request_state", ASKS, ASK),
    lasting("test_input_required_result_tampered_state", ASKS, ASK),
    lasting(
        "test_input_required_result_multi_round",
        "asks for two lines, one after the other",
        "print(input('Your name? '), input('Your colour? '))",
    ),
    // The suite compares the text, so the line has no newline.
    plain("greet", "prints a greeting", "print(f\"Hello, {arguments['name']}!\", end='')"),
    background(
        "slow_compute",
        "sleeps for some seconds, in the background",
        "import time; time.sleep(arguments.get('seconds', 1)); print(arguments.get('label'))",
    ),
    background(
        "failing_job",
        "raises an exception after a second, in the background",
        "import time; time.sleep(1); raise ValueError('on purpose')",
    ),
    background("confirm_delete", "asks for a line, in the background", ASK),
    lasting(
        "test_tool_with_task",
        "asks for a line, and then takes some seconds",
        "import time; name = input('Your name? '); time.sleep(4); print('Hello,', name)",
    ),
];

/// Displays an image of one pixel.
const IMAGE: &str = "\
import base64
class Dot:
    def _repr_png_(self):
        return base64.b64decode(
            'iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mP8z8DwHwAFBQIAX8jx0gAAAABJRU5E'
            'rkJggg==')
Dot()";

/// A session that exists before the suite runs. Its resources replace those of the suite, by the suite's URI.
#[derive(Debug, Default)]
pub struct FixtureSession {
    resources: BTreeMap<&'static str, String>,
}

/// The URIs of the suite's resources, and what replaces each.
pub const RESOURCES: &[(&str, &str)] = &[
    ("test://static-text", "the output of a session"),
    ("test://template/123/data", "the output of one turn"),
    ("test://static-binary", "an image that a turn displayed"),
];

impl FixtureSession {
    /// Creates the session and runs its turn.
    pub async fn make(node: &TestNode) -> Result<Self> {
        let client = node.client().await?;
        let id = Some(SessionId::parse(PREPARED)?);
        let create = CreateSession { id, ..TestNode::create() };
        let session = client.create_session(&create).await?.session.id;
        // The suite expects the number 123 in the resource of its template.
        let turn = run(&client, &session, &format!("print('text of 123')\n{IMAGE}")).await;
        let shown = turn.displays.first().context("the turn displayed nothing")?;
        let base = format!("windlass://sessions/{session}");
        let addresses = [
            format!("{base}/output"),
            format!("{base}/turns/{}/output", turn.id),
            format!("{base}/displays/{}", shown.seq),
        ];
        let resources = RESOURCES.iter().map(|(uri, _)| *uri).zip(addresses).collect();
        Ok(Self { resources })
    }
}

/// A name of the suite, and the Windlass name that replaces it.
pub type NameReplacement = (String, String);

/// Replaces names of the suite by names of Windlass in requests.
#[derive(Debug, Default)]
pub struct Translator {
    prepared: FixtureSession,
    sessions: BTreeMap<&'static str, u64>,
    last: u64,
}

impl Translator {
    pub fn new(prepared: FixtureSession) -> Self {
        Self { prepared, ..Self::default() }
    }

    /// Changes a request that names a tool, resource or form of the suite. Returns `None` if it does not. The
    /// replaced name is returned too, because it may also be in a header of the request.
    pub fn translate(&mut self, message: &mut Value) -> Option<Option<NameReplacement>> {
        let method = message.get("method")?.as_str()?.to_owned();
        let params = message.get_mut("params")?.as_object_mut()?;
        match &*method {
            "tools/call" => self.call(params).map(Some),
            "resources/read" => {
                let uri = params.get("uri")?.as_str()?.to_owned();
                let ours = self.prepared.resources.get(&*uri)?.clone();
                params.insert("uri".to_owned(), json!(ours));
                Some(Some((uri, ours)))
            }
            "tasks/update" => fill_in(params).then_some(None),
            _ => None,
        }
    }

    fn call(&mut self, params: &mut Map<String, Value>) -> Option<NameReplacement> {
        let name = params.get("name")?.as_str()?;
        let fixture = FIXTURES.iter().find(|fixture| fixture.tool == name)?;
        // A call with `requestState` continues an earlier call.
        let continues = params.contains_key("requestState");
        let session = match fixture.kind {
            FixtureKind::Plain => SHARED.to_owned(),
            FixtureKind::Lasting | FixtureKind::Background => self.session(fixture.tool, continues),
        };
        let arguments = params.get("arguments").cloned().unwrap_or_else(|| json!({}));
        params.insert("name".to_owned(), json!(RUN));
        params.insert("arguments".to_owned(), Value::Object(fixture.run(&arguments, &session)));
        fill_in(params);
        Some((fixture.tool.to_owned(), RUN.to_owned()))
    }

    fn session(&mut self, tool: &'static str, continues: bool) -> String {
        let known = self.sessions.get(tool).copied().filter(|_| continues);
        let number = known.unwrap_or(self.last + 1);
        self.last = self.last.max(number);
        self.sessions.insert(tool, number);
        format!("suite-{number}")
    }
}

/// Puts the value of the suite's form into the only field of the Windlass form. Returns whether anything
/// changed.
fn fill_in(params: &mut Map<String, Value>) -> bool {
    let Some(Value::Object(responses)) = params.get_mut("inputResponses") else { return false };
    let mut changed = false;
    for answer in responses.values_mut() {
        let Some(Value::Object(content)) = answer.get_mut("content") else { continue };
        let Some(value) = content.values().next().cloned() else { continue };
        let text = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
        *content = Map::from_iter([(FIELD.to_owned(), json!(text))]);
        changed = true;
    }
    changed
}

impl Fixture {
    fn run(&self, arguments: &Value, session: &str) -> Map<String, Value> {
        // A JSON string is also a Python string.
        let arguments = Value::String(arguments.to_string()).to_string();
        let code = format!("import json; arguments = json.loads({arguments})\n{}", self.code);
        let mut run = Map::new();
        run.insert("code".to_owned(), json!(code));
        run.insert("session".to_owned(), json!(session));
        if self.kind == FixtureKind::Background {
            run.insert("wait_seconds".to_owned(), json!(0));
        }
        run
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn call(tool: &str, more: &Value) -> Value {
        let mut params = json!({"name": tool, "_meta": {"progressToken": 1}});
        let params_map = params.as_object_mut().unwrap();
        params_map.extend(more.as_object().unwrap().clone());
        json!({"jsonrpc": "2.0", "id": 7, "method": "tools/call", "params": params})
    }

    #[test]
    fn a_call_of_the_suites_tool_becomes_a_run_and_keeps_all_else() {
        let mut message = call("greet", &json!({"arguments": {"name": "A\"b"}}));
        let renamed = Translator::default().translate(&mut message);
        assert_eq!(renamed, Some(Some(("greet".to_owned(), "run".to_owned()))));
        let params = &message["params"];
        assert_eq!((&params["name"], &message["id"]), (&json!("run"), &json!(7)));
        assert_eq!(params["_meta"]["progressToken"], 1);
        let code = params["arguments"]["code"].as_str().unwrap();
        let first = r#"import json; arguments = json.loads("{\"name\":\"A\\\"b\"}")"#;
        assert_eq!(code.lines().next(), Some(first));
        assert_eq!(params["arguments"].get("wait_seconds"), None);
    }

    #[test]
    fn a_call_that_continues_stays_in_its_session_and_a_new_one_does_not() {
        let mut translator = Translator::default();
        let mut session = |more: Value| {
            let mut message = call("test_input_required_result_multi_round", &more);
            translator.translate(&mut message).unwrap();
            message["params"]["arguments"]["session"].as_str().unwrap().to_owned()
        };
        assert_eq!(session(json!({})), "suite-1");
        assert_eq!(session(json!({"requestState": "s"})), "suite-1");
        assert_eq!(session(json!({"inputResponses": {}})), "suite-2");
    }

    #[test]
    fn an_answer_goes_into_the_field_of_our_form() {
        let mut update = json!({"method": "tasks/update", "params": {"taskId": "t", "inputResponses": {
            "input": {"action": "accept", "content": {"confirm": true}},
            "other": {"ignored": true},
        }}});
        assert_eq!(Translator::default().translate(&mut update), Some(None));
        let responses = &update["params"]["inputResponses"];
        assert_eq!(responses["input"]["content"], json!({"input": "true"}));
        assert_eq!(responses["other"], json!({"ignored": true}));
    }

    #[test]
    fn a_resource_of_the_suites_becomes_one_of_ours() {
        let ours = "windlass://sessions/s/output".to_owned();
        let resources = BTreeMap::from([("test://static-text", ours.clone())]);
        let mut translator = Translator::new(FixtureSession { resources });
        let mut read = json!({"method": "resources/read", "params": {"uri": "test://static-text"}});
        let renamed = translator.translate(&mut read);
        assert_eq!(renamed, Some(Some(("test://static-text".to_owned(), ours.clone()))));
        assert_eq!(read["params"]["uri"], ours);
        let mut other = json!({"method": "resources/read", "params": {"uri": "test://nobody"}});
        assert_eq!(translator.translate(&mut other), None);
    }

    #[test]
    fn what_is_no_call_of_the_suites_tools_is_left_alone() {
        for message in [
            call("run", &json!({"arguments": {}})),
            call("nobody", &json!({})),
            json!({"method": "tools/list", "params": {"name": "greet"}}),
            json!({"method": "tools/call"}),
            json!({"method": "tasks/update", "params": {"taskId": "t", "inputResponses": {}}}),
            json!([1]),
        ] {
            let mut after = message.clone();
            assert_eq!(Translator::default().translate(&mut after), None);
            assert_eq!(after, message);
        }
    }
}
